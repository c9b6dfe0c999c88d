"""Launches of today against those of another day: what they show, and when they show nothing."""

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.timing.decision import DecisionRule, compare_unpaired

RULE = DecisionRule(min_rounds=3, max_rounds=12)
CALM = (1.0, 1.01, 0.99, 1.005)


def launches(centre, count, *, sd=0.01, seed=0):
    draw = Random(seed)
    return [centre * math.exp(draw.gauss(0, sd)) for _ in range(count)]


@pytest.mark.parametrize("ratio", [1.0, 1.5, 0.6])
def test_a_difference_is_told_with_the_interval_of_today(ratio):
    found = compare_unpaired(launches(ratio, 8), launches(1.0, 6, seed=1), RULE)

    assert found.ratio == pytest.approx(ratio, rel=0.02)
    assert ratio / 1.05 < found.ratio_low < found.ratio < found.ratio_high < ratio * 1.05
    assert 1 < found.recorded_high < 1.05


def test_a_side_of_one_launch_is_judged_by_the_noise_of_others():
    alone = compare_unpaired((1.0, 1.01, 0.99), (1.0,), RULE)
    known = compare_unpaired((1.0, 1.01, 0.99), (1.0,), RULE, alike=[launches(3.0, 20)])

    assert known.recorded_high < alone.recorded_high


def test_sides_that_are_noisier_than_others_do_not_borrow_their_calm():
    wild, others = (0.6, 1.0, 1.6, 0.8), [launches(1.0, 50)]

    calm = compare_unpaired(CALM, CALM, RULE, alike=others)
    today = compare_unpaired(wild, CALM, RULE, alike=others)
    record = compare_unpaired(CALM, wild, RULE, alike=others)

    assert today.ratio_high > 1.4
    assert record.recorded_high > 1.4
    assert today.recorded_high == calm.recorded_high


@pytest.mark.parametrize(
    ("now", "then", "reason"),
    [
        ((), CALM, "no_samples"),
        (CALM, (), "no_samples"),
        ((1.0, 0.0, 1.0), CALM, "bad_time"),
        ((1.0, math.inf, 1.0), CALM, "bad_time"),
        ((1.0, math.nan, 1.0), CALM, "bad_time"),
        (CALM[:2], CALM, "too_few_rounds"),
        ((1.0,), (1.0,), "too_few_rounds"),
    ],
)
def test_what_cannot_be_judged_says_why(now, then, reason):
    found = compare_unpaired(now, then, RULE)

    assert found.reason == reason
    assert found.ratio_low is None
    assert found.recorded_high is None


@given(
    st.lists(st.floats(1e-300, 1e300), min_size=3, max_size=8),
    st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=8),
)
@settings(deadline=None, max_examples=50)
def test_any_positive_values_give_an_interval_around_their_ratio(now, then):
    found = compare_unpaired(now, then, RULE)

    if None not in (found.ratio, found.ratio_low, found.ratio_high, found.recorded_high):
        assert found.ratio_low <= found.ratio <= found.ratio_high
        assert found.recorded_high >= 1


def test_equal_days_are_seldom_called_different():
    def differs(seed):
        now, then = launches(1.0, 6, sd=0.2, seed=seed), launches(1.0, 6, sd=0.2, seed=1000 + seed)
        found = compare_unpaired(now, then, RULE)
        return found.ratio_low > found.recorded_high

    assert sum(map(differs, range(200))) <= 10
