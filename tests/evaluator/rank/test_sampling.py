"""How many steps a launch times: the rule, and real launches of two ranks."""

from dataclasses import replace
from itertools import accumulate
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evaluator.evaluate import TrialEvaluator
from evaluator.rank.job import Measure
from evaluator.rank.protocol import Stop, next_block, reason_to_stop
from evaluator.recipes.builtin import BuiltinRecipe
from records.trial import Config, Failed, FailureKind, Measured
from tests.evaluator.conftest import OtherEntry

TIMES_S = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=40)


def measure(least=5, most=20, precision=0.03, stop_above_s=None) -> Measure:
    return Measure(
        warmup_steps=0,
        timed_steps=least,
        profiled_steps=0,
        max_timed_steps=most,
        step_precision=precision,
        stop_above_s=stop_above_s,
    )


MEASURES = st.builds(
    measure,
    st.integers(1, 30),
    st.integers(1, 60),
    st.floats(1e-6, 1.0),
    st.none() | st.floats(1e-6, 1e3),
)


def blocks(asked: Measure) -> list[int]:
    counts, timed = [], 0
    while timed < asked.most_timed_steps:
        counts.append(next_block(asked, timed))
        timed += counts[-1]
    return counts


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (measure(), [5, 5, 5, 5]),
        (measure(stop_above_s=1.0), [3, 2, 5, 5, 5]),
        (measure(least=8, most=17, stop_above_s=1.0), [3, 3, 2, 5, 4]),
        (measure(least=8, most=8, stop_above_s=1.0), [3, 3, 2]),
        (measure(least=12, most=14), [12, 2]),
    ],
)
def test_looks_are_few_and_early_ones_only_where_a_slow_launch_may_stop(asked, expected):
    assert blocks(asked) == expected


@given(MEASURES)
def test_blocks_lead_through_the_least_number_of_steps_to_the_most(asked):
    looks = list(accumulate(blocks(asked)))

    assert looks[-1] == asked.most_timed_steps
    assert asked.timed_steps in looks


@pytest.mark.parametrize(
    ("times_s", "reason"),
    [
        ([1.0] * 5, None),  # the whole range of five is a 94 % interval only
        ([1.0] * 6, Stop.PRECISE),
        ([1.0, 1.02, 1.04, 1.06, 1.03, 1.03], Stop.PRECISE),
        ([1.0, 1.02, 1.04, 1.07, 1.03, 1.03], None),
        ([1.0] * 8 + [2.0], Stop.PRECISE),  # one of nine on each side is outside
        ([1.0] * 7 + [2.0], None),
        ([1.0, 2.0] * 10, Stop.MOST_STEPS),
        ([1.0] * 20, Stop.PRECISE),
    ],
)
def test_a_launch_stops_when_its_median_is_known(times_s, reason):
    assert reason_to_stop(measure(), times_s) is reason


RACE, FIXED_RACE = measure(stop_above_s=1.5), measure(least=10, most=10, stop_above_s=1.5)


@pytest.mark.parametrize(
    ("asked", "times_s", "reason"),
    [
        (RACE, [2.0] * 2, None),
        (RACE, [2.0] * 3, Stop.SLOWER),
        (RACE, [2.0, 2.0, 1.5], None),  # one is not above it
        (RACE, [2.0] * 8 + [1.0], Stop.SLOWER),
        (RACE, [2.0] * 7 + [1.0] * 2, None),
        (RACE, [2.0] * 20, Stop.SLOWER),
        (RACE, [1.0] * 6, Stop.PRECISE),
        (FIXED_RACE, [2.0] * 3, Stop.SLOWER),
        (FIXED_RACE, [1.0, 2.0] * 4, None),
        (FIXED_RACE, [1.0, 2.0] * 5, Stop.MOST_STEPS),
    ],
)
def test_a_launch_stops_as_soon_as_it_is_clearly_slower(asked, times_s, reason):
    assert reason_to_stop(asked, times_s) is reason


@given(MEASURES, TIMES_S, st.randoms(use_true_random=False), st.integers(-10, 10))
def test_a_launch_goes_on_only_below_the_most_steps_whatever_their_order_and_unit(
    asked, times_s, random, exponent
):
    unit, limit_s = 2.0**exponent, asked.stop_above_s
    in_unit = measure(
        asked.timed_steps, asked.max_timed_steps, asked.step_precision, limit_s and limit_s * unit
    )

    reason = reason_to_stop(asked, times_s)

    assert (reason is None) <= (len(times_s) < asked.most_timed_steps)
    assert (reason is Stop.PRECISE) <= (len(times_s) >= asked.timed_steps)
    assert (reason is Stop.SLOWER) <= (limit_s is not None and len(times_s) >= 3)
    assert reason_to_stop(asked, random.sample(times_s, len(times_s))) is reason
    assert reason_to_stop(in_unit, [time_s * unit for time_s in times_s]) is reason


@pytest.mark.parametrize("count", [*range(6, 40), 200])
def test_the_interval_of_the_median_is_the_narrowest_that_is_sure_enough(count):
    """Of steps that take 1, 2, 3... seconds the lower end of the interval is the number of one."""
    times_s = [float(number) for number in range(1, count + 1)]
    beyond = [
        number
        for number in range(1, count + 1)
        if reason_to_stop(measure(most=count, stop_above_s=number - 0.5), times_s) is Stop.SLOWER
    ]

    outside = max(beyond) - 1

    assert stats.binom.cdf(outside, count, 0.5) <= 0.025
    assert stats.binom.cdf(outside + 1, count, 0.5) > 0.025


def test_a_slow_verdict_on_equal_steps_is_rare():
    random = Random(7)
    asked = measure(least=20, most=20, stop_above_s=1.0)
    launches = [[random.lognormvariate(0, 0.1) for _ in range(20)] for _ in range(2000)]

    slower = sum(reason_to_stop(asked, times_s) is Stop.SLOWER for times_s in launches)

    assert slower <= 0.025 * 2000


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
        ({"max_timed_steps": 12, "step_precision": NEVER_PRECISE}, "most_steps", 12),
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
    assert outcome.measurement.stopped == "slower"
    assert len(outcome.measurement.losses) == 1 + 3
    (caveat,) = outcome.measurement.caveats
    assert caveat.startswith("stopped early")  # and that it was disturbed, where it was
    assert outcome.breakdown is None
    assert outcome.metric("step_time") > 0
    assert outcome.metric("communication_fraction") is None
    assert not list(tmp_path.glob("*trace*"))


def test_a_launch_that_knows_its_median_is_still_profiled(evaluated, tmp_path):
    outcome = evaluated(profiled_steps=1, max_timed_steps=12, step_precision=ALWAYS_PRECISE)

    assert outcome.measurement.stopped == "precise"
    assert [len(steps) for steps in outcome.measurement.step_times_s] == [10] * 2
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
