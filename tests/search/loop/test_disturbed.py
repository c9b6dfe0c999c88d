"""Rounds that something else on the machine disturbed are run again, and left out once replaced."""

from dataclasses import replace
from itertools import permutations

import pytest

from evaluator.machine import conditions_between, take_snapshot
from evaluator.timing.decision import Verdict
from records.study import Budget, Measure
from records.trial import Failed, FailureKind, Purpose, Repeat, Stage
from search.loop.budget import extend_budget
from search.loop.leader import LEAST_RACE_ROUNDS, MOST_RUN_AGAIN, counted, left_out_rounds
from search.loop.study_result import ConfirmingRounds
from search.report.summary import StudyRecord, report_lines
from tests.support import records as testing
from tests.support.evaluator import Fails, InTurn, Takes

NOW = take_snapshot()
QUIET = replace(conditions_between(NOW, NOW), others_cpu_share=0.0, steal_share=0.0, gpus=())
BUSY = replace(QUIET, others_cpu_share=0.9)
MEASURE = Measure(race_rounds=4, confirm_rounds=4)
ONLY_RACES = Measure(
    infrastructure_retries=0,
    profiled_steps=0,
    self_test_rounds=0,
    confirm_rounds=0,
    together="never",
)


class CutShort:
    """Passes so many launches on, then is interrupted."""

    def __init__(self, evaluator, launches):
        self._evaluator = evaluator
        self._left = launches

    def evaluate(self, *arguments):
        if self._left == 0:
            raise KeyboardInterrupt
        self._left -= 1
        return self._evaluator.evaluate(*arguments)


def launch(number, ordinal, conditions, *, purpose=Purpose.RACE, series=2):
    outcome = testing.measured()
    measurement = replace(outcome.measurement, conditions=conditions)
    outcome = replace(outcome, measurement=measurement)
    return Repeat(series=series, round=number, ordinal=ordinal, outcome=outcome, purpose=purpose)


def rounds(launches):
    return sorted({repeat.round for repeat in launches})


def contest(*conditions, purpose=Purpose.RACE, series=2):
    """Rounds of two trials, of which each has these conditions."""
    return [
        launch(number, ordinal, found, purpose=purpose, series=series)
        for number, found in enumerate(conditions)
        for ordinal in (0, 1)
    ]


def test_a_round_is_left_out_whole_when_one_of_its_launches_was_disturbed():
    launches = [launch(0, 0, QUIET), launch(0, 1, BUSY), *contest(QUIET, QUIET, QUIET)[2:]]

    assert rounds(counted(launches, MEASURE)) == [1, 2]


@pytest.mark.parametrize(
    ("conditions", "counts"),
    [
        ([BUSY], [0]),
        ([BUSY, BUSY, BUSY], [0, 1, 2]),
        ([QUIET, QUIET, BUSY], [0, 1, 2]),
        ([BUSY, QUIET], [0, 1]),
        ([BUSY, QUIET, QUIET], [1, 2]),
        ([BUSY, BUSY, QUIET], [1, 2]),
        ([BUSY, BUSY, QUIET, QUIET], [2, 3]),
        ([BUSY, BUSY, BUSY, QUIET, QUIET], [2, 3, 4]),
    ],
)
def test_a_disturbed_round_counts_until_it_is_replaced(conditions, counts):
    assert LEAST_RACE_ROUNDS == MOST_RUN_AGAIN == 2
    assert rounds(counted(contest(*conditions), MEASURE)) == counts


def test_a_final_is_not_left_with_fewer_rounds_than_it_needs():
    launches = contest(BUSY, BUSY, QUIET, QUIET, QUIET, purpose=Purpose.CONFIRM)

    assert rounds(counted(launches, MEASURE)) == [1, 2, 3, 4]


def test_a_round_that_was_cut_short_replaces_nothing():
    launches = [*contest(BUSY, QUIET), launch(2, 0, QUIET)]

    assert rounds(counted(launches, MEASURE)) == [0, 1, 2]


def test_every_contest_has_its_own_allowance():
    busy = [BUSY, BUSY, QUIET, QUIET]
    launches = [
        *contest(*busy, series=2),
        *contest(*busy, series=3),
        *contest(*busy, QUIET, QUIET, purpose=Purpose.CONFIRM),
    ]

    left_out = left_out_rounds(launches, MEASURE)

    assert left_out == {
        (series, purpose, number)
        for series, purpose in ((2, Purpose.RACE), (3, Purpose.RACE), (2, Purpose.CONFIRM))
        for number in (0, 1)
    }


