"""Studies on record as landscapes: what is pooled, what is left out, and why."""

from contextlib import closing
from dataclasses import replace

import pytest

from records.errors import StudyError
from records.store.store import Store
from records.study import Command, Context, Dimension, Launch, Origin
from records.trial import Config, FailureKind, Purpose, Repeat, Stage
from search.strategy_bench.landscape import Fault, Ground, study_landscape
from search.strategy_bench.run import landscapes_of
from tests.support import records as testing

STUDY = "20260101-000000-aaaa"
SCRIPT = {"launch": Launch(recipe="command"), "command": Command(run=("true",), rank_count="1")}


@pytest.fixture
def on_record(tmp_path):
    """Records trials of a study over `tp` and `overlap`; gives what is made of it."""

    def make(*trials, repeats=(), **changes):
        knobs = (
            Dimension(name="tp", choices=(1, 2, 4)),
            Dimension(name="overlap", choices=(True, False), when=changes.pop("when", "tp > 1")),
        )
        study = replace(testing.study(*knobs), **{**SCRIPT, **changes})
        with closing(Store(tmp_path / "store")) as store:
            store.add_study(STUDY, study, "test", trials, repeats)
            return study_landscape(store.find(STUDY), store)

    return make


def trial(ordinal, outcome, **knobs):
    return testing.trial(ordinal, outcome, knobs)


def again(ordinal, step_time_s, number):
    return Repeat(
        series=9,
        round=number,
        ordinal=ordinal,
        outcome=testing.measured(step_time_s),
        purpose=Purpose.CONFIRM,
    )


def samples(found):
    return {Config(entry.config): entry.samples for entry in found.landscape.entries}


def test_launches_of_one_configuration_are_pooled_with_those_that_repeated_it(on_record):
    found = on_record(
        trial(0, 2.0, tp=1),
        trial(1, 1.0, tp=4, overlap=True),
        trial(2, 2.2, tp=1),
        repeats=(again(1, 1.1, 0), again(0, 1.9, 1)),
    )

    assert samples(found) == {
        Config({"tp": 1}): (2.0, 2.2, 1.9),
        Config({"tp": 4, "overlap": True}): (1.0, 1.1),
    }
    assert found.words is None
    ground = Ground(found.landscape)
    assert (ground.seed, ground.best, ground.lower_is_better) == (Config({"tp": 1}), 1.05, True)


def test_what_says_nothing_of_a_configuration_is_left_out_and_counted(on_record):
    other = testing.measured(0.1)
    lighter = replace(other, measurement=replace(other.measurement, tokens_per_step=7))
    lost = testing.failed(FailureKind.INFRASTRUCTURE, message="node lost")
    twice = testing.failed(FailureKind.DUPLICATE, Stage.CHECK)
    wrong = testing.failed(FailureKind.POLICY_ERROR, Stage.DECIDE)

    found = on_record(
        trial(0, 2.0, tp=1),
        trial(1, lighter, tp=2, overlap=True),
        trial(2, lost, tp=4, overlap=True),
        trial(3, twice, tp=1),
        testing.trial(4, wrong),
        trial(5, 1.0, tp=3),
    )

    assert samples(found) == {Config({"tp": 1}): (2.0,)}
    assert found.words == (
        f"study-{STUDY}: 5 launches left out: 1 did other work per step, "
        "1 failed by their surroundings, 2 came to no launch, 1 are outside of the study's space"
    )


def test_a_configuration_fails_where_most_of_its_launches_did(on_record):
    full = testing.failed(FailureKind.OUT_OF_MEMORY, message="9 GiB needed")

    found = on_record(
        trial(0, 2.0, tp=1),
        trial(1, full, tp=1),
        trial(2, full, tp=2, overlap=True),
        trial(3, full, tp=4, overlap=True),
        trial(4, 1.0, tp=4, overlap=True),
        trial(5, full, tp=4, overlap=True),
    )

    failures = {Config(entry.config): entry.failure for entry in found.landscape.entries}
    broken = Fault(kind=FailureKind.OUT_OF_MEMORY, message="9 GiB needed")
    assert failures == {
        Config({"tp": 1}): None,
        Config({"tp": 2, "overlap": True}): broken,
        Config({"tp": 4, "overlap": True}): broken,
    }


def test_trials_that_break_a_limit_are_left_out(on_record):
    found = on_record(
        trial(0, 2.0, tp=1), trial(1, 1.0, tp=2, overlap=True), limits=("step_time > 1.5 s",)
    )

    assert samples(found) == {Config({"tp": 1}): (2.0,)}
    assert found.left_out == {"break a limit of the study": 1}


def test_knobs_that_did_nothing_or_that_few_have_are_left_out(on_record):
    origin = Origin(kind="jsonl", source="histories.jsonl", dead_knobs=("overlap",))

    found = on_record(
        trial(0, 2.0, tp=1, overlap=True),
        trial(1, 2.2, tp=1, overlap=False),
        trial(2, 1.0, tp=2, overlap=False),
        when=None,
        origin=origin,
    )

    assert samples(found) == {Config({"tp": 1}): (2.0, 2.2), Config({"tp": 2}): (1.0,)}
    assert [knob.name for knob in found.landscape.space.dimensions] == ["tp"]


def test_a_study_without_a_launch_or_with_several_contexts_makes_no_landscape(on_record, tmp_path):
    with pytest.raises(StudyError, match="no launch that a landscape could be made of"):
        on_record(trial(0, testing.failed(), tp=1))
    study = testing.study()
    context = Context(name="long", workload=study.workload, environment=study.environment)
    with closing(Store(tmp_path / "other")) as store:
        store.add_study(STUDY, replace(study, contexts=(context,)), "test", ())

        with pytest.raises(StudyError, match="has several contexts"):
            study_landscape(store.find(STUDY), store)


def test_strategies_are_compared_on_what_is_on_record(on_record, cclsearch, tmp_path):
    on_record(
        trial(0, 2.0, tp=1),
        trial(1, 1.0, tp=2, overlap=True),
        trial(2, 1.5, tp=2, overlap=False),
        trial(3, testing.failed(FailureKind.INFRASTRUCTURE), tp=4, overlap=True),
    )

    ended = cclsearch(
        "bench", "search", "study:2026", "--strategies", "grid,random", "--seeds", 2,
        "--trials", 3, "--store", tmp_path / "store",
    )  # fmt: skip

    assert ended.code == 0
    assert f"study-{STUDY}: 3 configurations, 3 measurable" in ended.out
    assert "1 launches left out: 1 failed by their surroundings" in ended.err


def test_a_study_that_there_is_not_is_refused(tmp_path, on_record):
    on_record(trial(0, 2.0, tp=1))

    with pytest.raises(StudyError, match="no study 'nope'"):
        landscapes_of(["study:nope"], tmp_path / "store")
