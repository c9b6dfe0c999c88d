"""What a search found, as a value and in the words of its closing report."""

from collections import Counter
from pathlib import Path

import pytest

from evaluator.objective import scoring
from evaluator.timing.decision import Comparison, LaunchValue, Round, Verdict, decide, spread
from records.store.rows import StudyRow
from records.study import Measure, Objective
from records.trial import FailureKind, Purpose, Stage
from search.loop.budget import launches_used
from search.loop.leader import claim_rule, find_leader
from search.loop.study_result import StudyResult, find
from search.report.data import StudyRecord, report_lines, spread_words
from search.views.format import comparison_words
from tests.support import records as testing
from tests.support.search import relaunch

SCORING = scoring(Objective(expression="step_time"))
STEADY = (1.0, 1.01, 0.99, 1.0)
DOUBLE = tuple(2 * value for value in STEADY)
ROUGH = (1.0, 1.3, 0.8, 1.1)
LOWER = (0.9, 1.0, 0.85, 0.8)
"""Undecided against it, and better in the median."""
MEASURE = Measure(confirm_rounds=4, max_confirm_rounds=4)


def found(history, launches, why="why"):
    """What is found in a study of these trials, with these launches made to confirm the best."""
    led = find_leader(history, launches, SCORING, MEASURE)
    return find(led, launches, SCORING, MEASURE, why)


def repeats(*series_by_trial):
    """Four rounds for each trial, or fewer: its step times in seconds."""
    return [
        relaunch(ordinal, step_s, number, series=3)
        for ordinal, series in enumerate(series_by_trial)
        for number, step_s in enumerate(series)
    ]


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


def test_nothing_measured_has_no_winner_and_the_report_points_at_the_first_launch():
    raised = testing.failed(FailureKind.POLICY_ERROR, Stage.DECIDE)
    history = testing.history(raised, testing.failed())

    finding = found(history, [])

    nothing = {"winner": None, "result": None, "against_seed": None}
    assert finding == StudyResult(stop_reason="why", unit="s", ties=(), unreliable=(), **nothing)
    reported = lines(finding, history)
    assert "best: none, because no configuration could be measured" in reported
    assert reported[-1] == "next: cclsearch trial show 20260101-000000-aaaa 1"


def test_without_re_measuring_the_best_trial_wins_with_an_unknown_spread():
    finding = found(testing.history(2.0, 1.0), [])

    assert (finding.winner, finding.result) == (1, spread([1.0]))
    assert finding.against_seed is None


def failing_again(ordinal, kind=FailureKind.OUT_OF_MEMORY):
    return relaunch(ordinal, testing.failed(kind), 3, series=3)


def test_a_configuration_that_fails_when_launched_again_does_not_win():
    history = testing.history(2.0, 1.0)

    finding = found(history, [*repeats(DOUBLE, STEADY[:3]), failing_again(1)])

    assert (finding.winner, finding.unreliable, finding.ties) == (0, (1,), ())
    assert "unreliable: trial 1 failed when it was repeated" in lines(finding, history)


@pytest.mark.parametrize(
    ("kind", "unreliable"),
    [(FailureKind.OUT_OF_MEMORY, (0,)), (FailureKind.INFRASTRUCTURE, ())],
)
def test_it_wins_when_no_other_finalist_is_left(kind, unreliable):
    finding = found(testing.history(1.0), [*repeats(STEADY[:3]), failing_again(0, kind)])

    assert (finding.winner, finding.unreliable) == (0, unreliable)


@pytest.mark.parametrize(
    ("firsts", "again", "winner", "ties"),
    [
        ((2.0, 1.0, 1.5), (DOUBLE, (), STEADY), 2, ()),
        ((3.0, 1.0, 1.02), (tuple(3 * s for s in STEADY), ROUGH, LOWER), 2, (1,)),
        ((1.0, 1.02), (ROUGH, LOWER), 0, (1,)),
    ],
    ids=["re-measured values", "the better median of two alike", "only shown to be better"],
)
def test_re_measured_values_decide_and_the_seed_gives_way_only_to_what_is_shown(
    firsts, again, winner, ties
):
    finding = found(testing.history(*firsts), repeats(*again))

    assert (finding.winner, finding.ties) == (winner, ties)
    assert winner == 0 or finding.against_seed.verdict is Verdict.FAST


