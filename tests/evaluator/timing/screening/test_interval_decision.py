"""Each verdict has a reason, given in a fixed order, with a message for a person."""

import math
from dataclasses import replace

import pytest

from evaluator.timing.decision import Verdict
from evaluator.timing.screening.decide import Judgement, Reason, judge
from evaluator.timing.screening.estimate import PRESETS, Channel, TimeSummary, Unusable, summary_of

DEFAULT = PRESETS["default"]
FAST, SLOW, SAME, UNDECIDED, UNKNOWN = Verdict
SIDE = TimeSummary(
    minimum=1.0,
    first_quartile=1.01,
    median=1.01,
    third_quartile=1.02,
    iqr_relative=0.01,
)
QUICK = TimeSummary(
    minimum=0.5,
    first_quartile=0.51,
    median=0.51,
    third_quartile=0.52,
    iqr_relative=0.01,
)
TIMES_LOST = Unusable(channel=Channel.TIMES, why="cut off")
CLOCKS_LOST = Unusable(channel=Channel.CLOCKS, why="cut off")


def said(
    reference: TimeSummary, candidate: TimeSummary, *, confirmation: bool = True
) -> tuple[Verdict, Reason]:
    found: Judgement = judge(reference, candidate, DEFAULT, confirmation=confirmation)
    return found.verdict, found.reason


def test_one_sample_of_unknown_dispersion_makes_no_claim() -> None:
    one, other = (
        TimeSummary(mean=time, stdev_relative=math.inf, minimum=time, maximum=time, clock_hz=1e9)
        for time in (1.0, 1.5)
    )

    found = judge(one, other, DEFAULT)

    assert (found.verdict, found.reason) == (Verdict.UNDECIDED, Reason.NOISE_UNAVAILABLE)


def test_a_skipped_side_is_unknown_before_anything_else() -> None:
    found = judge(SIDE, TimeSummary(skipped=True), DEFAULT)

    assert (found.verdict, found.reason) == (UNKNOWN, Reason.STATE_SKIPPED)
    assert found.message == "candidate: skipped when it was measured"


def test_a_side_without_any_times_is_unknown() -> None:
    found = judge(TimeSummary(clock_hz=100.0), TimeSummary(), DEFAULT)

    assert (found.verdict, found.reason) == (UNKNOWN, Reason.GPU_TIMING_SUMMARIES_MISSING)
    assert found.message == "reference and candidate: no times were recorded"


def test_a_side_without_a_centre_is_unknown_and_says_why() -> None:
    found = judge(SIDE, summary_of([1.0, -1.0]), DEFAULT)

    assert (found.verdict, found.reason) == (UNKNOWN, Reason.TIMING_CENTER_MISSING)
    assert found.message == (
        "no centre of one kind is known of both sides; "
        "candidate: 1 of 2 not positive and finite, first -1 at 1"
    )
    assert found.reference is not None and found.reference.centre == 1.01
    assert found.candidate is not None and found.candidate.centre is None


def test_a_median_is_not_compared_with_a_mean() -> None:
    assert said(SIDE, TimeSummary(mean=1.01, stdev=0.1)) == (UNKNOWN, Reason.TIMING_CENTER_MISSING)


@pytest.mark.parametrize(
    ("centre", "reason"),
    [
        (math.nan, Reason.TIMING_CENTER_NONFINITE),
        (math.inf, Reason.TIMING_CENTER_NONFINITE),
        (0.0, Reason.TIMING_CENTER_NONPOSITIVE),
        (-1.0, Reason.TIMING_CENTER_NONPOSITIVE),
    ],
)
def test_a_centre_that_is_no_time_is_unknown(centre: float, reason: Reason) -> None:
    assert said(replace(SIDE, median=centre), SIDE) == (UNKNOWN, reason)
    assert said(TimeSummary(mean=1.0), TimeSummary(mean=centre)) == (UNKNOWN, reason)


