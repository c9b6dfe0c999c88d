"""The spread of repeated launches: their median, and its interval from three launches on."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from evaluator.timing.decision import spread

TIMES = st.lists(st.floats(1e-9, 1e9), min_size=3, max_size=30)


@given(values=TIMES | st.lists(st.floats(-1e9, 1e9), min_size=3, max_size=30))
@example(values=[1.0] * 16 + [2.0] * 8)
@example(values=[0.1, 0.1, 0.1])
def test_the_median_lies_within_its_interval(values):
    around = spread(values)
    if around.low is not None and around.high is not None:
        assert around.low <= around.centre <= around.high
        assert around.low > 0 or min(values) <= 0


def test_three_to_five_launches_have_the_t_interval_of_their_mean_logarithm():
    launches = [1.0, 1.1, 1.3, 1.2]
    logs = [math.log(value) for value in launches]
    interval = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
    around = spread(launches)
    assert around.centre == pytest.approx(1.15)
    assert around.low == pytest.approx(math.exp(interval.low))
    assert around.high == pytest.approx(math.exp(interval.high))
    assert (around.launch_count, around.values) == (4, (1.0, 1.1, 1.3, 1.2))


def test_values_that_are_not_all_positive_have_the_t_interval_of_their_mean():
    interval = stats.ttest_1samp([-1.0, 2.0, 9.0], 0.0).confidence_interval(0.95)
    around = spread([-1.0, 2.0, 9.0])
    assert (around.low, around.high) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize(
    ("count", "ends"), [(6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (12, (3, 10)), (100, (40, 61))]
)
def test_from_six_launches_on_their_order_gives_the_interval(count, ends):
    around = spread([float(value) for value in range(1, count + 1)])
    assert (around.low, around.high) == ends
    assert stats.binom.cdf(ends[0] - 1, count, 0.5) < 0.025


@pytest.mark.parametrize("values", [(2.0,), (1.08, 1.29)])
def test_one_and_two_launches_have_their_values_and_no_interval(values):
    around = spread(values)
    assert (around.low, around.high) == (None, None)
    assert (around.launch_count, around.values) == (len(values), values)


@pytest.mark.parametrize(
    "values", [(1e-300, 1.0, 1e300), (5e-324, 5e-324, 1e9), (5e-324, 1e9, 1e9)]
)
def test_launches_that_differ_beyond_reason_have_no_interval(values):
    assert spread(values).high is None
    with pytest.raises(ValueError, match="no launches"):
        spread(())
