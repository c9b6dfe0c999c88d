"""What a search found, as a value and in the words of its closing report."""

from collections import Counter
from pathlib import Path

import pytest

from evaluator.objective import scoring
from evaluator.timing.decision import Comparison, LaunchValue, Round, Verdict, decide, spread
from records.store.rows import StudyRow
from records.study import Measure, Objective
from records.trial import FailureKind, Repeat, Stage
from search.loop.budget import launches_used
from search.loop.leader import claim_rule, find_leader
from search.loop.study_result import StudyResult, find
from search.report.summary import StudyRecord, report_lines, spread_words
from search.views.format import comparison_words
from tests.support import records as testing

SCORING = scoring(Objective(expression="step_time"))
STEADY = (1.0, 1.01, 0.99, 1.0)
MEASURE = Measure(confirm_rounds=4, max_confirm_rounds=4)


def found(history, launches, why="why"):
    """What is found in a study of these trials, with these launches made to confirm the best."""
    led = find_leader(history, launches, SCORING, MEASURE)
    return find(led, launches, SCORING, MEASURE, why)


def repeats(*series_by_trial):
    """Four rounds for each trial, or fewer: its step times in seconds."""
    return [
        Repeat(series=3, round=number, ordinal=ordinal, outcome=testing.measured(seconds))
        for ordinal, series in enumerate(series_by_trial)
        for number, seconds in enumerate(series)
    ]


def scaled(series, factor):
    return tuple(value * factor for value in series)


def record(history, repeats=()):
    row = StudyRow(
        id="20260101-000000-aaaa",
        strategy="coordinate",
        status="finished",
        created_at=testing.START,
        study=testing.study(),
        summary=None,
    )
    return StudyRecord(
        row=row,
        history=history,
        launch_count=launches_used(history, repeats),
        purposes=Counter(repeat.purpose for repeat in repeats),
        store=Path("/records"),
    )


def lines(finding, history, repeats=(), flag=""):
    told = report_lines(finding, record(history, repeats), flag)
    return [f"{label}: {words}" for label, words in told]


def test_nothing_measured_has_no_winner():
    history = testing.history(testing.failed(), testing.failed())

    finding = found(history, [])

    assert finding == StudyResult(
        stop_reason="why",
        winner=None,
        unit="s",
        result=None,
        against_seed=None,
        ties=(),
        unreliable=(),
    )


def test_without_re_measuring_the_best_trial_wins_with_an_unknown_spread():
    finding = found(testing.history(2.0, 1.0), [])

    assert finding.winner == 1
    assert finding.result == spread([1.0])
    assert finding.against_seed is None


def failing_again(ordinal, kind=FailureKind.OUT_OF_MEMORY):
    return Repeat(series=3, round=3, ordinal=ordinal, outcome=testing.failed(kind))


def test_a_configuration_that_fails_when_launched_again_does_not_win():
    history = testing.history(2.0, 1.0)
    again = [*repeats(scaled(STEADY, 2), STEADY[:3]), failing_again(1)]

    finding = found(history, again)

    assert finding.winner == 0
    assert finding.unreliable == (1,)
    assert finding.ties == ()
    assert "unreliable: trial 1 failed when it was repeated" in lines(finding, history)


def test_it_wins_when_no_other_finalist_is_left():
    finding = found(testing.history(1.0), [*repeats(STEADY[:3]), failing_again(0)])

    assert finding.winner == 0
    assert finding.unreliable == (0,)


def test_infrastructure_does_not_make_a_configuration_unreliable():
    again = [*repeats(STEADY[:3]), failing_again(0, FailureKind.INFRASTRUCTURE)]

    assert found(testing.history(1.0), again).unreliable == ()


def test_re_measured_values_decide():
    history = testing.history(2.0, 1.0, 1.5)

    finding = found(history, repeats(scaled(STEADY, 2), (), STEADY))

    assert finding.winner == 2
    assert finding.against_seed.verdict is Verdict.FAST
    assert finding.ties == ()


ROUGH = (1.0, 1.3, 0.8, 1.1)
LOWER = (0.9, 1.0, 0.85, 0.8)
"""Undecided against it, and better in the median."""


def test_of_finalists_that_cannot_be_told_apart_the_one_that_came_out_better_wins():
    history = testing.history(3.0, 1.0, 1.02)

    finding = found(history, repeats(scaled(STEADY, 3), ROUGH, LOWER))

    assert finding.winner == 2
    assert finding.ties == (1,)


def test_a_trial_that_the_noise_hides_and_the_final_did_not_launch_is_not_ruled_out():
    history = testing.history(3.0, 1.0, 1.02, 9.0)
    again = repeats(scaled(ROUGH, 3), ROUGH)

    finding = found(history, again)

    assert finding.winner == 1
    assert finding.not_ruled_out == (2,)
    assert (
        "not ruled out: trial 2 may be as fast; the final did not launch it, and the other "
        "launches cannot tell"
    ) in lines(finding, history)
    assert any(
        "cclsearch replay 20260101-000000-aaaa --mode measure --trial all" in line
        for line in lines(finding, history)
    )


def test_launches_without_noise_rule_out_every_slower_trial():
    finding = found(testing.history(3.0, 1.0, 1.02), repeats((3.0,) * 4, (1.0,) * 4))

    assert finding.not_ruled_out == ()


def test_the_seed_gives_way_only_to_what_was_shown_to_be_better():
    finding = found(testing.history(1.0, 1.02), repeats(ROUGH, LOWER))

    assert finding.winner == 0
    assert finding.ties == (1,)


def test_a_failed_re_measuring_launch_is_no_value():
    history = testing.history(2.0, 1.0)
    failed = Repeat(series=2, round=0, ordinal=1, outcome=testing.failed())

    finding = found(history, [failed, *repeats(STEADY)])

    assert finding.winner == 0
    assert finding.result.launch_count == 4


