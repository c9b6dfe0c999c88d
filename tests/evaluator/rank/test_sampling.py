from itertools import accumulate
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evaluator.rank.job import Measure
from evaluator.rank.protocol import Stop, next_block, reason_to_stop

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


@pytest.mark.parametrize("count", [*range(6, 40), 200, 500])
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
