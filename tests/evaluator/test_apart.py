"""Launches of today against those of another day: what they show, and when they show nothing."""

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.timing.apart import compare_apart
from evaluator.timing.paired import Rule
from evaluator.timing.verdict import Verdict

RULE = Rule(margin=0.10, min_rounds=3, max_rounds=12)
CALM = (1.0, 1.01, 0.99, 1.005)


def launches(centre, count, *, sd=0.01, seed=0):
    draw = Random(seed)
    return [centre * math.exp(draw.gauss(0, sd)) for _ in range(count)]


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(1.0, Verdict.SAME), (1.5, Verdict.SLOW), (0.6, Verdict.FAST)]
)
def test_a_difference_is_judged_by_the_margin(ratio, verdict):
    found = compare_apart(launches(ratio, 8), launches(1.0, 6, seed=1), RULE)

    assert found.verdict is verdict
    assert found.ratio_low < ratio < found.ratio_high
    assert found.ratio == pytest.approx(ratio, rel=0.02)


def test_a_side_of_one_launch_is_judged_by_the_noise_of_others():
    alone = compare_apart((1.0, 1.01, 0.99), (1.0,), RULE)
    known = compare_apart((1.0, 1.01, 0.99), (1.0,), RULE, alike=[launches(3.0, 20)])

    assert known.verdict is Verdict.SAME
    assert known.ratio_high < alone.ratio_high


def test_sides_that_are_noisier_than_others_do_not_borrow_their_calm():
    wild = (0.6, 1.0, 1.6, 0.8)

    found = compare_apart(wild, CALM, RULE, alike=[launches(1.0, 50)])

    assert found.verdict is Verdict.UNDECIDED
    assert found.reason == "interval_too_wide"


def test_all_rounds_of_the_rule_are_the_last():
    found = compare_apart((0.6, 1.0, 1.6) * 4, CALM, RULE)

    assert (found.verdict, found.reason) == (Verdict.UNDECIDED, "budget_exhausted")


@pytest.mark.parametrize(
    ("now", "then", "verdict", "reason"),
    [
        ((), CALM, Verdict.UNKNOWN, "no_samples"),
        (CALM, (), Verdict.UNKNOWN, "no_samples"),
        ((1.0, 0.0, 1.0), CALM, Verdict.UNKNOWN, "bad_time"),
        ((1.0, math.inf, 1.0), CALM, Verdict.UNKNOWN, "bad_time"),
        ((1.0, math.nan, 1.0), CALM, Verdict.UNKNOWN, "bad_time"),
        (CALM[:2], CALM, Verdict.UNDECIDED, "too_few_rounds"),
    ],
)
def test_what_cannot_be_judged_says_why(now, then, verdict, reason):
    found = compare_apart(now, then, RULE)

    assert (found.verdict, found.reason) == (verdict, reason)
    assert found.ratio_low is None


def test_one_launch_on_both_days_knows_no_noise():
    found = compare_apart((1.0,), (1.0,), Rule(min_rounds=1))

    assert (found.verdict, found.reason) == (Verdict.UNDECIDED, "too_few_rounds")


@given(
    st.lists(st.floats(1e-300, 1e300), min_size=3, max_size=8),
    st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=8),
)
@settings(deadline=None, max_examples=50)
def test_any_positive_values_give_a_verdict_that_fits_its_interval(now, then):
    found = compare_apart(now, then, RULE)

    low, high = found.ratio_low, found.ratio_high
    if found.verdict is Verdict.SAME:
        assert 1 / 1.11 < low <= high < 1.11
    if found.verdict is Verdict.SLOW:
        assert low is None or low > 1.1
    if found.verdict is Verdict.FAST:
        assert high is None or high < 1 / 1.1


def test_equal_days_are_seldom_called_different():
    wrong = sum(
        compare_apart(
            launches(1.0, 6, sd=0.2, seed=n), launches(1.0, 6, sd=0.2, seed=1000 + n), RULE
        ).verdict
        in (Verdict.FAST, Verdict.SLOW)
        for n in range(200)
    )

    assert wrong <= 10