def test_only_rounds_that_both_have_are_compared():
    history = testing.history(2.0, 1.0)

    finding = found(history, repeats(scaled(STEADY, 2), STEADY[:2]))

    assert finding.against_seed.round_count == 2
    assert finding.against_seed.verdict is Verdict.UNDECIDED


def test_the_report_names_the_winner_its_evidence_and_the_next_commands():
    history = testing.history(2.0, 1.0, 1.0)
    again = repeats(scaled(STEADY, 2), STEADY, (1.0, 0.99, 1.01, 1.0))

    assert lines(found(history, again), history, again, flag=" --store /records") == [
        "stopped: why",
        "trials: 3 measured, 0 failed; 15 launches of at most 76, repeats: 12 to confirm",
        "noise: rounds of equal launches differ by 1.3 % (standard deviation); 12 rounds show "
        "differences from 1.2 %",
        "best: trial 1: --n=1",
        "step_time: 1 s, median of 4 launches (95 % interval 0.9871 to 1.013)",
        "against the seed: 2.00x better (95 % interval 2.00 to 2.00, 4 interleaved rounds)",
        "tied: trial 2, with n=2: the launches show no difference",
        "record: study 20260101-000000-aaaa in /records",
        "next: cclsearch best 20260101-000000-aaaa --format args --store /records",
        "next: cclsearch resume 20260101-000000-aaaa --trials 5 --store /records",
    ]


def test_the_report_gives_each_kind_of_failure_with_its_first_cause():
    oom, check = FailureKind.OUT_OF_MEMORY, FailureKind.INVALID_CONFIG
    history = testing.history(
        1.0,
        testing.failed(oom, message="rank 1 needs\n80 GiB"),
        testing.failed(oom, message="rank 0 too"),
        testing.failed(check, Stage.CHECK, message="breaks ranks"),
        testing.failed(FailureKind.INFRASTRUCTURE, message="x" * 300),
    )
    finding = found(history, [])

    reported = lines(finding, history)

    assert "trials: 1 measured, 4 failed; 4 launches of at most 76" in reported
    assert "failed: 2 out_of_memory; first in trial 1: rank 1 needs 80 GiB" in reported
    assert "failed: 1 invalid_config; first in trial 3: breaks ranks" in reported
    whose = "failed: 1 infrastructure, not the configuration's fault; first in trial 4: xxx"
    assert any(line.startswith(whose) and line.endswith("...") for line in reported)


def test_the_report_of_nothing_measured_points_at_the_first_launch():
    history = testing.history(
        testing.failed(FailureKind.POLICY_ERROR, Stage.DECIDE), testing.failed()
    )

    reported = lines(found(history, []), history)

    assert "best: none, because no configuration could be measured" in reported
    assert reported[-1] == "next: cclsearch trial show 20260101-000000-aaaa 1"


@pytest.mark.parametrize(
    ("outcomes", "rounds", "words"),
    [
        ((1.0, 2.0), (), "the seed is itself the best"),
        ((testing.failed(), 2.0), (), "not comparable, the seed failed (crash: it broke)"),
        ((2.0, 1.0), (), "not compared, there was no final in which both were launched"),
    ],
)
def test_the_report_says_why_there_is_no_comparison_with_the_seed(outcomes, rounds, words):
    history = testing.history(*outcomes)
    finding = found(history, repeats(*rounds))

    assert f"against the seed: {words}" in lines(finding, history)


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        ((0.5, 0.5, 0.5, 0.51), "1.99x better (95 % interval 1.96 to 2.02, 4 interleaved rounds)"),
        ((2.0, 2.0, 2.0, 2.01), "0.50x as good (95 % interval 0.50 to 0.50, 4 interleaved rounds)"),
        (
            (1.0, 1.001, 1.0, 1.0),
            "no difference in practice, 1.00x (95 % interval 1.00 to 1.00, 4 interleaved rounds)",
        ),
        (
            (0.5, 2.0, 0.5, 1.0),
            "1.19x better (95 % interval 0.41 to 3.42, 4 interleaved rounds), but undecided: "
            "launches vary more than these two differ",
        ),
        (
            (0.97, 0.98, 0.99, 0.98),
            "1.02x better (95 % interval 1.01 to 1.03, 4 interleaved rounds), but undecided: "
            "the difference may be too small to matter",
        ),
        (
            (0.5, 0.5),
            "2.00x better in 2 interleaved rounds, but undecided: too few rounds to decide",
        ),
        ((0.5,), "2.00x better in 1 interleaved round, but undecided: too few rounds to decide"),
        ((0.0,) * 4, "undecided, only positive values can be compared as a ratio"),
    ],
)
def test_a_comparison_is_told_with_its_ratio_interval_and_doubt(candidate, words):
    rounds = [
        Round(candidate=LaunchValue(value=ours), anchor=LaunchValue(value=1.0))
        for ours in candidate
    ]

    assert comparison_words(decide(rounds, claim_rule(MEASURE))) == words


def test_an_unknown_reason_is_told_in_its_own_words():
    comparison = Comparison(
        verdict=Verdict.UNDECIDED,
        reason="power_cut",
        ratio=None,
        ratio_low=None,
        ratio_high=None,
        round_count=4,
    )

    assert comparison_words(comparison) == "undecided, power cut"


def test_two_launches_are_shown_both_and_have_no_interval():
    assert spread_words(spread([1.08, 1.29]), "s") == (
        "1.08 and 1.29 s in two launches, too few for an interval"
    )


def test_one_launch_has_no_known_spread():
    assert spread_words(spread([0.5]), "s") == "0.5 s in one launch, so its spread is unknown"
