"""The spread of repeated launches: their median, and an interval when there is more than one."""

import pytest
from scipy import stats

from evaluator.timing.spread import spread


def test_the_spread_of_launches_is_their_median_and_the_interval_of_their_mean():
    launches = [1.0, 1.1, 1.3, 1.2]
    interval = stats.ttest_1samp(launches, 0.0).confidence_interval(0.95)
    around = spread(launches)
    assert around.centre == pytest.approx(1.15)
    assert around.low == pytest.approx(interval.low)
    assert around.high == pytest.approx(interval.high)
    assert around.launch_count == 4


def test_one_launch_has_no_known_spread():
    around = spread([2.0])
    assert (around.centre, around.low, around.high, around.launch_count) == (2.0, None, None, 1)


def test_no_launches_have_no_centre():
    with pytest.raises(ValueError, match="no launches"):
        spread([])


def test_an_interval_of_positive_values_does_not_reach_below_zero():
    assert spread([1.0, 2.0, 9.0]).low == 0.0
    assert spread([-1.0, 2.0, 9.0]).low < 0
