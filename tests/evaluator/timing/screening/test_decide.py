"""Each verdict has a reason, given in a fixed order; what just reaches a threshold reaches it."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.timing.decision import Verdict
from evaluator.timing.screening.decide import Reason, judge, overlap_fraction
from evaluator.timing.screening.estimate import (
    PRESETS,
    Bulk,
    Channel,
    ClearGap,
    RareSupport,
    Same,
    Thresholds,
    TimeRange,
    TimeSummary,
    Unusable,
    summary_of,
)

DEFAULT = PRESETS["default"]
FAST, SLOW, SAME, UNDECIDED, UNKNOWN = Verdict


def quartiles(least, first, median, third, noise=0.01, **more):
    return TimeSummary(
        minimum=least,
        first_quartile=first,
        median=median,
        third_quartile=third,
        iqr_relative=noise,
        **more,
    )


def moments(mean, stdev_relative):
    return TimeSummary(mean=mean, stdev_relative=stdev_relative)


def clocked(*bounds, noise=0.01, clock_hz=100.0):
    return quartiles(*bounds, noise=noise, clock_hz=clock_hz)


def faster(clock_hz=100.0):
    return clocked(0.8, 0.85, 0.9, 0.95, clock_hz=clock_hz)


def alike(median=1.204, **more):
    return clocked(1.02, 1.1, median, 1.28, **more)


def at_rates(*clocks_hz):
    return summary_of([1.0, 1.0, 1.1, 1.1], clocks_hz or None)


REFERENCE = clocked(1.0, 1.1, 1.2, 1.3)
SIDE, QUICK = quartiles(1.0, 1.01, 1.01, 1.02), quartiles(0.5, 0.51, 0.51, 0.52)
TIMES_LOST, CLOCKS_LOST = (Unusable(channel=channel, why="cut off") for channel in Channel)
SAMPLED = replace(SIDE, times_s=[1.01])
RARE = summary_of([1.0] * 1000 + [2.0 + step for step in range(10)])
FIXED_CLOCK = summary_of([1.0] * 4, clock_hz=100.0)
ENDLESS = [
    TimeSummary(mean=time, stdev_relative=math.inf, minimum=time, maximum=time, clock_hz=1e9)
    for time in (1.0, 1.5)
]


@pytest.mark.parametrize(
    ("reference", "candidate", "verdict", "reason"),
    [
        # What cannot be compared.
        (SIDE, TimeSummary(skipped=True), UNKNOWN, "state_skipped"),
        (TimeSummary(clock_hz=1.0), TimeSummary(), UNKNOWN, "gpu_timing_summaries_missing"),
        (SIDE, summary_of([1.0, -1.0]), UNKNOWN, "timing_center_missing"),
        (SIDE, TimeSummary(mean=1.01, stdev=0.1), UNKNOWN, "timing_center_missing"),
        (moments(math.nan, None), TimeSummary(stdev=1.0), UNKNOWN, "timing_center_missing"),
        # A clear gap counts if the clock rates explain it not.
        (REFERENCE, faster(), FAST, "clear_gap_confirmed_by_summary_cycles"),
        (REFERENCE, clocked(1.4, 1.45, 1.5, 1.55), SLOW, "clear_gap_confirmed_by_summary_cycles"),
        (REFERENCE, faster(clock_hz=None), UNDECIDED, "missing_clock_rate"),
        (REFERENCE, faster(clock_hz=200.0), UNDECIDED, "summary_cycle_gap_not_confirmed"),
        (SIDE, QUICK, UNDECIDED, "missing_clock_rate"),
        (
            summary_of([1.0, 1.0, 1.004, 1.004], [100.0] * 4),
            summary_of([1.02, 1.02, 1.024, 1.024], [100.0] * 4),
            SLOW,
            "clear_gap_confirmed_by_bulk_cycles",
        ),
        (
            summary_of([2.0, 2.0], [100.0] * 2),
            summary_of([1.0, 1.0], [200.0] * 2),
            UNDECIDED,
            "bulk_cycle_gap_not_confirmed",
        ),
        (
            replace(SIDE, clock_hz=100.0),
            summary_of([0.5, 0.5], [100.0, 100.0]),
            FAST,
            "clear_gap_confirmed_by_summary_cycles",
        ),
        # Without a gap: how noisy, how close, and how far the intervals overlap.
        # One sample of unknown dispersion makes no claim.
        (*ENDLESS, UNDECIDED, "noise_unavailable"),
        (TimeSummary(median=1.0, iqr_relative=0.01),) * 2 + (UNDECIDED, "missing_interval"),
        (
            quartiles(1.0, 1.1, 1.2, 1.3, noise=0.03),
            alike(noise=0.03, clock_hz=None),
            UNDECIDED,
            "noise_too_high",
        ),
        (REFERENCE, alike(), SAME, "same_confirmed_by_cycles"),
        (REFERENCE, alike(clock_hz=200.0), UNDECIDED, "cycle_same_not_confirmed"),
        (REFERENCE, alike(median=1.21), UNDECIDED, "centers_not_close"),
        (
            clocked(1.0, 1.19, 1.195, 1.2),
            clocked(1.2, 1.2, 1.2, 1.4),
            UNDECIDED,
            "weak_interval_overlap",
        ),
        (moments(1.0, 0.05), moments(1.03, 0.05), UNDECIDED, "centers_not_close"),
        (moments(1.0, 0.005), moments(1.001, 0.005), SAME, "same_without_clock_rate"),
        (moments(1.0, 0.0), moments(1.0, 0.0), SAME, "same_without_clock_rate"),
        # Samples: those of both sides must cover each other, in time and in cycles.
        (at_rates(*[100.0] * 4), at_rates(*[100.0] * 4), SAME, "bulk_same"),
        (at_rates(), at_rates(), SAME, "bulk_time_same_without_cycles"),
        (FIXED_CLOCK, FIXED_CLOCK, SAME, "bulk_time_same_confirmed_by_summary_cycles"),
        (
            FIXED_CLOCK,
            replace(FIXED_CLOCK, clock_hz=200.0),
            UNDECIDED,
            "cycle_same_not_confirmed",
        ),
        (summary_of([1.0]), summary_of([1.0]), SAME, "bulk_time_same_without_cycles"),
        (at_rates(1.0, 0.0, 1.0, 1.0), at_rates(*[1.0] * 4), UNDECIDED, "bulk_cycle_data_unusable"),
        (
            summary_of([1.0] * 8 + [1.004] * 2),
            summary_of([1.0] * 2 + [1.004] * 8),
            SAME,
            "bulk_time_same_without_cycles",
        ),
        (RARE, summary_of([1.0] * 1000), SAME, "bulk_time_same_without_cycles"),
        (
            summary_of([1.0] * 4, [100.0] * 4),
            summary_of([1.0] * 4, [100.0, 100.0, 150.0, 150.0]),
            UNDECIDED,
            "bulk_cycle_support_mismatch",
        ),
        (SAMPLED, replace(SAMPLED, median=1.02), UNDECIDED, "centers_not_close"),
        # Samples that were lost are no evidence, unless the other side has none.
        (SAMPLED, replace(SIDE, unusable=(TIMES_LOST,)), UNDECIDED, "bulk_time_data_unusable"),
        (SIDE, replace(SIDE, unusable=(TIMES_LOST,)), SAME, "same_without_clock_rate"),
        (
            replace(SAMPLED, clocks_hz=[100.0]),
            replace(SAMPLED, unusable=(CLOCKS_LOST,)),
            UNDECIDED,
            "bulk_cycle_data_unusable",
        ),
    ],
)
def test_two_launches_get_their_verdict_and_its_reason(reference, candidate, verdict, reason):
    found = judge(reference, candidate, DEFAULT)
    assert (found.verdict, found.reason) == (verdict, reason)


@pytest.mark.parametrize(
    ("reference", "candidate", "verdict", "reason"),
    [
        (SIDE, QUICK, FAST, "clear_gap_unconfirmed"),
        (QUICK, SIDE, SLOW, "clear_gap_unconfirmed"),
        (summary_of([1.0]), summary_of([2.0]), SLOW, "clear_gap_unconfirmed"),
        (replace(SIDE, clock_hz=100.0), QUICK, UNDECIDED, "missing_clock_rate"),
        (replace(SAMPLED, clocks_hz=[100.0]), QUICK, UNDECIDED, "missing_clock_rate"),
        (
            replace(SIDE, clock_hz=100.0),
            replace(QUICK, clock_hz=300.0),
            UNDECIDED,
            "summary_cycle_gap_not_confirmed",
        ),
        (SIDE, quartiles(1.021, 1.021, 1.021, 1.03), UNDECIDED, "centers_not_close"),
    ],
)
def test_waiving_confirmation_passes_over_missing_clock_rates_alone(
    reference, candidate, verdict, reason
):
    found = judge(reference, candidate, DEFAULT, confirmation=False)
    assert (found.verdict, found.reason) == (verdict, reason)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_number_that_is_no_time_no_rate_or_no_noise_claims_nothing(value):
    centre = Reason.TIMING_CENTER_NONPOSITIVE if value <= 0 else Reason.TIMING_CENTER_NONFINITE
    good, bad = replace(SIDE, clock_hz=100.0), replace(SIDE, clock_hz=value)
    noisy = replace(SIDE, iqr_relative=value or None)

    assert judge(replace(SIDE, median=value), SIDE, DEFAULT).reason is centre
    assert judge(TimeSummary(mean=1.0), TimeSummary(mean=value), DEFAULT).reason is centre
    assert judge(good, bad, DEFAULT).reason is Reason.INVALID_CLOCK_RATE
    quick = replace(QUICK, clock_hz=100.0)
    assert judge(bad, quick, DEFAULT).reason is Reason.INVALID_CLOCK_RATE
    assert judge(noisy, noisy, DEFAULT).reason is Reason.NOISE_UNAVAILABLE


@pytest.mark.parametrize(
    ("reference", "candidate", "message"),
    [
        (SIDE, TimeSummary(skipped=True), "candidate: skipped when it was measured"),
        (TimeSummary(), TimeSummary(), "reference and candidate: no times were recorded"),
        (SIDE, summary_of([1.0, -1.0]), "; candidate: 1 of 2 not positive and finite, first -1 at"),
        (SIDE, replace(SIDE, median=1.02), "the centres differ by 0.99 %, more than 0.5 %"),
        (SAMPLED, replace(SIDE, unusable=(TIMES_LOST,)), "times cannot be used: candidate: cut"),
        (
            summary_of([2.0, 2.0], [100.0, 100.0], 100.0),
            summary_of([1.0, 1.0], [100.0], 100.0),
            "candidate: 1 clock rates for 2 times",
        ),
    ],
)
def test_a_message_names_the_side_and_the_numbers(reference, candidate, message):
    assert message in judge(reference, candidate, DEFAULT).message


def test_a_verdict_keeps_what_it_was_taken_from_and_what_the_intervals_guarantee():
    fast, undecided = judge(REFERENCE, faster(), DEFAULT), judge(SIDE, QUICK, DEFAULT)

    assert (fast.reference.centre, fast.candidate.centre) == (1.2, 0.9)
    assert fast.change.difference_s == pytest.approx((-0.5, -0.05))
    assert fast.change.relative == pytest.approx((-0.625, -0.05 / 0.95))
    assert fast.guaranteed == pytest.approx(-0.05 / 0.95)
    assert undecided.change.difference_s == pytest.approx((-0.52, -0.48))
    assert undecided.guaranteed is None


def test_rare_values_count_when_leaving_them_out_would_cost_too_much():
    limits = Thresholds(bulk=Bulk(rare_support=RareSupport(max_removed_sample_fraction=0.005)))
    found = judge(RARE, summary_of([1.0] * 1000), limits)

    assert found.reason is Reason.BULK_TIME_SUPPORT_MISMATCH
    assert found.severity == pytest.approx(0.80 - 1 / 11)


def test_samples_with_modes_of_their_own_are_undecided_though_the_summaries_agree():
    modes = ([1.0, 1.0, 1.004, 1.004], [1.02, 1.02, 1.024, 1.024])
    found = judge(*(replace(SIDE, times_s=times_s) for times_s in modes), DEFAULT)

    assert found.reason is Reason.BULK_TIME_SUPPORT_MISMATCH
    assert found.severity == pytest.approx(0.97)


# Quarters and halves are exact in binary, so that these edges are the true ones.
QUARTER = Thresholds(
    clear_gap=ClearGap(relative=0.25),
    same=Same(center_relative=0.25, overlap_fraction=0.5, relative_dispersion_ceiling=0.25),
)
ANY_GAP = Thresholds(clear_gap=ClearGap(relative=0.0))


def edge(lower, centre, upper, noise=0.0):
    return quartiles(lower, lower, centre, upper, noise)


@pytest.mark.parametrize(
    ("reference", "candidate", "limits", "verdict"),
    [
        (edge(2.0, 3.0, 4.0), edge(5.0, 6.0, 7.0), QUARTER, SLOW),
        (edge(5.0, 6.0, 7.0), edge(2.0, 3.0, 4.0), QUARTER, FAST),
        (edge(2.0, 3.0, 4.0), edge(4.999, 6.0, 7.0), QUARTER, UNDECIDED),
        # Intervals that touch are not separate even when any gap is clear.
        (edge(2.0, 3.0, 4.0), edge(4.0, 5.0, 6.0), ANY_GAP, UNDECIDED),
        (edge(2.0, 4.0, 8.0), edge(2.0, 5.0, 8.0), QUARTER, SAME),
        (edge(2.0, 4.0, 4.0), edge(3.0, 4.0, 5.0), QUARTER, SAME),
        (edge(2.0, 4.0, 4.0), edge(3.001, 4.0, 5.0), QUARTER, UNDECIDED),
        (edge(2.0, 4.0, 8.0, 0.25), edge(2.0, 4.0, 8.0, 0.25), QUARTER, SAME),
        (edge(2.0, 4.0, 8.0, 0.26), edge(2.0, 4.0, 8.0), QUARTER, UNDECIDED),
        (edge(2.0, 4.0, 8.0), edge(2.0, 4.0, 8.0, 0.26), QUARTER, UNDECIDED),
    ],
)
def test_a_number_that_just_reaches_its_threshold_counts(reference, candidate, limits, verdict):
    assert judge(reference, candidate, limits, confirmation=False).verdict is verdict


@pytest.mark.parametrize(
    ("one", "other", "share"),
    [
        ((1.0, 3.0), (2.0, 6.0), 0.5),
        ((1.0, 2.0), (2.0, 3.0), 0.0),
        ((1.0, 2.0), (3.0, 4.0), 0.0),
        ((1.0, 4.0), (2.0, 3.0), 1.0),
        ((2.0, 2.0), (1.0, 3.0), 1.0),
        ((2.0, 2.0), (2.0, 2.0), 1.0),
        ((2.0, 2.0), (2.5, 3.0), 0.0),
    ],
)
def test_overlap_is_the_share_of_the_narrower_interval(one, other, share):
    ranges = [TimeRange(lower=low, centre=low, upper=high) for low, high in (one, other)]
    assert overlap_fraction(*ranges) == overlap_fraction(*ranges[::-1]) == share


MIRROR = {FAST: SLOW, SLOW: FAST}
LIMITS = st.sampled_from(list(PRESETS.values()))
TIME = st.sampled_from([0.5, 0.9, 0.999, 1.0, 1.001, 1.004, 1.005, 1.01, 1.02, 1.3, 1.9, 2.0])
CLOCK = st.sampled_from([100.0, 100.2, 200.0])


def launch(samples, clocks, clock_hz):
    times_s, clocks_hz = zip(*samples, strict=True)
    return summary_of(
        times_s,
        clocks_hz if clocks == "each" else None,
        clock_hz if clocks == "mean" else None,
    )


# Few samples of few values, so that two launches are often close.
SAMPLES = st.lists(st.tuples(TIME, CLOCK), min_size=1, max_size=6)
LAUNCH = st.builds(launch, SAMPLES, st.sampled_from(["each", "mean", "none"]), CLOCK)
ANY_NUMBER = st.none() | st.floats() | st.sampled_from([0.0, -1.0, 1.0, 1.1, math.inf])
ANY_VECTOR = st.none() | st.lists(st.floats(), max_size=4) | st.lists(TIME, max_size=4)
NUMBERS = [field.name for field in fields(TimeSummary) if field.type == (float | None)]
ANY_SUMMARY = st.builds(
    TimeSummary, **dict.fromkeys(NUMBERS, ANY_NUMBER), times_s=ANY_VECTOR, clocks_hz=ANY_VECTOR
)


@given(LAUNCH, LAUNCH, LIMITS, st.booleans())
def test_swapping_the_sides_mirrors_the_verdict_and_negates_the_change(
    one, other, limits, confirmation
):
    forward = judge(one, other, limits, confirmation=confirmation)
    back = judge(other, one, limits, confirmation=confirmation)

    assert back.verdict is MIRROR.get(forward.verdict, forward.verdict)
    assert (back.reason, back.severity) == (forward.reason, forward.severity)
    low, high = forward.change.relative
    assert back.change.relative == (-high, -low)


@given(LAUNCH, LAUNCH, LIMITS, st.booleans(), st.integers(-30, 30))
def test_another_unit_of_time_changes_nothing(one, other, limits, confirmation, exponent):
    def scaled(side):
        times = np.asarray(side.times_s) * 2.0**exponent
        return summary_of(times, side.clocks_hz, side.clock_hz)

    found = judge(one, other, limits, confirmation=confirmation)
    again = judge(scaled(one), scaled(other), limits, confirmation=confirmation)

    assert (again.verdict, again.reason, again.family) == (
        found.verdict,
        found.reason,
        found.family,
    )
    assert again.change.relative == found.change.relative


@given(LAUNCH, LIMITS, st.booleans())
def test_a_launch_is_never_faster_than_itself(side, limits, confirmation):
    assert judge(side, side, limits, confirmation=confirmation).verdict not in MIRROR


@given(LAUNCH, LAUNCH, LIMITS)
def test_waiving_confirmation_only_settles_what_lacked_a_clock(one, other, limits):
    strict = judge(one, other, limits)
    waived = judge(one, other, limits, confirmation=False)

    assert waived == strict or (strict.reason, waived.reason) == (
        "missing_clock_rate",
        "clear_gap_unconfirmed",
    )


@given(LAUNCH, LAUNCH, LIMITS, st.booleans())
def test_a_faster_launch_changed_by_no_less_than_the_clear_gap(one, other, limits, confirmation):
    found = judge(one, other, limits, confirmation=confirmation)

    assert (found.verdict in MIRROR) == (found.guaranteed is not None)
    assert found.guaranteed is None or abs(found.guaranteed) >= limits.clear_gap.relative


@given(ANY_SUMMARY, ANY_SUMMARY, LIMITS, st.booleans())
def test_any_two_summaries_get_a_verdict(one, other, limits, confirmation):
    found = judge(one, other, limits, confirmation=confirmation)

    assert found.message and "\n" not in found.message
    assert found.severity >= 0
    assert judge(other, one, limits, confirmation=confirmation).reason is found.reason
    assert len(NUMBERS) == 11
