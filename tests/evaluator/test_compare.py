"""A claim of faster needs evidence: without it, two are the same or it is undecided and why."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from evaluator.timing.compare import Verdict, compare, spread

FAST, SLOW, SAME, UNDECIDED = Verdict.FAST, Verdict.SLOW, Verdict.SAME, Verdict.UNDECIDED
ONES = [1.0, 1.0, 1.0, 1.0]
TIMES = st.lists(st.floats(1e-6, 1e6), min_size=8, max_size=8)


@pytest.mark.parametrize(
    ("candidate", "anchor", "verdict", "reason"),
    [
        # Half as long in every round: the interval is a point at 0.5.
        ([0.5] * 4, ONES, FAST, "interval_clears_margin"),
        ([2.0] * 4, ONES, SLOW, "interval_clears_margin"),
        (ONES, ONES, SAME, "interval_inside_margin"),
        # Rounds differ far more than the configurations do: pairing takes that out.
        ([0.5, 5.0, 50.0, 500.0], [1.0, 10.0, 100.0, 1000.0], FAST, "interval_clears_margin"),
        ([1.0, 10.0, 100.0, 1000.0], [1.0, 10.0, 100.0, 1000.0], SAME, "interval_inside_margin"),
        # One per cent is within the margin of two, and three per cent is not.
        ([0.99] * 4, ONES, SAME, "interval_inside_margin"),
        ([1.01] * 4, ONES, SAME, "interval_inside_margin"),
        ([0.97] * 4, ONES, FAST, "interval_clears_margin"),
        ([1.03] * 4, ONES, SLOW, "interval_clears_margin"),
        # Mean log ratio -0.0287, standard error 0.0059, t(3, 97.5 %) 3.182: [-0.047, -0.010].
        ([0.96, 0.97, 0.975, 0.98], ONES, UNDECIDED, "direction_known_size_unclear"),
        # Mean near zero, standard error 0.058: anything is possible.
        ([0.9, 1.1, 0.9, 1.1], ONES, UNDECIDED, "noise_exceeds_margin"),
        ([0.5, 0.5, 0.5, 5.0], ONES, UNDECIDED, "noise_exceeds_margin"),
        # Too few rounds, however clear they look.
        ([], [], UNDECIDED, "too_few_rounds"),
        ([0.5], [1.0], UNDECIDED, "too_few_rounds"),
        ([0.5] * 2, [1.0] * 2, UNDECIDED, "too_few_rounds"),
        ([0.5] * 3, [1.0] * 3, UNDECIDED, "too_few_rounds"),
        # What has no ratio.
        ([0.0, 0.5, 0.5, 0.5], ONES, UNDECIDED, "not_positive"),
        ([0.5, 0.5, 0.5, -0.5], ONES, UNDECIDED, "not_positive"),
        ([0.5] * 4, [1.0, 1.0, 0.0, 1.0], UNDECIDED, "not_positive"),
        ([0.5, 0.5, math.nan, 0.5], ONES, UNDECIDED, "not_positive"),
        ([0.5, 0.5, 0.5, 0.5], [1.0, math.inf, 1.0, 1.0], UNDECIDED, "not_positive"),
    ],
)
def test_the_verdict_and_its_reason(candidate, anchor, verdict, reason):
    comparison = compare(candidate, anchor)
    assert (comparison.verdict, comparison.reason) == (verdict, reason)
    assert comparison.round_count == len(candidate)


def test_the_interval_is_students_on_paired_log_ratios():
    candidate, anchor = [0.90, 0.96, 0.93, 0.97, 0.91], [1.00, 1.02, 0.98, 1.03, 0.99]
    logs = [math.log(c / a) for c, a in zip(candidate, anchor, strict=True)]
    interval = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
    comparison = compare(candidate, anchor)
    assert comparison.ratio == pytest.approx(math.exp(sum(logs) / 5))
    assert comparison.ratio_low == pytest.approx(math.exp(interval.low))
    assert comparison.ratio_high == pytest.approx(math.exp(interval.high))


def test_the_margin_is_the_users():
    candidate = [0.97, 0.975, 0.972, 0.973]
    assert compare(candidate, ONES, margin=0.01).verdict is FAST
    assert compare(candidate, ONES, margin=0.05).verdict is SAME


@pytest.mark.parametrize("rounds", [2, 3])
def test_few_rounds_show_their_ratio_but_decide_nothing(rounds):
    comparison = compare([0.5] * rounds, [1.0] * rounds)
    assert comparison.verdict is UNDECIDED
    assert comparison.ratio == pytest.approx(0.5)


@pytest.mark.parametrize(("candidate", "anchor"), [([], []), ([1.0], [1.0]), ([0.0] * 4, ONES)])
def test_without_a_ratio_there_is_none(candidate, anchor):
    comparison = compare(candidate, anchor)
    assert (comparison.ratio, comparison.ratio_low, comparison.ratio_high) == (None, None, None)


def test_rounds_that_do_not_pair_are_refused():
    with pytest.raises(ValueError, match="3 candidate rounds, 4 anchor rounds"):
        compare([1.0] * 3, ONES)


@given(TIMES)
@settings(deadline=None)
def test_a_configuration_is_never_faster_than_itself(times):
    assert compare(times, times).verdict is SAME


@given(TIMES, TIMES)
@settings(deadline=None)
def test_the_opposite_comparison_has_the_opposite_verdict(candidate, anchor):
    there, back = compare(candidate, anchor), compare(anchor, candidate)
    opposite = {FAST: SLOW, SLOW: FAST, SAME: SAME, UNDECIDED: UNDECIDED}
    assert back.verdict is opposite[there.verdict]
    assert back.ratio == pytest.approx(1 / there.ratio, rel=1e-6)


@given(TIMES, TIMES, st.integers(-20, 20))
@settings(deadline=None)
def test_the_unit_of_time_does_not_matter(candidate, anchor, power):
    scaled = compare([t * 2.0**power for t in candidate], [t * 2.0**power for t in anchor])
    plain = compare(candidate, anchor)
    assert scaled.verdict is plain.verdict
    assert scaled.ratio == pytest.approx(plain.ratio, rel=1e-6)


@given(TIMES, TIMES, st.permutations(range(8)))
@settings(deadline=None)
def test_the_order_of_the_rounds_does_not_matter(candidate, anchor, order):
    shuffled = compare([candidate[i] for i in order], [anchor[i] for i in order])
    assert shuffled.ratio == pytest.approx(compare(candidate, anchor).ratio, rel=1e-6)


@pytest.mark.parametrize("rounds", [4, 6])
@pytest.mark.parametrize("noise", [0.005, 0.024, 0.1])
def test_noise_alone_is_hardly_ever_called_a_difference(rounds, noise):
    random = np.random.default_rng(2026)
    comparisons = 1500
    machine = random.normal(0, 0.2, (comparisons, rounds, 1))
    launches = np.exp(machine + random.normal(0, noise, (comparisons, rounds, 2)))
    verdicts = [compare(pair[:, 0], pair[:, 1]).verdict for pair in launches]
    claims = sum(verdict in {FAST, SLOW} for verdict in verdicts)
    # At most one in twenty by the 95 % interval, and fewer because of the margin.
    assert claims <= 0.05 * comparisons
    assert verdicts.count(SAME) + verdicts.count(UNDECIDED) == comparisons - claims


def test_a_real_difference_beyond_the_noise_is_found():
    random = np.random.default_rng(2026)
    launches = np.exp(random.normal(0, 0.01, (300, 6, 2)))
    verdicts = [compare(0.9 * pair[:, 0], pair[:, 1]).verdict for pair in launches]
    assert verdicts.count(FAST) >= 290
    assert verdicts.count(SLOW) == 0


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
