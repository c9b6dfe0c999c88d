"""Known pairs of launches and what must be said of them, worked out by hand."""

import pytest

from evaluator.timing.decision import Verdict
from evaluator.timing.screening.decide import Judgement, Reason, judge
from evaluator.timing.screening.estimate import (
    PRESETS,
    Thresholds,
    TimeRange,
    TimeSummary,
    change_between,
    read_thresholds,
    summary_of,
)

DEFAULT = PRESETS["default"]
CLOCK_HZ = 100.0


def quartiles(
    *times_s: float, noise: float = 0.01, clock_hz: float | None = CLOCK_HZ
) -> TimeSummary:
    least, first, median, third = times_s
    return TimeSummary(
        minimum=least,
        first_quartile=first,
        median=median,
        third_quartile=third,
        iqr_relative=noise,
        clock_hz=clock_hz,
    )


def moments(mean: float, stdev_relative: float) -> TimeSummary:
    return TimeSummary(mean=mean, stdev_relative=stdev_relative)


def said(
    reference: TimeSummary, candidate: TimeSummary, thresholds: Thresholds = DEFAULT
) -> tuple[Verdict, Reason]:
    found = judge(reference, candidate, thresholds)
    return found.verdict, found.reason


REFERENCE = quartiles(1.0, 1.1, 1.2, 1.3)


def faster(clock_hz: float | None = CLOCK_HZ) -> TimeSummary:
    return quartiles(0.8, 0.85, 0.9, 0.95, clock_hz=clock_hz)


def alike(
    median: float = 1.204, *, noise: float = 0.01, clock_hz: float | None = CLOCK_HZ
) -> TimeSummary:
    return quartiles(1.02, 1.1, median, 1.28, noise=noise, clock_hz=clock_hz)


def test_an_interval_wholly_below_is_fast_when_the_clock_rates_agree() -> None:
    found = judge(REFERENCE, faster(), DEFAULT)

    assert found.verdict is Verdict.FAST
    assert found.reason is Reason.CLEAR_GAP_CONFIRMED_BY_SUMMARY_CYCLES
    assert found.change is not None
    assert found.change.difference_s == pytest.approx((-0.5, -0.05))
    assert found.change.relative == pytest.approx((-0.625, -0.05 / 0.95))
    assert found.guaranteed == pytest.approx(-0.0526, abs=1e-4)


def test_an_interval_wholly_above_is_slow_when_the_clock_rates_agree() -> None:
    found = judge(REFERENCE, quartiles(1.4, 1.45, 1.5, 1.55), DEFAULT)

    assert found.verdict is Verdict.SLOW
    assert found.reason is Reason.CLEAR_GAP_CONFIRMED_BY_SUMMARY_CYCLES
    assert found.change is not None
    assert found.change.difference_s == pytest.approx((0.1, 0.55))
    assert found.change.relative == pytest.approx((0.1 / 1.3, 0.55))
    assert found.guaranteed == pytest.approx(0.0769, abs=1e-4)


def test_a_gap_is_undecided_when_one_clock_rate_is_missing() -> None:
    assert said(REFERENCE, faster(clock_hz=None)) == (
        Verdict.UNDECIDED,
        Reason.MISSING_CLOCK_RATE,
    )


def test_a_gap_that_a_higher_clock_rate_explains_is_undecided() -> None:
    assert said(REFERENCE, faster(clock_hz=200.0)) == (
        Verdict.UNDECIDED,
        Reason.SUMMARY_CYCLE_GAP_NOT_CONFIRMED,
    )


def test_close_centres_and_shared_intervals_are_the_same_with_equal_clock_rates() -> None:
    assert said(REFERENCE, alike()) == (Verdict.SAME, Reason.SAME_CONFIRMED_BY_CYCLES)


def test_noise_above_the_ceiling_is_undecided_without_samples() -> None:
    reference = quartiles(1.0, 1.1, 1.2, 1.3, noise=0.03, clock_hz=None)

    assert said(reference, alike(noise=0.03, clock_hz=None)) == (
        Verdict.UNDECIDED,
        Reason.NOISE_TOO_HIGH,
    )


def test_negative_noise_is_no_noise_at_all() -> None:
    reference = quartiles(1.0, 1.1, 1.2, 1.3, noise=-0.01)

    assert said(reference, alike(noise=-0.01)) == (Verdict.UNDECIDED, Reason.NOISE_UNAVAILABLE)


def test_equal_times_at_twice_the_clock_rate_are_not_the_same_work() -> None:
    assert said(REFERENCE, alike(clock_hz=200.0)) == (
        Verdict.UNDECIDED,
        Reason.CYCLE_SAME_NOT_CONFIRMED,
    )


def test_medians_further_apart_than_allowed_are_undecided() -> None:
    assert said(REFERENCE, alike(median=1.21)) == (Verdict.UNDECIDED, Reason.CENTERS_NOT_CLOSE)


