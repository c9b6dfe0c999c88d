"""A claim of faster needs evidence: without it, two are the same or it is undecided and why."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from evaluator.timing.decision import (
    KNOWN_LEVELS,
    STANDARD_RULE,
    Belief,
    DecisionRule,
    LaunchValue,
    Noise,
    Round,
    Verdict,
    chance_of_claim,
    decide,
    detectable,
    pooled,
    sequential_level,
    simulated_level,
)

FAST, SLOW, SAME = Verdict.FAST, Verdict.SLOW, Verdict.SAME
UNDECIDED, UNKNOWN = Verdict.UNDECIDED, Verdict.UNKNOWN
ONES = [1.0, 1.0, 1.0, 1.0]
ONCE = DecisionRule(look_often=False, max_rounds=4)
TIMES = st.lists(st.floats(1e-6, 1e6), min_size=8, max_size=8)


def rounds(candidate, anchor):
    return [
        Round(candidate=LaunchValue(value=ours), anchor=LaunchValue(value=theirs))
        for ours, theirs in zip(candidate, anchor, strict=True)
    ]


def compare(candidate, anchor, rule=ONCE, **evidence):
    return decide(rounds(candidate, anchor), rule, **evidence)


@pytest.mark.parametrize(
    ("candidate", "anchor", "verdict", "reason"),
    [
        # Half as long in every round: the interval is a point at 0.5.
        ([0.5] * 4, ONES, FAST, "paired_interval_clears_band"),
        ([2.0] * 4, ONES, SLOW, "paired_interval_clears_band"),
        (ONES, ONES, SAME, "paired_interval_inside_band"),
        # Rounds differ far more than the configurations do: pairing takes that out.
        ([0.5, 5.0, 50.0, 500.0], [1.0, 10.0, 100.0, 1e3], FAST, "paired_interval_clears_band"),
        ([1.0, 10.0, 100.0, 1e3], [1.0, 10.0, 100.0, 1e3], SAME, "paired_interval_inside_band"),
        # One per cent is within the margin of two, and three per cent is not.
        ([0.99] * 4, ONES, SAME, "paired_interval_inside_band"),
        ([1.01] * 4, ONES, SAME, "paired_interval_inside_band"),
        ([0.97] * 4, ONES, FAST, "paired_interval_clears_band"),
        ([1.03] * 4, ONES, SLOW, "paired_interval_clears_band"),
        # Mean log ratio -0.0287, standard error 0.0059, t(3, 97.5 %) 3.182: [-0.047, -0.010].
        ([0.96, 0.97, 0.975, 0.98], ONES, UNDECIDED, "direction_known_size_unclear"),
        # Mean near zero, standard error 0.058: anything is possible.
        ([0.9, 1.1, 0.9, 1.1], ONES, UNDECIDED, "budget_exhausted"),
        # Too few rounds, however clear they look.
        ([0.5], [1.0], UNDECIDED, "too_few_rounds"),
        ([0.5] * 3, [1.0] * 3, UNDECIDED, "too_few_rounds"),
        # What has no ratio.
        ([], [], UNKNOWN, "no_samples"),
        ([0.0, 0.5, 0.5, 0.5], ONES, UNKNOWN, "bad_time"),
        ([0.5] * 4, [1.0, 1.0, -1.0, 1.0], UNKNOWN, "bad_time"),
        ([0.5, 0.5, math.nan, 0.5], ONES, UNKNOWN, "bad_time"),
        ([0.5, 0.5, 0.5, 0.5], [1.0, math.inf, 1.0, 1.0], UNKNOWN, "bad_time"),
    ],
)
def test_the_verdict_and_its_reason(candidate, anchor, verdict, reason):
    comparison = compare(candidate, anchor)
    assert (comparison.verdict, comparison.reason) == (verdict, reason)
    assert comparison.round_count == len(candidate)


def test_looked_at_once_the_interval_is_students_on_paired_log_ratios():
    candidate, anchor = [0.90, 0.96, 0.93, 0.97, 0.91], [1.00, 1.02, 0.98, 1.03, 0.99]
    logs = [math.log(c / a) for c, a in zip(candidate, anchor, strict=True)]
    interval = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
    comparison = compare(candidate, anchor, replace(ONCE, max_rounds=5))
    assert comparison.ratio == pytest.approx(math.exp(sum(logs) / 5))
    assert comparison.ratio_low == pytest.approx(math.exp(interval.low))
    assert comparison.ratio_high == pytest.approx(math.exp(interval.high))
    assert comparison.noise == pytest.approx(np.std(logs, ddof=1))


def test_looking_after_every_round_costs_a_wider_interval_and_the_margin_is_the_users():
    near = [0.97, 0.975, 0.972, 0.973]
    assert compare(near, ONES, replace(ONCE, margin=0.01)).verdict is FAST
    assert compare(near, ONES, replace(ONCE, margin=0.05)).verdict is SAME
    candidate, anchor = [0.90, 0.96, 0.93, 0.97, 0.91], [1.0] * 5
    once, often = (
        compare(candidate, anchor, DecisionRule(max_rounds=10, look_often=often))
        for often in (False, True)
    )
    assert often.ratio == once.ratio
    assert often.ratio_low < once.ratio_low < once.ratio_high < often.ratio_high


def test_a_claim_may_err_less_often_than_the_interval_beside_it():
    candidate, anchor = [0.90, 0.96, 0.93, 0.97, 0.91], [1.0] * 5
    plain, stricter = (
        compare(candidate, anchor, replace(ONCE, max_rounds=5, claim_alpha=alpha))
        for alpha in (None, 0.002)
    )
    assert (stricter.ratio_low, stricter.ratio_high) == (plain.ratio_low, plain.ratio_high)
    assert (plain.verdict, stricter.verdict) == (FAST, UNDECIDED)
    assert stricter.detectable > plain.detectable


@pytest.mark.parametrize(
    ("candidate", "claim_alpha", "verdict", "reason"),
    [
        # Mean log ratio -0.0287, interval [-0.047, -0.010]: faster, if not surely by the margin.
        ([0.96, 0.97, 0.975, 0.98], None, FAST, "paired_interval_clears_band"),
        # At t(3, 99.9 %) = 10.2 the interval reaches beyond 0.
        ([0.96, 0.97, 0.975, 0.98], 0.002, UNDECIDED, "budget_exhausted"),
        # Half a per cent faster beyond doubt, which is within the margin of two.
        ([0.995, 0.9951, 0.9949, 0.995], None, SAME, "paired_interval_inside_band"),
        ([0.9, 1.1, 0.9, 1.1], None, UNDECIDED, "budget_exhausted"),
    ],
)
def test_a_claim_of_any_difference_need_not_clear_the_margin(
    candidate, claim_alpha, verdict, reason
):
    rule = replace(ONCE, claim_margin=0.0, claim_alpha=claim_alpha)

    found = compare(candidate, ONES, rule)
    turned = compare(ONES, candidate, rule)

    assert (found.verdict, found.reason) == (verdict, reason)
    assert turned.verdict is {FAST: SLOW}.get(verdict, verdict)


@pytest.mark.parametrize(
    "wrong", [{"margin": -0.1}, {"alpha": 0.0}, {"alpha": 0.5}, {"min_rounds": 9, "max_rounds": 8}]
)
def test_a_rule_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match=r"is out of range|is not a range"):
        DecisionRule(**wrong)


def test_one_round_decides_only_with_noise_known_from_elsewhere():
    rule = DecisionRule(min_rounds=1, max_rounds=4)
    assert compare([0.5], [1.0], rule).reason == "too_few_rounds"
    assert compare([0.5], [1.0], rule).ratio == pytest.approx(0.5)
    assert compare([0.5], [1.0], rule, noise=Noise(sd=0.02, freedom=10)).verdict is FAST
    assert compare([0.5], [1.0], rule, noise=Noise(sd=0.5, freedom=10)).verdict is UNDECIDED


@pytest.mark.parametrize(
    ("candidate", "noise", "verdict"),
    [
        # At a noise of 1.1 %, Student's t of 3 rounds at 0.1 % is 31.6: the interval is +-21 %.
        ([0.50, 0.51, 0.51], None, FAST),
        ([2.00, 2.04, 2.04], None, SLOW),
        ([0.80, 0.81, 0.82], None, UNDECIDED),
        # Two rounds can hardly tell their own noise.
        ([0.50, 0.51], None, UNDECIDED),
        ([0.50], Noise(sd=0.02, freedom=10), FAST),
        ([0.92], Noise(sd=0.02, freedom=10), UNDECIDED),
        # Equal rounds say nothing about the noise, and none is early the same.
        ([0.5, 0.5, 0.5], None, UNDECIDED),
        ([1.0, 1.0001, 0.9999], None, UNDECIDED),
    ],
)
def test_a_difference_far_larger_than_the_noise_needs_fewer_rounds(candidate, noise, verdict):
    found = compare(candidate, ONES[: len(candidate)], STANDARD_RULE, noise=noise)

    assert found.verdict is verdict
    assert (found.reason == "too_few_rounds") is (verdict is UNDECIDED)


def test_looked_at_once_even_a_large_difference_needs_all_rounds():
    rule = replace(ONCE, min_rounds=4)

    assert compare([0.50, 0.51, 0.51], [1.0] * 3, rule).verdict is UNDECIDED


def test_a_noisy_pair_does_not_borrow_the_calm_of_others():
    rule = DecisionRule(min_rounds=2, max_rounds=4)
    wild = compare([0.3, 0.9], [1.0, 1.0], rule, noise=Noise(sd=0.001, freedom=100))
    assert wild.verdict is UNDECIDED
    assert wild.noise == pytest.approx(math.log(3) / math.sqrt(2))


def test_hopeless_rounds_end_early_and_hopeful_ones_go_on():
    rule = DecisionRule(max_rounds=8)
    hopeless = compare([0.9, 1.1, 0.9, 1.1], ONES, rule)
    hopeful = compare([0.9, 0.93, 0.96, 0.99], ONES, rule)
    assert (hopeless.reason, hopeless.settled) == ("noise_exceeds_band", True)
    assert (hopeful.reason, hopeful.settled) == ("interval_too_wide", False)


def test_means_that_point_the_other_way_veto_and_cannot_make_a_verdict():
    def found(value, mean):
        launch = LaunchValue(value=value, mean=mean)
        return decide([Round(candidate=launch, anchor=LaunchValue(value=1.0, mean=1.0))] * 4, ONCE)

    contradicted = found(0.5, 1.2)
    assert (contradicted.verdict, contradicted.reason) == (UNDECIDED, "centre_disagreement")
    assert found(1.0, 0.5).verdict is SAME


@pytest.mark.parametrize(
    ("ratio", "late_shift", "reason"),
    [
        (0.9, 0.15, "not_steady"),
        (0.5, 0.15, "paired_interval_clears_band"),
        (0.5, 0.80, "not_steady"),
        (1.0, 0.02, "not_steady"),
    ],
)
def test_steps_that_changed_late_undo_only_what_they_could_have_made(ratio, late_shift, reason):
    pairs = rounds([ratio] * 4, ONES)
    pairs[-1] = replace(pairs[-1], anchor=LaunchValue(value=1.0, late_shift=late_shift))
    assert decide(pairs, ONCE).reason == reason


def test_rounds_that_depend_on_who_is_first_prove_nothing():
    ratios = [0.50, 0.51, 0.52, 0.70, 0.71, 0.72]
    pairs = [
        replace(pair, candidate_first=number < 3)
        for number, pair in enumerate(rounds(ratios, [1.0] * 6))
    ]
    rule = DecisionRule(max_rounds=6, look_often=False)
    assert decide(pairs, rule).reason == "order_effect"
    assert decide([replace(p, candidate_first=None) for p in pairs], rule).verdict is FAST
    far = [replace(p, anchor=LaunchValue(value=3.0)) for p in pairs]
    assert decide(far, rule).verdict is FAST


@given(TIMES)
@settings(deadline=None)
def test_a_configuration_is_never_faster_than_itself(times):
    assert compare(times, times).verdict is SAME


@given(TIMES, TIMES)
@settings(deadline=None)
def test_the_opposite_comparison_has_the_opposite_verdict(candidate, anchor):
    there, back = (
        compare(candidate, anchor, DecisionRule()),
        compare(anchor, candidate, DecisionRule()),
    )
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


def claims(effect, noise, rule, count=600):
    """Share of comparisons, looked at after every round until settled, that find FAST or SLOW."""
    random = np.random.default_rng(2026)
    verdicts = []
    for _ in range(count):
        logs = random.normal(effect, noise, rule.max_rounds)
        verdict = next(
            comparison.verdict
            for looks in range(1, rule.max_rounds + 1)
            if (comparison := compare(np.exp(logs[:looks]), [1.0] * looks, rule)).settled
            or looks == rule.max_rounds
        )
        verdicts.append(verdict)
    return verdicts.count(FAST) / count, verdicts.count(SLOW) / count


@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_looking_after_every_round_still_errs_no_more_than_allowed(noise):
    fast, slow = claims(0.0, noise, DecisionRule(margin=0.0, max_rounds=10))
    assert fast + slow <= 0.07  # 0.05, and two standard errors of 600 tries
    fast, slow = claims(0.0, noise, DecisionRule(margin=0.01, max_rounds=10))
    assert fast + slow <= 0.02


def test_a_real_difference_beyond_the_noise_is_found():
    fast, slow = claims(math.log(0.9), 0.05, DecisionRule(margin=0.01, max_rounds=10))
    assert fast >= 0.95
    assert slow == 0


def test_a_single_look_may_err_as_often_as_all_looks_together():
    assert sequential_level(6, alpha=0.05, first=6, last=6) == 0.05
    levels = [sequential_level(count, alpha=0.05, first=4, last=10) for count in range(4, 11)]
    assert levels == sorted(levels)
    assert 0.05 / 7 < levels[-1] < 0.05 < sum(levels)


@pytest.mark.parametrize("rule", KNOWN_LEVELS)
def test_the_levels_of_the_usual_rules_are_those_that_random_rounds_give(rule):
    assert simulated_level(*rule) == KNOWN_LEVELS[rule]


def test_the_noise_of_a_round_is_that_of_two_launches_without_what_they_have_in_common():
    random = np.random.default_rng(1)
    alone = [np.exp(random.normal(centre, 0.03, (50, 1))) for centre in (0.0, 1.0, -2.0)]
    drift = random.normal(0, 0.5, (50, 1))
    together = [np.exp(drift + np.asarray([0.0, 1.0, -1.0]) + random.normal(0, 0.03, (50, 3)))]
    pairs = np.exp(random.normal(0, 0.1, (20, 2)))

    for tables, freedom in ((alone, 147), (together, 98)):
        noise = pooled(tables)
        assert (noise.sd, noise.freedom) == (pytest.approx(0.03 * math.sqrt(2), rel=0.15), freedom)
    assert pooled([pairs]).sd == pytest.approx(np.log(pairs[:, 0] / pairs[:, 1]).std(ddof=1))
    assert pooled([[[1.0]], [[1.0, 2.0]]]) is None


def test_an_interval_beyond_all_numbers_has_no_ends():
    wild = compare([1e-3, 1e3], [1.0, 1.0], DecisionRule(alpha=1e-9, min_rounds=2, max_rounds=2))
    assert (wild.ratio_low, wild.ratio_high, wild.detectable) == (None, None, None)
    assert wild.verdict is UNDECIDED


def test_what_can_be_detected_grows_with_the_noise_and_shrinks_with_the_rounds():
    quiet, loud = Noise(sd=0.01, freedom=9), Noise(sd=0.05, freedom=9)
    few, many = DecisionRule(max_rounds=4), DecisionRule(max_rounds=16)
    quantiles = stats.t.ppf(0.975, 9) + stats.t.ppf(0.8, 9)
    assert detectable(quiet, few) == pytest.approx(math.exp(quantiles * 0.01 / 2))
    assert detectable(quiet, many) < detectable(quiet, few) < detectable(loud, few)


@pytest.mark.parametrize(
    ("log_ratio", "error", "made", "chance"),
    [
        (-0.2, 0.0, [], 1.0),
        (0.0, 0.0, [], 0.0),
        (-STANDARD_RULE.band, 0.1, [], 0.5),
        (0.0, 0.0, [-0.2, -0.2], 1.0),
        (-0.2, 0.1, [-0.2] * 4, 0.0),
    ],
    ids=["surely faster", "surely equal", "either", "faster so far", "no round ahead"],
)
def test_the_chance_of_a_claim_is_that_of_the_rounds_ahead(log_ratio, error, made, chance):
    belief = Belief(log_ratio=log_ratio, error=error)

    assert chance_of_claim(belief, STANDARD_RULE, 1e-9, 4, made) == pytest.approx(chance)


def test_a_belief_weighs_launches_by_how_exact_they_are():
    twice = Belief(log_ratio=0.0, error=0.1).combined(0.2, 0.1)
    exact = twice.combined(0.3, 0.0)

    assert (twice.log_ratio, twice.error) == pytest.approx((0.1, 0.1 / math.sqrt(2)))
    assert (exact, exact.combined(0.5, 0.1)) == (Belief(log_ratio=0.3, error=0.0),) * 2
