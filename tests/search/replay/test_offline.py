"""Searches without a model, replayed from their records."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from records.store.store import Store
from records.study import Context
from records.trial import FailureKind
from search.replay.rerun import recorded_study, replay_study
from search.replay.scores import compare_replay
from search.strategies.catalog import CHOOSERS
from tests.support import records as testing
from tests.support.evaluator import Fails, InTurn, Takes

pytestmark = pytest.mark.usefixtures("unjailed")
LOST = Fails(kind=FailureKind.INFRASTRUCTURE, message="node lost")
FULL = Fails(kind=FailureKind.OUT_OF_MEMORY)


class Interrupted:
    """Ctrl-C is pressed during the launch."""

    def outcome(self, *_):
        raise KeyboardInterrupt


def takes(step_time_s):
    return Takes(step_time_s=step_time_s, noise=0.02)


def table(*endings):
    return {n: takes(e) if isinstance(e, float) else e for n, e in enumerate(endings)}


def differences(study):
    checks = study.checks()
    return [trial.differs for trial in checks.trials if trial.differs], checks.finding


SAME = ([], ())
THOROUGH = {"self_test_rounds": 1, "race_rounds": 2, "confirm_top": 3, "max_confirm_rounds": 2}


@pytest.mark.parametrize("strategy", CHOOSERS)
def test_every_offline_strategy_takes_the_same_course_again(record, strategy):
    study = record(table(0.5, 0.3, FULL, 0.2), strategy=strategy, measure=THOROUGH)

    study.run()

    assert differences(study) == SAME


def test_launches_that_took_turns_are_told_from_those_that_did_not(record):
    study = record(table(0.5, 0.4), measure={**THOROUGH, "together": "never"})

    study.run()

    assert differences(study) == SAME


def test_failures_of_the_infrastructure_are_retried_as_they_were(record):
    endings = table(0.5, InTurn((LOST, takes(0.4))), InTurn((LOST,) * 2 + (takes(0.3),)))
    study = record(endings)

    study.run()

    assert differences(study) == SAME
    assert [trial.attempts for trial in history(study)][:3] == [1, 2, 2]


def test_a_study_that_was_interrupted_and_resumed_takes_the_same_course(record):
    stopped = InTurn((Interrupted(), takes(0.4)))
    study = record(table(0.5, stopped, 0.3))

    with pytest.raises(KeyboardInterrupt):
        study.run()
    study.run()

    assert differences(study) == SAME


def test_a_study_that_was_interrupted_is_the_same_as_far_as_its_record_goes(record):
    study = record(table(0.5, 0.4, Interrupted()))

    with pytest.raises(KeyboardInterrupt):
        study.run()

    checks = study.checks()
    assert [(trial.ordinal, trial.differs) for trial in checks.trials] == [
        (0, ()),
        (1, ()),
        (2, ()),
    ]


def test_a_study_that_was_interrupted_while_it_confirmed_ends_there_again(record):
    stopped = InTurn((*[takes(0.4)] * 2, Interrupted(), takes(0.4)))
    study = record(table(0.5, stopped), measure={"together": "never", "confirm_rounds": 2})

    with pytest.raises(KeyboardInterrupt):
        study.run()
    before = differences(study)
    study.extend(2)
    study.run()

    assert (before, differences(study)) == (SAME, SAME)


def test_a_study_that_was_extended_twice_takes_the_same_course(record):
    study = record(table(0.5, 0.4, 0.3, 0.2, 0.1), budget={"trials": 2})

    study.run()
    study.extend(1)
    study.run()
    study.extend(1)
    study.run()

    assert differences(study) == SAME


def test_runs_that_an_older_version_did_not_note_are_told_from_what_closed_them(record):
    study = record(table(0.5, 0.4, 0.3), budget={"trials": 2})
    study.run()
    study.extend(1)
    study.run()

    changed(study, "delete from runs")

    assert differences(study) == SAME


def test_a_time_limit_is_reached_where_it_was(record):
    study = record(
        table(0.5, 0.4, 0.3), budget={"max_wall_s": 60.0}, clock=iter([0, 1, 2, 61]).__next__
    )

    finding = study.run()

    assert finding.stop_reason == "the time limit of 60 s is reached"
    assert differences(study) == SAME


def test_trials_that_were_measured_at_once_come_in_the_same_batches(record):
    endings = table(0.5, 0.4, FULL, 0.3, 0.2)
    study = record(endings, parallel=2, measure={"together": "never"})

    study.run()

    assert differences(study) == SAME


def test_a_batch_that_was_interrupted_goes_on_as_it_did(record):
    stopped = InTurn((Interrupted(), takes(0.4)))
    endings = table(0.5, stopped, 0.45, 0.3, 0.2)
    study = record(endings, parallel=2, measure={"together": "never"})

    with pytest.raises(KeyboardInterrupt):
        study.run()
    study.run()

    assert differences(study) == SAME


def test_launches_in_several_contexts_come_in_their_order(record):
    longer = replace(testing.WORKLOAD, sequence_length=256)
    contexts = (
        Context(name="longer", workload=longer, environment=testing.ENVIRONMENT),
        Context(name="unseen", workload=longer, environment=testing.ENVIRONMENT, held_out=True),
    )
    study = record(table(0.5, 0.3, 0.4), contexts=contexts)

    finding = study.run()

    assert differences(study) == SAME
    assert [each.name for each in finding.contexts] == ["example", "longer", "unseen"]


def test_a_strategy_that_chooses_otherwise_is_named_with_its_trial(record):
    study = record(table(0.5, 0.4, 0.3, 0.2))
    study.run()

    for name, column in (("studies", "study"), ("runs", "run")):
        other = f"replace({column}, '\"grid\"', '\"random\"')"
        changed(study, f"update {name} set {column} = {other}")

    with closing(Store(study.root)) as store:
        replay = replay_study(recorded_study(study.study_id, store), store)
        checks = compare_replay(recorded_study(study.study_id, store), replay.again)
    assert replay.stopped == "trial 1 launches what it did not launch before: n=3"
    assert checks.first.startswith("trial 1: policy, from line 1")
    assert checks.trials[2].differs == ("not proposed again",)


def test_a_changed_measurement_is_named(record):
    study = record(table(0.5, 0.4), measure={"confirm_rounds": 0})
    study.run()

    score = "json_set(trial, '$.score.value', 0.3, '$.score.cost', 0.3)"
    changed(study, f"update trials set trial = {score} where ordinal = 1")

    assert differences(study)[0] == [("score",)]


def history(study):
    with closing(Store(study.root)) as store:
        return store.history(study.study_id)


def changed(study, statement):
    with closing(sqlite3.connect(study.root / "cclsearch.db")) as database:
        database.execute(statement)
        database.commit()