def test_a_missing_centre_is_named_before_one_that_is_not_finite() -> None:
    assert (
        said(TimeSummary(mean=math.nan), TimeSummary(stdev=1.0))[1] is Reason.TIMING_CENTER_MISSING
    )


def test_a_gap_without_clock_rates_counts_only_when_confirmation_is_waived() -> None:
    assert said(SIDE, QUICK) == (UNDECIDED, Reason.MISSING_CLOCK_RATE)
    assert said(SIDE, QUICK, confirmation=False) == (FAST, Reason.CLEAR_GAP_UNCONFIRMED)
    assert said(QUICK, SIDE, confirmation=False) == (SLOW, Reason.CLEAR_GAP_UNCONFIRMED)


def test_waiving_confirmation_does_not_pass_over_a_clock_rate_of_one_side() -> None:
    clocked = replace(SIDE, clock_hz=100.0)
    sampled = replace(SIDE, times_s=[1.0], clocks_hz=[100.0])

    assert said(clocked, QUICK, confirmation=False) == (UNDECIDED, Reason.MISSING_CLOCK_RATE)
    assert said(sampled, QUICK, confirmation=False) == (UNDECIDED, Reason.MISSING_CLOCK_RATE)


def test_waiving_confirmation_does_not_pass_over_cycles_that_disagree() -> None:
    found = said(replace(SIDE, clock_hz=100.0), replace(QUICK, clock_hz=300.0), confirmation=False)

    assert found == (UNDECIDED, Reason.SUMMARY_CYCLE_GAP_NOT_CONFIRMED)


@pytest.mark.parametrize("clock_hz", [0.0, -1.0, math.nan, math.inf])
def test_a_clock_rate_that_is_no_rate_decides_nothing(clock_hz: float) -> None:
    good, bad = replace(SIDE, clock_hz=100.0), replace(SIDE, clock_hz=clock_hz)

    assert said(bad, replace(QUICK, clock_hz=100.0)) == (UNDECIDED, Reason.INVALID_CLOCK_RATE)
    assert said(good, bad) == (UNDECIDED, Reason.INVALID_CLOCK_RATE)


def test_a_gap_in_the_samples_that_their_cycles_do_not_show_is_undecided() -> None:
    reference = summary_of([2.0, 2.0], [100.0, 100.0])
    candidate = summary_of([1.0, 1.0], [200.0, 200.0])

    assert said(reference, candidate) == (UNDECIDED, Reason.BULK_CYCLE_GAP_NOT_CONFIRMED)


def test_a_gap_is_undecided_when_clock_rates_of_both_sides_exist_and_one_is_bad() -> None:
    reference = summary_of([2.0, 2.0], [100.0, 100.0], 100.0)
    candidate = summary_of([1.0, 1.0], [100.0], 100.0)

    found = judge(reference, candidate, DEFAULT)

    assert (found.verdict, found.reason) == (UNDECIDED, Reason.BULK_CYCLE_DATA_UNUSABLE)
    assert "candidate: 1 clock rates for 2 times" in found.message


def test_a_gap_is_confirmed_by_mean_rates_when_one_side_has_no_samples() -> None:
    reference = replace(SIDE, clock_hz=100.0)
    candidate = summary_of([0.5, 0.5], [100.0, 100.0])

    assert said(reference, candidate) == (FAST, Reason.CLEAR_GAP_CONFIRMED_BY_SUMMARY_CYCLES)


def test_a_gap_smaller_than_the_threshold_is_no_gap() -> None:
    near = TimeSummary(
        minimum=1.021,
        first_quartile=1.021,
        median=1.021,
        third_quartile=1.03,
        iqr_relative=0.01,
    )

    assert said(SIDE, near, confirmation=False) == (UNDECIDED, Reason.CENTERS_NOT_CLOSE)


@pytest.mark.parametrize("noise", [None, -0.1, math.nan, math.inf])
def test_noise_that_is_no_noise_is_unavailable(noise: float | None) -> None:
    side = replace(SIDE, iqr_relative=noise)

    assert said(side, side) == (UNDECIDED, Reason.NOISE_UNAVAILABLE)