def test_a_seed_that_something_else_looks_faster_than_is_no_decided_best():
    """The rounds of a real search: 15 % faster, but a claim has to be surer than 95 %."""
    slower, faster = (1.0,) * 6, (0.982, 0.800, 0.884, 0.849, 0.887, 0.844)

    reported = lines(found(past := testing.history(1.0, 0.9), repeats(slower, faster)), past)

    ahead = "nothing is shown to be faster than the seed, but trial 1 looks faster"
    assert any(line.startswith(f"undecided: {ahead}") for line in reported)
    assert "against the seed: the best is the seed itself, so far undecided" in reported
    assert any("cclsearch race 20260101-000000-aaaa 1 0" in line for line in reported)


def test_a_trial_that_the_noise_hides_and_the_final_did_not_launch_is_not_ruled_out():
    history = testing.history(3.0, 1.0, 1.02, 9.0)
    without_noise = found(testing.history(3.0, 1.0, 1.02), repeats((3.0,) * 4, (1.0,) * 4))

    finding = found(history, repeats(tuple(3 * s for s in ROUGH), ROUGH))

    assert (finding.winner, finding.not_ruled_out) == (1, (2,))
    assert without_noise.not_ruled_out == ()
    reported = lines(finding, history)
    words = "trial 2 may be as fast; the final did not launch it, and the other launches cannot"
    assert any(line.startswith(f"not ruled out: {words}") for line in reported)
    replay = "cclsearch replay 20260101-000000-aaaa --mode measure --trial all"
    assert any(replay in line for line in reported)


def test_a_trial_that_may_be_as_fast_but_promised_too_little_is_said_to():
    history = testing.history(3.0, 1.0, 1.02, 9.0)

    finding = found(history, repeats(tuple(3 * s for s in STEADY), (1.0, 0.99, 1.01, 1.0)))

    assert (finding.not_ruled_out, finding.unlikely) == ((2,), (2,))
    words = "trial 2 may be as fast, but by the launches so far too little was to be gained"
    assert any(line.startswith(f"not ruled out: {words}") for line in lines(finding, history))


def test_a_failed_re_measuring_launch_is_no_value():
    failed = relaunch(1, testing.failed())

    finding = found(testing.history(2.0, 1.0), [failed, *repeats(STEADY)])

    assert finding.winner == 0
    assert finding.result.launch_count == 4


def test_only_rounds_that_both_have_are_compared():
    finding = found(testing.history(2.0, 1.0), repeats(DOUBLE, STEADY[:2]))

    assert finding.against_seed.round_count == 2
    assert finding.against_seed.verdict is Verdict.UNDECIDED


def test_the_report_names_the_winner_its_evidence_and_the_next_commands():
    history = testing.history(2.0, 1.0, 1.0)
    again = repeats(DOUBLE, STEADY, (1.0, 0.99, 1.01, 1.0))

    assert lines(found(history, again), history, again, flag=" --store /records") == [
        "stopped: why",
        "trials: 3 measured, 0 failed; 15 launches of at most 176, repeats: 12 to confirm",
        "noise: rounds of equal launches differ by 1.3 % (standard deviation); 12 rounds show "
        "differences from 1.7 %",
        "best: trial 1: --n=1",
        "step_time: 1 s, median of 4 launches (95 % interval 0.9871 to 1.013)",
        "against the seed: 2.00x better (95 % interval 2.00x to 2.00x, 4 interleaved rounds)",
        "tied: trial 2, with n=2: undecided: trial 1 looks 1.000x better than it (95 % interval "
        "1.026x better to 1.026x worse, 4 interleaved rounds); launches vary more than these two "
        "differ",
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

    reported = lines(found(history, []), history)

    assert "trials: 1 measured, 4 failed; 4 launches of at most 176" in reported
    assert "failed: 2 out_of_memory; first in trial 1: rank 1 needs 80 GiB" in reported
    assert "failed: 1 invalid_config; first in trial 3: breaks ranks" in reported
    whose = "failed: 1 infrastructure, not the configuration's fault; first in trial 4: xxx"
    assert any(line.startswith(whose) and line.endswith("...") for line in reported)


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        ((1.0, 2.0), "the seed is itself the best"),
        ((testing.failed(), 2.0), "not comparable, the seed failed (crash: it broke)"),
        ((2.0, 1.0), "not compared, there was no final in which both were launched"),
    ],
)
def test_the_report_says_why_there_is_no_comparison_with_the_seed(outcomes, words):
    history = testing.history(*outcomes)

    assert f"against the seed: {words}" in lines(found(history, []), history)


