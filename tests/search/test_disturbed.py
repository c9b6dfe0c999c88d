"""Rounds that something else on the machine disturbed are run again, a few times, and left out."""

from dataclasses import replace

import pytest

from evaluator.conditions import conditions_between, take_snapshot
from evaluator.testing import InTurn, Takes
from records import testing
from records.study import Measure
from records.trial import Failed, FailureKind, Purpose, Repeat, Stage
from search.disturbed import MOST_RUN_AGAIN, counted
from search.report import Record, report_lines

NOW = take_snapshot()
QUIET = replace(conditions_between(NOW, NOW), others_cpu_share=0.0, steal_share=0.0, gpus=())
BUSY = replace(QUIET, others_cpu_share=0.9)
ONLY_RACES = Measure(
    infrastructure_retries=0,
    profiled_steps=0,
    self_test_rounds=0,
    confirm_rounds=0,
    together="never",
)


def launch(number, ordinal, conditions, *, purpose=Purpose.RACE, series=2):
    outcome = testing.measured()
    measurement = replace(outcome.measurement, conditions=conditions)
    outcome = replace(outcome, measurement=measurement)
    return Repeat(series=series, round=number, ordinal=ordinal, outcome=outcome, purpose=purpose)


def rounds(launches):
    return sorted({repeat.round for repeat in launches})


def test_a_round_is_left_out_whole_when_one_of_its_launches_was_disturbed():
    launches = [launch(0, 0, QUIET), launch(0, 1, BUSY), launch(1, 0, QUIET), launch(1, 1, QUIET)]

    assert rounds(counted(launches)) == [1]


def test_on_a_machine_that_is_always_disturbed_later_rounds_count():
    launches = [launch(number, ordinal, BUSY) for number in range(6) for ordinal in (0, 1)]

    assert rounds(counted(launches)) == [2, 3, 4, 5]
    assert MOST_RUN_AGAIN == 2


def test_every_contest_has_its_own_allowance():
    races = [launch(number, 0, BUSY, series=series) for series in (2, 3) for number in range(3)]
    confirmed = [launch(number, 0, BUSY, purpose=Purpose.CONFIRM) for number in range(3)]

    kept = counted([*races, *confirmed])

    assert [(r.series, r.purpose, r.round) for r in kept] == [
        (2, Purpose.RACE, 2),
        (3, Purpose.RACE, 2),
        (2, Purpose.CONFIRM, 2),
    ]


def test_a_self_test_shows_the_noise_as_it_is():
    launches = [launch(number, 0, BUSY, purpose=Purpose.SELF_TEST) for number in (0, 1)]

    assert counted(launches) == tuple(launches)


@pytest.mark.parametrize("conditions", [None, QUIET], ids=["unwatched", "quiet"])
def test_nothing_is_left_out_without_a_sign_of_disturbance(conditions):
    launches = [launch(0, 0, conditions), launch(0, 1, conditions)]

    assert counted(launches) == tuple(launches)


def test_a_round_with_a_failure_counts_although_it_was_disturbed():
    failed = Failed(stage=Stage.LAUNCH, kind=FailureKind.CRASH, message="it crashed")
    broken = replace(launch(0, 1, QUIET), outcome=failed)

    assert counted([launch(0, 0, BUSY), broken]) == (launch(0, 0, BUSY), broken)


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

    lines = dict(report_lines(finding, Record.of(study.study_id, study.store), ""))
    assert lines["disturbed"].startswith("1 of 8 launches, the last because other processes used")
    assert lines["left out"] == "rounds in which a launch was disturbed, run again: 1"
