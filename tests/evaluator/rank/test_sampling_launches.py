"""Real launches of two ranks that decide by themselves how many steps they time."""

from dataclasses import replace

import pytest

from evaluator.evaluate import TrialEvaluator
from evaluator.recipes.builtin import BuiltinRecipe
from records.trial import Config, Failed, FailureKind, Measured
from tests.evaluator.conftest import OtherEntry

CONFIG = Config({"dp_replicate": 2})
ALWAYS_PRECISE, NEVER_PRECISE = 1e9, 1e-9
ALWAYS_SLOWER_S, NEVER_SLOWER_S = 1e-9, 1e9


@pytest.fixture
def evaluated(study, launcher, tmp_path):
    """Launches the small study, or what differs from it, with these numbers of steps."""

    def evaluate(recipe=None, *, profiled_steps=0, **measure):
        asked = replace(study.measure, profiled_steps=profiled_steps, **measure)
        evaluator = TrialEvaluator(recipe or BuiltinRecipe(), launcher, lambda _: None)
        return evaluator.evaluate(replace(study, measure=asked), CONFIG, tmp_path)

    return evaluate


@pytest.mark.parametrize(
    ("measure", "stopped", "step_count"),
    [
        ({"max_timed_steps": 12, "step_precision": ALWAYS_PRECISE}, "precise", 10),
        ({"max_timed_steps": 12, "step_precision": NEVER_PRECISE}, "most_steps", 12),
        ({"max_timed_steps": 12, "stop_above_s": ALWAYS_SLOWER_S}, "slower", 3),
        ({"stop_above_s": NEVER_SLOWER_S, "step_precision": NEVER_PRECISE}, "most_steps", 5),
        ({"max_timed_steps": 5}, None, 5),
    ],
)
def test_a_launch_times_the_steps_that_it_needs(evaluated, measure, stopped, step_count):
    outcome = evaluated(**measure)

    assert isinstance(outcome, Measured), outcome
    measurement = outcome.measurement
    assert measurement.stopped == stopped
    assert [len(steps) for steps in measurement.step_times_s] == [step_count] * 2
    assert len(measurement.losses) == 1 + step_count


def test_a_launch_that_is_slower_leaves_no_trace_and_needs_none(evaluated, tmp_path):
    outcome = evaluated(profiled_steps=1, stop_above_s=ALWAYS_SLOWER_S)

    assert isinstance(outcome, Measured), outcome
    (caveat,) = outcome.measurement.caveats
    assert caveat.startswith("stopped early")  # and that it was disturbed, where it was
    assert outcome.breakdown is None
    assert outcome.metric("step_time") > 0
    assert outcome.metric("communication_fraction") is None
    assert not list(tmp_path.glob("*trace*"))


def test_a_launch_that_knows_its_median_is_still_profiled(evaluated, tmp_path):
    outcome = evaluated(profiled_steps=1, max_timed_steps=12, step_precision=ALWAYS_PRECISE)

    assert outcome.measurement.stopped == "precise"
    assert outcome.breakdown is not None
    assert len(list(tmp_path.glob("rank*_trace.json"))) == 2


def test_all_ranks_judge_by_the_slowest_of_them(evaluated):
    """Rank 0 alone would never stop: its own steps last no time."""
    recipe = OtherEntry("work_entries:one_slow_rank")

    outcome = evaluated(recipe, max_timed_steps=12, stop_above_s=0.005)

    assert outcome.measurement.stopped == "slower"
    assert [len(steps) for steps in outcome.measurement.step_times_s] == [3, 3]


def test_a_rank_that_hangs_between_looks_is_found_by_its_step(evaluated):
    """Its peer waits for it outside of any step, for the times of a block."""
    recipe = OtherEntry("bad_entries:misbehave", what="sleep", rank=1, step=3)

    failed = evaluated(recipe, hang_after_s=1, stop_above_s=NEVER_SLOWER_S)

    assert isinstance(failed, Failed)
    assert failed.kind is FailureKind.HANG