def test_intervals_that_only_touch_overlap_too_little() -> None:
    reference, candidate = quartiles(1.0, 1.19, 1.195, 1.2), quartiles(1.2, 1.2, 1.2, 1.4)

    assert said(reference, candidate) == (Verdict.UNDECIDED, Reason.WEAK_INTERVAL_OVERLAP)


def test_means_three_per_cent_apart_are_not_close() -> None:
    assert said(moments(1.0, 0.05), moments(1.03, 0.05)) == (
        Verdict.UNDECIDED,
        Reason.CENTERS_NOT_CLOSE,
    )


def test_means_within_a_thousandth_are_the_same_without_clock_rates() -> None:
    assert said(moments(1.0, 0.005), moments(1.001, 0.005)) == (
        Verdict.SAME,
        Reason.SAME_WITHOUT_CLOCK_RATE,
    )


def test_equal_means_without_any_spread_are_the_same() -> None:
    assert said(moments(1.0, 0.0), moments(1.0, 0.0)) == (
        Verdict.SAME,
        Reason.SAME_WITHOUT_CLOCK_RATE,
    )


def test_samples_that_cover_each_other_are_the_same_however_noisy() -> None:
    side = summary_of([1.0, 1.0, 1.1, 1.1], [CLOCK_HZ] * 4)

    assert side.iqr_relative is not None and side.iqr_relative > 0.05
    assert said(side, side) == (Verdict.SAME, Reason.BULK_SAME)


def test_samples_without_clock_rates_are_the_same_by_their_times() -> None:
    side = summary_of([1.0, 1.0, 1.1, 1.1])

    assert said(side, side) == (Verdict.SAME, Reason.BULK_TIME_SAME_WITHOUT_CYCLES)


def test_a_sample_at_no_clock_rate_spoils_the_cycles() -> None:
    side = summary_of([1.0, 1.0, 1.1, 1.1], [100.0, 0.0, 100.0, 100.0])

    assert said(side, side) == (Verdict.UNDECIDED, Reason.BULK_CYCLE_DATA_UNUSABLE)


def test_the_weights_of_two_modes_may_move() -> None:
    reference = summary_of([1.0] * 8 + [1.004] * 2)
    candidate = summary_of([1.0] * 2 + [1.004] * 8)

    assert said(reference, candidate) == (
        Verdict.SAME,
        Reason.BULK_TIME_SAME_WITHOUT_CYCLES,
    )


def with_samples(*times_s: float) -> TimeSummary:
    return TimeSummary(
        minimum=1.0,
        first_quartile=1.01,
        median=1.01,
        third_quartile=1.02,
        iqr_relative=0.01,
        times_s=times_s,
    )


def test_samples_with_modes_of_their_own_are_undecided_though_the_summaries_agree() -> None:
    reference = with_samples(1.0, 1.0, 1.004, 1.004)
    candidate = with_samples(1.02, 1.02, 1.024, 1.024)

    found = judge(reference, candidate, DEFAULT)

    assert (found.verdict, found.reason) == (
        Verdict.UNDECIDED,
        Reason.BULK_TIME_SUPPORT_MISMATCH,
    )
    assert found.severity == pytest.approx(0.97)


def test_the_same_modes_seen_by_samples_alone_are_a_clear_gap() -> None:
    reference = summary_of([1.0, 1.0, 1.004, 1.004], [CLOCK_HZ] * 4)
    candidate = summary_of([1.02, 1.02, 1.024, 1.024], [CLOCK_HZ] * 4)

    assert said(reference, candidate) == (
        Verdict.SLOW,
        Reason.CLEAR_GAP_CONFIRMED_BY_BULK_CYCLES,
    )


RARE = summary_of([1.0] * 1000 + [2.0 + step for step in range(10)])


def test_a_few_rare_values_do_not_stand_against_the_same() -> None:
    assert said(RARE, summary_of([1.0] * 1000)) == (
        Verdict.SAME,
        Reason.BULK_TIME_SAME_WITHOUT_CYCLES,
    )


def test_rare_values_count_when_leaving_them_out_would_cost_too_much() -> None:
    limits = read_thresholds(
        "version = 1\n[bulk.rare_support]\nmax_removed_sample_fraction = 0.005"
    )

    found: Judgement = judge(RARE, summary_of([1.0] * 1000), limits)

    assert found.reason is Reason.BULK_TIME_SUPPORT_MISMATCH
    assert found.message == (
        "9.09 % of the reference's distinct times are near one of the other side, less than 80 %"
    )
    assert found.severity == pytest.approx(0.80 - 1 / 11)


def test_relative_change_is_over_the_smaller_time_and_changes_sign_with_the_sides() -> None:
    one = TimeRange(lower=4.096e-6, centre=4.6e-6, upper=5.120e-6)
    other = TimeRange(lower=6.112e-6, centre=6.12e-6, upper=6.144e-6)

    assert change_between(one, other).relative == pytest.approx((0.19375, 0.5))
    assert change_between(other, one).relative == pytest.approx((-0.5, -0.19375))
