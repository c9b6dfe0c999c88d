"""Launches that were disturbed are shown wherever their result is, in the terminal's words."""

from contextlib import closing
from dataclasses import replace

import pytest

from evaluator.timing.decision import Comparison, Verdict
from records.codec import from_json, to_json
from records.store.store import Store
from records.study import Dimension
from records.trial import Repeat
from search.loop.study_result import StudyResult
from search.report.data import StudyRecord
from search.views.machine import disturbed_words
from tests.search.service.conftest import FINISHED, running
from tests.search.service.reading_pages import get, table
from tests.support import records as testing

STUDY = "20260301-000000-busy"
QUIET, BUSY = (testing.conditions(others_cpu_share=share) for share in (0.02, 0.82))


def launched(seconds, conditions):
    measured = testing.measured(seconds)
    return replace(measured, measurement=replace(measured.measurement, conditions=conditions))


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    """A service over a study of two trials: one was disturbed in two of three launches."""
    root = tmp_path_factory.mktemp("busy")
    outcomes = launched(0.5, QUIET), launched(0.25, BUSY)
    trials = [testing.trial(n, each, {"n": n, "m": 1 - n}) for n, each in enumerate(outcomes)]
    rounds = [
        Repeat(series=2, round=number, ordinal=1, outcome=launched(0.26, conditions))
        for number, conditions in enumerate((BUSY, QUIET))
    ]
    knobs = [Dimension(name=name, choices=(0, 1)) for name in ("m", "n")]
    with closing(Store(root)) as store:
        study = replace(testing.study(*knobs), strategy="offline")
        store.add_study(STUDY, study, "test", trials, rounds)
    with running(root) as served, served.client("read") as client:
        yield root, client


@pytest.mark.parametrize("address", ["", "/trials", "/trials/1", "/explore", "/policies"])
def test_every_page_of_a_study_says_what_the_terminal_says(busy, address):
    root, client = busy
    with closing(Store(root)) as store:
        words = disturbed_words(StudyRecord.of(STUDY, store).disturbed)

    assert words.startswith("2 of 4 launches, the last because other processes used 82%")
    assert words in get(client, f"/studies/{STUDY}{address}").text


def test_a_row_and_a_side_say_it_of_their_own_launches(busy):
    _, client = busy
    listed = get(client, f"/studies/{STUDY}/trials")
    sides = get(client, f"/compare?side={STUDY}:0&side={STUDY}:1")

    assert [row[-1] for row in table(listed, "2 trials")] == ["", "disturbed: 2 of 3 launches"]
    assert "disturbed: 2 of 3 launches" in sides.text
    assert "B: disturbed: 2 of 3 launches, the last because other processes" in sides.text


def test_the_api_counts_them(busy):
    _, client = busy
    study = client.get(f"/api/v1/studies/{STUDY}").json()["disturbed"]
    quiet, disturbed = client.get(f"/api/v1/studies/{STUDY}/trials").json()["items"]

    assert (study["launches"], study["of"]) == (2, 4)
    assert study["last_cause"] == "other processes used 82% of the cores"
    assert quiet["disturbed"] is None
    assert (disturbed["disturbed"]["launches"], disturbed["disturbed"]["of"]) == (2, 3)


def test_a_best_that_is_not_shown_to_be_better_says_so_in_the_headline(served):
    open_ended = Comparison(
        verdict=Verdict.UNDECIDED,
        reason="noise_exceeds_band",
        ratio=0.9,
        ratio_low=0.7,
        ratio_high=1.2,
        round_count=4,
    )
    with closing(Store(served.service.store)) as store:
        finding = from_json(StudyResult, store.find(FINISHED).summary)
        summary = to_json(replace(finding, against_seed=open_ended))
        store.update(FINISHED, status="finished", summary=summary)
    with served.client("read") as client:
        best = get(client, f"/studies/{FINISHED}").find("best").text
        undecided = client.get(f"/api/v1/studies/{FINISHED}").json()["undecided"]

    assert "Not shown to be better than the seed" in best
    assert undecided.endswith("but undecided: launches vary more than these two differ")
    assert undecided in best
