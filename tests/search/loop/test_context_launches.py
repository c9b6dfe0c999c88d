"""Launches in several contexts as one outcome: means, failures, limits and files."""

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.objective import scoring_of
from records.trial import Config, Failed, FailureKind, Measured
from search.loop.trial import ContextEvaluator, mean_outcome, other_work_anywhere, outcome_in
from tests.support import records as testing
from tests.support.evaluator import Fails, Takes

SECONDS = st.floats(1e-6, 1e6)
BOTH = Config({"n": 1, "big.n": 2})


def took(step_time_s: float, **fields: object) -> Measured:
    """A measured outcome of a launch that took so long."""
    return Takes(step_time_s=step_time_s, **fields).outcome(testing.study(), 0, Random(0))


@pytest.fixture
def launched(tmp_path, context, study_with):
    """Launches a joined configuration in contexts that end like this."""

    def launch(own, big):
        study = study_with(context("big", global_batch=32))
        tables = {"example": {1: own}, "big": {2: big}}
        return ContextEvaluator(_Tables(tables)).evaluate(study, BOTH, tmp_path)

    return launch


class _Tables:
    """Ends a launch as the table of its context says."""

    def __init__(self, endings):
        self._endings = endings

    def evaluate(self, study, config, workdir):
        (workdir / "rank0.log").write_text(study.name, encoding="utf-8")
        return self._endings[study.name][config["n"]].outcome(study, 0, Random(0))

    def evaluate_together(self, *_asked):
        return ()


@given(ours=st.lists(SECONDS, min_size=2, max_size=4), theirs=st.lists(SECONDS, min_size=4))
def test_the_ratio_of_two_trials_is_the_geometric_mean_of_their_ratios(ours, theirs):
    names = "abcd"[: len(ours)]
    mine = mean_outcome([(n, testing.measured(s)) for n, s in zip(names, ours, strict=True)])
    other = mean_outcome([(n, testing.measured(s)) for n, s in zip(names, theirs, strict=False)])

    ratio = mine.metric("step_time") / other.metric("step_time")

    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=False)]
    assert ratio == pytest.approx(math.exp(sum(logs) / len(logs)))


def test_everything_that_was_measured_is_kept(launched):
    outcome = launched(Takes(step_time_s=1.0), Takes(step_time_s=4.0))

    assert outcome.metric("step_time") == pytest.approx(2.0)
    assert [one.name for one in outcome.contexts] == ["example", "big"]
    assert outcome_in(outcome, "big").metric("step_time") == 4.0
    assert outcome.measurement == outcome_in(outcome, "example").measurement
    assert len(outcome.measurements) == 2


def test_each_context_does_its_own_work(launched):
    outcome = launched(Takes(step_time_s=1.0), Takes(step_time_s=4.0))

    tokens = [measurement.tokens_per_step for measurement in outcome.measurements]
    assert tokens == [16 * 128, 32 * 128]


def test_a_failure_names_its_context_and_keeps_what_was_measured_before(launched):
    outcome = launched(Takes(step_time_s=1.0), Fails(kind=FailureKind.OUT_OF_MEMORY))

    assert isinstance(outcome, Failed)
    assert str(outcome) == "out_of_memory: in context big: as the table says"
    assert outcome_in(outcome, "example").metric("step_time") == 1.0
    assert str(outcome_in(outcome, "big")) == "out_of_memory: as the table says"


def test_after_a_failure_nothing_more_is_launched(launched):
    outcome = launched(Fails(kind=FailureKind.CRASH), Takes(step_time_s=1.0))

    assert [one.name for one in outcome.contexts] == ["example"]


def test_files_lie_in_a_folder_for_each_other_context(launched, tmp_path):
    launched(Takes(step_time_s=1.0), Takes(step_time_s=4.0))

    assert (tmp_path / "rank0.log").read_text() == "example"
    assert (tmp_path / "contexts" / "big" / "rank0.log").read_text() == "big"


def test_a_metric_without_value_somewhere_has_no_mean_and_says_where():
    one, other = took(1.0), took(2.0)
    (time,) = [metric for metric in other.metrics if metric.name == "step_time"]
    zero = replace(other, metrics=(replace(time, value=0.0),), absent={"mfu": "no peak is known"})

    mean = mean_outcome([("example", one), ("big", zero)])

    assert mean.metric("step_time") is None
    assert mean.absent["step_time"].startswith("0 in context big")
    assert mean.absent["mfu"].startswith("in context example: ")


def test_other_work_in_any_context_is_a_failure(context, study_with):
    study = study_with(context("big"))
    first = mean_outcome([("example", took(1.0)), ("big", took(1.0))])
    wrong = mean_outcome([("example", took(1.0)), ("big", took(0.1, losses=(4.0, 9.0)))])

    difference = other_work_anywhere(wrong, first, study)

    assert other_work_anywhere(first, first, study) is None
    assert difference.kind is FailureKind.INVALID_CONFIG
    assert difference.message.startswith("in context big: computed something else")
    assert len(difference.contexts) == 2


def test_a_limit_has_to_hold_in_every_context(context, study_with):
    study = study_with(
        context("big"), limits=("step_time < 3.5 s", "step_time < 1.2 * step_time@seed")
    )
    seed = mean_outcome([("example", took(1.0)), ("big", took(3.0))])
    scoring = scoring_of(study).against([seed])
    outcome = mean_outcome([("example", took(0.1)), ("big", took(4.0))])

    broken = scoring.of(outcome).broken

    assert outcome.metric("step_time") < 1
    assert len(broken) == 2
    assert all(words.startswith("in context big: ") for words in broken)
    assert scoring.of(seed).broken == ()


def test_launches_in_several_contexts_do_not_take_turns(context, study_with):
    evaluator = ContextEvaluator(_Tables({}))

    assert evaluator.evaluate_together(study_with(), [], [], 0) == ()
    with pytest.raises(ValueError, match="cannot be interleaved"):
        evaluator.evaluate_together(study_with(context("big")), [], [], 0)