FOUR = "4 interleaved rounds"


def test_a_seed_that_is_the_best_is_compared_with_the_best_of_those_shown_to_be_worse():
    """Of two trials in a race, the one that is named first is the seed."""
    history = testing.history(1.0, 2.0, 3.0)

    reported = lines(found(history, repeats(STEADY, DOUBLE, tuple(3 * s for s in STEADY))), history)

    words = f"2.00x better than trial 1 (95 % interval 2.00x to 2.00x, {FOUR})"
    assert f"against the seed: the seed is itself the best, {words}" in reported


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        ((0.5, 0.5, 0.5, 0.51), f"1.99x better (95 % interval 1.96x to 2.02x, {FOUR})"),
        ((2.0, 2.0, 2.0, 2.01), f"2.00x worse (95 % interval 1.99x to 2.01x, {FOUR})"),
        (
            (1.0, 1.001, 1.0, 1.0),
            "no difference in practice: 1.000x worse (95 % interval 1.001x better to "
            f"1.001x worse, {FOUR})",
        ),
        (
            (0.5, 2.0, 0.5, 1.0),
            f"1.19x better (95 % interval 3.42x better to 2.42x worse, {FOUR}), but undecided: "
            "launches vary more than these two differ",
        ),
        (
            (0.97, 0.98, 0.99, 0.98),
            f"1.020x better (95 % interval 1.007x to 1.034x, {FOUR}), but undecided: "
            "a claim has to be surer than this interval",
        ),
        (
            (0.5, 0.5),
            "2.00x better (2 interleaved rounds), but undecided: too few rounds to decide",
        ),
        ((0.5,), "2.00x better (1 interleaved round), but undecided: too few rounds to decide"),
        ((0.0,) * 4, "unknown, only positive values can be compared as a ratio"),
    ],
)
def test_a_comparison_is_told_with_its_ratio_interval_and_doubt(candidate, words):
    anchor = LaunchValue(value=1.0)
    rounds = [Round(candidate=LaunchValue(value=ours), anchor=anchor) for ours in candidate]

    assert comparison_words(decide(rounds, claim_rule(MEASURE))) == words


@pytest.mark.parametrize("reason", ["noise_exceeds_band", "interval_too_wide"])
def test_an_interval_that_is_clear_and_yet_no_claim_is_not_said_to_be_noise(reason):
    comparison = Comparison(
        verdict=Verdict.UNDECIDED,
        reason=reason,
        ratio=0.75,
        ratio_low=0.69,
        ratio_high=0.81,
        round_count=2,
    )

    assert comparison_words(comparison) == (
        "1.33x better (95 % interval 1.23x to 1.45x, 2 interleaved rounds), but undecided: "
        "a claim has to be surer than this interval"
    )


def test_an_unknown_reason_is_told_in_its_own_words():
    unknown = {"ratio": None, "ratio_low": None, "ratio_high": None}
    comparison = Comparison(verdict=Verdict.UNDECIDED, reason="power_cut", round_count=4, **unknown)

    assert comparison_words(comparison) == "undecided, power cut"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.08, 1.29], "1.08 and 1.29 s in two launches, too few for an interval"),
        ([0.5], "0.5 s in one launch, so its spread is unknown"),
    ],
)
def test_two_launches_are_shown_both_and_have_no_interval(values, words):
    assert spread_words(spread(values), "s") == words


def test_a_finalist_of_a_single_round_is_a_tie_only_as_far_as_the_noise_goes():
    history = testing.history(2.0, 1.0, 1.5)
    tested = [
        relaunch(0, step_s, number, series=1, purpose=Purpose.SELF_TEST)
        for number, step_s in enumerate((2.0, 2.02, 1.98, 2.01, 1.99, 2.0, 2.02, 1.98))
    ]
    final = {last: repeats((2.0, 2.06, 1.96, 2.02), STEADY, (last,)) for last in (1.5, 1.02)}
    slow, close = (
        find(
            find_leader(history, tested + launches, SCORING, MEASURE),
            launches,
            SCORING,
            MEASURE,
            "",
        )
        for launches in final.values()
    )

    assert (slow.ties, slow.against[2].verdict) == ((), Verdict.FAST)
    assert (close.ties, close.against[2].verdict) == ((2,), Verdict.UNDECIDED)