def test_a_self_test_shows_the_noise_as_it_is():
    launches = [launch(number, 0, BUSY, purpose=Purpose.SELF_TEST) for number in (0, 1)]

    assert counted(launches, MEASURE) == tuple(launches)


@pytest.mark.parametrize("conditions", [None, QUIET], ids=["unwatched", "quiet"])
def test_nothing_is_left_out_without_a_sign_of_disturbance(conditions):
    launches = [launch(0, 0, conditions), launch(0, 1, conditions)]

    assert counted(launches, MEASURE) == tuple(launches)


def test_a_round_with_a_failure_counts_although_it_was_disturbed():
    failed = Failed(stage=Stage.LAUNCH, kind=FailureKind.CRASH, message="it crashed")
    broken = replace(launch(0, 1, QUIET), outcome=failed)

    assert counted([launch(0, 0, BUSY), broken], MEASURE) == (launch(0, 0, BUSY), broken)


def test_a_disturbed_round_of_a_race_is_run_again_and_decides_nothing(tabular):
    # In its disturbed round the challenger looks slow; in the others it is twice as fast.
    slowed = Takes(step_time_s=2.0, conditions=BUSY)
    challenger = Takes(step_time_s=0.25, noise=0.01, conditions=QUIET)
    endings = {
        0: Takes(step_time_s=0.5, noise=0.01, conditions=QUIET),
        1: InTurn((challenger, slowed, challenger)),
    }
    study = tabular(endings, measure=ONLY_RACES)

    finding = study.run()

    (race,) = finding.races
    assert finding.winner == 1
    assert race.comparison.round_count == 2
    assert rounds(study.store.repeats(study.study_id)) == [0, 1, 2]


def test_the_report_says_how_many_rounds_were_run_again(tabular):
    slowed = Takes(step_time_s=2.0, conditions=BUSY)
    challenger = Takes(step_time_s=0.25, noise=0.01, conditions=QUIET)
    endings = {
        0: Takes(step_time_s=0.5, noise=0.01, conditions=QUIET),
        1: InTurn((challenger, slowed, challenger)),
    }
    study = tabular(endings, measure=ONLY_RACES)

    finding = study.run()

    lines = dict(report_lines(finding, StudyRecord.of(study.study_id, study.store), ""))
    assert lines["disturbed"].startswith("1 of 8 launches, the last because other processes used")
    assert lines["left out"] == "1 disturbed round, replaced by further rounds"


def busy(step_time_s):
    return Takes(step_time_s=step_time_s, conditions=BUSY)


def report_of(study, finding):
    return dict(report_lines(finding, StudyRecord.of(study.study_id, study.store), ""))


def test_the_best_is_found_although_the_budget_ends_before_disturbed_rounds_are_replaced(tabular):
    measure = replace(ONLY_RACES, race_rounds=0, confirm_top=2, confirm_rounds=4)
    endings = {0: busy(0.09), 1: busy(0.07), 2: busy(0.03)}
    study = tabular(endings, measure=measure, budget=Budget(trials=2, patience=9))
    study.run()
    launched = len(study.launched)
    # One trial more, and two rounds of a final.
    study.budget = Budget(trials=3, patience=9, launches=launched + 1 + 2 * 3)

    finding = study.run()

    assert finding.winner == 2
    assert finding.confirming == ConfirmingRounds(count=2, disturbed_count=2, seed_launched=True)
    report = report_of(study, finding)
    assert report["caveat"] == "other work on the machine disturbed 2 of the 2 deciding rounds"
    assert "2 interleaved rounds, all disturbed by other work" in report["against the seed"]
    assert "left out" not in report


def test_a_race_of_disturbed_rounds_is_decided_with_a_caveat(tabular):
    study = tabular({0: busy(0.5), 1: busy(0.25)}, measure=ONLY_RACES)

    finding = study.run()

    (race,) = finding.races
    assert race.comparison.verdict is Verdict.FAST
    assert race.comparison.disturbed_count == race.comparison.round_count == 4
    assert finding.winner == 1
    assert "compared: trial 1 against trial 0: 2.00x better" in study.said.getvalue()
    assert "4 interleaved rounds, all disturbed by other work" in study.said.getvalue()


def test_a_seed_that_fails_in_the_final_was_launched_again(tabular):
    lost = InTurn((Takes(step_time_s=0.5), Fails(kind=FailureKind.INFRASTRUCTURE)))
    measure = replace(ONLY_RACES, race_rounds=0, confirm_rounds=4)
    study = tabular({0: lost, 1: Takes(step_time_s=0.25)}, measure=measure)

    report = report_of(study, study.run())

    assert report["against the seed"] == (
        "not compared, no launch of the seed in the final was measured"
    )