def test_centres_with_noise_and_no_bounds_have_no_interval() -> None:
    side = TimeSummary(median=1.0, iqr_relative=0.01)

    assert said(side, side) == (UNDECIDED, Reason.MISSING_INTERVAL)


def test_unreadable_times_of_either_side_are_undecided() -> None:
    whole, lost = replace(SIDE, times_s=[1.01]), replace(SIDE, unusable=(TIMES_LOST,))

    found = judge(whole, lost, DEFAULT)

    assert (found.verdict, found.reason) == (UNDECIDED, Reason.BULK_TIME_DATA_UNUSABLE)
    assert found.message == "times cannot be used: candidate: cut off"


def test_unreadable_times_do_not_matter_where_the_other_side_has_none() -> None:
    lost = replace(SIDE, unusable=(TIMES_LOST,))

    assert said(SIDE, lost) == (SAME, Reason.SAME_WITHOUT_CLOCK_RATE)


def test_unreadable_clock_rates_are_undecided_after_the_times_agreed() -> None:
    whole = replace(SIDE, times_s=[1.01], clocks_hz=[100.0])
    lost = replace(SIDE, times_s=[1.01], unusable=(CLOCKS_LOST,))

    assert said(whole, lost) == (UNDECIDED, Reason.BULK_CYCLE_DATA_UNUSABLE)


def test_equal_times_at_other_clock_rates_are_undecided_by_their_samples() -> None:
    reference = summary_of([1.0] * 4, [100.0] * 4)
    candidate = summary_of([1.0] * 4, [100.0, 100.0, 150.0, 150.0])

    assert said(reference, candidate) == (UNDECIDED, Reason.BULK_CYCLE_SUPPORT_MISMATCH)


def test_samples_of_times_and_mean_clock_rates_confirm_each_other() -> None:
    side = summary_of([1.0] * 4, clock_hz=100.0)

    assert said(side, side) == (SAME, Reason.BULK_TIME_SAME_CONFIRMED_BY_SUMMARY_CYCLES)
    assert said(side, replace(side, clock_hz=200.0)) == (
        UNDECIDED,
        Reason.CYCLE_SAME_NOT_CONFIRMED,
    )


def test_samples_override_neither_far_centres_nor_a_weak_overlap() -> None:
    samples = [1.01]
    far = replace(SIDE, median=1.02, times_s=samples)

    assert said(replace(SIDE, times_s=samples), far) == (UNDECIDED, Reason.CENTERS_NOT_CLOSE)


def test_one_sample_a_side_gets_a_verdict() -> None:
    one, two = summary_of([1.0]), summary_of([2.0])

    assert said(one, one) == (SAME, Reason.BULK_TIME_SAME_WITHOUT_CYCLES)
    assert said(one, two, confirmation=False) == (SLOW, Reason.CLEAR_GAP_UNCONFIRMED)


def test_a_shortfall_is_told_in_numbers_and_as_severity() -> None:
    found = judge(SIDE, replace(SIDE, median=1.02), DEFAULT)

    assert found.message == "the centres differ by 0.99 %, more than 0.5 %"
    assert found.severity == pytest.approx(0.01 / 1.01 - 0.005)


def test_a_verdict_keeps_what_it_was_taken_from() -> None:
    found = judge(SIDE, QUICK, DEFAULT)

    assert found.reference is not None and found.candidate is not None
    assert (found.reference.centre, found.candidate.centre) == (1.01, 0.51)
    assert found.change is not None
    assert found.change.difference_s == pytest.approx((-0.52, -0.48))
    assert found.guaranteed is None  # undecided: nothing is claimed


def test_reasons_are_their_long_codes_and_have_short_ones() -> None:
    assert Reason("bulk_same") is Reason.BULK_SAME
    assert Reason.CLEAR_GAP_CONFIRMED_BY_SUMMARY_CYCLES.short == "sc-gap"
    assert len({reason.short for reason in Reason}) == len(Reason)
    assert all(len(reason.short) <= 14 for reason in Reason)
