"""A result that decided nothing says so first, and what would help."""

from dataclasses import replace

import pytest

from evaluator.timing.decision import Comparison, Verdict
from search.loop.inert import InertKnob
from search.loop.study_result import StudyResult
from search.report.data import RACE, undecided_line
from search.views.study import REMEDY
from tests.support.records import failed, history

UNSURE = Comparison(
    verdict=Verdict.UNDECIDED, reason="", ratio=0.9, ratio_low=0.7, ratio_high=1.2, round_count=6
)
AHEAD = replace(UNSURE, ratio=1.15, ratio_low=1.01, ratio_high=1.3)
"""The seed against a tie; a claim has to be surer than this."""
RESULT = StudyResult(
    stop_reason="",
    winner=0,
    unit="s",
    result=None,
    against_seed=None,
    ties=(),
    unreliable=(),
)
PAST = history(1.0, 0.9, 0.8)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (
            replace(RESULT, not_ruled_out=(1, 2)),
            f"nothing is shown to be faster than the seed, but trials 1 and 2 may be; {RACE}",
        ),
        (
            replace(RESULT, ties=(1, 2), against={1: AHEAD, 2: UNSURE}, not_ruled_out=(2,)),
            f"nothing is shown to be faster than the seed, but trial 1 looks faster; {RACE}",
        ),
        (
            replace(RESULT, ties=(1, 2), against={1: AHEAD, 2: AHEAD}),
            f"nothing is shown to be faster than the seed, but trials 1 and 2 look faster; {RACE}",
        ),
        (
            replace(RESULT, winner=2, against_seed=UNSURE),
            f"trial 2 is not shown to be faster or slower than the seed; {REMEDY}",
        ),
        (replace(RESULT, winner=2), f"trial 2 was not compared with the seed; {RACE}"),
    ],
)
def test_a_result_that_decided_nothing_says_so_and_what_would_help(result, words):
    assert undecided_line(result, PAST) == words


SAME = InertKnob(name="strategy", values=("ddp", "fsdp"), ordinals=(0, 1))


@pytest.mark.parametrize(
    "result",
    [
        RESULT,
        replace(RESULT, winner=2, against_seed=replace(UNSURE, verdict=Verdict.FAST)),
        replace(RESULT, ties=(1,), against={1: UNSURE}),
        replace(RESULT, ties=(1,), against={1: AHEAD}, inert=(SAME,)),
        replace(RESULT, not_ruled_out=(1,), inert=(SAME,)),
        replace(RESULT, not_ruled_out=(1,), unlikely=(1,)),
    ],
    ids=[
        "the seed is the best",
        "faster",
        "a tie",
        "what looks faster did the same work",
        "what may be as fast did the same work",
        "unlikely",
    ],
)
def test_a_decided_result_does_not(result):
    assert undecided_line(result, PAST) is None


def test_a_seed_that_failed_is_no_open_question():
    assert undecided_line(replace(RESULT, winner=1), history(failed(), 0.9)) is None