@pytest.mark.parametrize("launches", [4, 5, 9, 12, 14, 17])
def test_an_interruption_on_a_disturbed_machine_changes_nothing(tabular, launches):
    def ending(step_time_s, *conditions):
        takes = [Takes(step_time_s=step_time_s, noise=0.02, conditions=c) for c in conditions]
        return InTurn(tuple(takes))

    endings = {
        0: ending(0.5, QUIET, BUSY, QUIET, QUIET, BUSY, QUIET),
        1: ending(0.4, BUSY, BUSY, BUSY, QUIET),
        2: ending(0.3, QUIET, QUIET, QUIET, BUSY, QUIET, QUIET, BUSY),
    }
    measure = replace(ONLY_RACES, confirm_top=2, confirm_rounds=3, max_confirm_rounds=4)
    whole, study = tabular(endings, measure=measure), tabular(endings, measure=measure)
    expected = whole.run()
    assert len(whole.launched) > 20
    evaluator = study.evaluator

    study.evaluator = CutShort(evaluator, launches)
    with pytest.raises(KeyboardInterrupt):
        study.run()
    study.evaluator = evaluator

    assert study.run() == expected
    assert study.launched == whole.launched


@pytest.mark.parametrize(
    ("fresh_s", "rounds_raced", "winner"), [(0.25, 2, 1), (0.7, 1, 0)], ids=["ahead", "behind"]
)
def test_a_trial_slowed_by_a_load_that_the_leader_was_spared_is_raced(
    tabular, fresh_s, rounds_raced, winner
):
    slowed = Takes(step_time_s=0.9, conditions=BUSY)
    endings = {
        0: Takes(step_time_s=0.5, conditions=QUIET),
        1: InTurn((slowed, Takes(step_time_s=fresh_s, conditions=QUIET))),
    }
    study = tabular(endings, measure=ONLY_RACES)

    finding = study.run()

    assert finding.winner == winner
    assert [race.comparison.round_count for race in finding.races] == [rounds_raced]


def test_a_trial_that_was_slower_under_the_same_load_is_not_raced(tabular):
    study = tabular({0: busy(0.5), 1: busy(0.9)}, measure=ONLY_RACES)

    assert study.run().races == ()


def test_a_disturbed_launch_is_not_called_clearly_slower():
    measurement = replace(testing.measured().measurement, stopped="slower", conditions=BUSY)

    assert measurement.caveats == (
        "stopped early, slower than the best, while other work disturbed it",
    )


@pytest.mark.parametrize("order", [*permutations((0.07, 0.03, 0.05))])
def test_exact_times_are_told_apart_by_default_although_the_final_is_disturbed(tabular, order):
    endings = {n: Takes(step_time_s=s, conditions=QUIET) for n, s in enumerate(order)}
    # The first seven are its trial, the self-test and a race.
    final = (Takes(step_time_s=order[0], conditions=BUSY),) * 9
    endings[0] = InTurn((endings[0],) * 7 + final)
    study = tabular(endings, measure=Measure(together="never"), budget=Budget(trials=3))

    finding = study.run()

    assert order[finding.winner] == 0.03
    assert finding.confirming.count >= Measure().confirm_rounds
    assert finding.ties == ()
    assert finding.winner == 0 or finding.against_seed.verdict is Verdict.FAST


def test_a_study_that_is_resumed_may_launch_a_whole_final_again(tabular):
    measure = replace(Measure(), race_rounds=0, together="never", profiled_steps=0)
    endings = {0: busy(0.09), 1: busy(0.07), 2: busy(0.03)}
    study = tabular(endings, measure=measure, budget=Budget(trials=2))
    study.run()
    study.budget = extend_budget(study.study_id, 1, study.store).budget

    finding = study.run()

    assert finding.winner == 2
    assert finding.against_seed.verdict is Verdict.FAST
    assert finding.ties == ()


def test_a_resumed_study_never_has_fewer_launches_than_it_would_have_had_as_one(tabular):
    study = tabular({0: busy(0.1), 1: busy(0.2)}, measure=ONLY_RACES, budget=Budget(trials=2))
    study.run()

    first = extend_budget(study.study_id, 1, study.store).budget
    second = extend_budget(study.study_id, 1, study.store).budget

    assert first.launch_limit >= Budget(trials=3).launch_limit
    assert second.launch_limit >= first.launch_limit
