"""What samples and summaries of a launch show, how far two cover each other, and the thresholds."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.timing.screening.estimate import (
    PRESETS,
    Bulk,
    Channel,
    Estimate,
    Family,
    RareSupport,
    Same,
    SampleCoverage,
    Thresholds,
    TimeRange,
    TimeSummary,
    Unusable,
    change_between,
    coverages,
    estimates_of,
    interval_of,
    interval_of_samples,
    raw_clocks,
    raw_cycles,
    raw_times,
    relative_difference,
    summary_of,
    worst_shortfall,
)

DEFAULT = PRESETS["default"]
TIMES = st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=60)
LOST = Unusable(channel=Channel.TIMES, why="cut off")


def test_statistics_of_five_samples_are_as_by_hand():
    assert summary_of([5.0, 1.0, 3.0, 2.0, 4.0]) == TimeSummary(
        minimum=1.0,
        maximum=5.0,
        mean=3.0,
        stdev=math.sqrt(2.5),
        stdev_relative=math.sqrt(2.5) / 3.0,
        first_quartile=2.0,
        median=3.0,
        third_quartile=4.0,
        iqr=2.0,
        iqr_relative=2.0 / 3.0,
    )


@pytest.mark.parametrize(
    ("samples", "expected"),
    [([2.0], (2.0, 2.0, 2.0)), ([2.0, 1.0], (1.0, 2.0, 2.0)), (range(1, 11), (3.0, 6.0, 8.0))],
)
def test_quartiles_are_values_that_were_measured(samples, expected):
    found = summary_of(samples)
    assert (found.first_quartile, found.median, found.third_quartile) == expected
    assert (found.stdev is None) == (len(samples) == 1)


@pytest.mark.parametrize(
    ("times_s", "why"),
    [
        ([1.0, math.nan, 2.0], "1 of 3 not positive and finite, first nan at 1"),
        ([1.0, math.inf], "1 of 2 not positive and finite, first inf at 1"),
        ([-1.0, 0.0], "2 of 2 not positive and finite, first -1 at 0"),
    ],
)
def test_times_that_cannot_be_used_are_named_and_give_no_statistics(times_s, why):
    assert summary_of(times_s) == TimeSummary(unusable=(Unusable(channel=Channel.TIMES, why=why),))


def test_clock_rates_are_those_recorded_or_the_mean_of_as_many_as_there_are_times():
    unlike = summary_of([1.0, 2.0, 3.0], [100.0, 100.0])

    why = "2 clock rates for 3 times"
    assert unlike.unusable == (Unusable(channel=Channel.CLOCKS, why=why),)
    assert (unlike.median, unlike.clock_hz) == (2.0, None)
    assert summary_of([1.0, 2.0], [100.0, 200.0]).clock_hz == 150.0
    assert summary_of([1.0, 2.0], [100.0, 200.0], 120.0).clock_hz == 120.0


def test_cycles_are_time_by_clock_rate_and_need_both():
    assert np.array_equal(raw_cycles(summary_of([1.0, 2.0], [100.0, 50.0])), [100.0, 100.0])
    assert raw_cycles(summary_of([1.0])) is None
    assert raw_cycles(TimeSummary(clocks_hz=[100.0])) is None
    assert raw_cycles(summary_of([1e300], [1e300])).channel is Channel.CLOCKS


def test_a_reader_may_say_that_samples_are_unusable_though_it_kept_them():
    assert raw_times(TimeSummary(times_s=[1.0], unusable=(LOST,))) is LOST
    assert raw_cycles(TimeSummary(times_s=[1.0], clocks_hz=[1.0], unusable=(LOST,))) is LOST
    assert not TimeSummary(unusable=(LOST,)).empty


def test_vectors_from_files_in_single_precision_become_double():
    single = np.array([1.5, 2.5], np.float32)
    summary = TimeSummary(times_s=single, clocks_hz=single)
    assert {found(summary).dtype for found in (raw_times, raw_clocks)} == {np.dtype("float64")}


@given(TIMES)
def test_statistics_are_in_order_whatever_the_order_of_samples(times_s):
    found, again = summary_of(times_s), summary_of(sorted(times_s, reverse=True))

    assert found.median in times_s
    assert 0 < found.minimum <= found.mean <= found.maximum
    assert found.minimum <= found.first_quartile <= found.median
    assert found.median <= found.third_quartile <= found.maximum
    assert (found.minimum, found.median, found.iqr) == (again.minimum, again.median, again.iqr)


@given(st.lists(st.floats(), max_size=20), st.lists(st.floats(), max_size=20))
def test_any_numbers_make_a_summary(times_s, clocks_hz):
    found = summary_of(times_s, clocks_hz)

    assert found.empty == (not times_s)
    assert (found.median is None) == (not times_s or not all(0 < t < math.inf for t in times_s))


QUARTILES = TimeSummary(
    minimum=1.0, first_quartile=2.0, median=3.0, third_quartile=4.0, iqr=2.0, iqr_relative=0.6
)
MOMENTS = TimeSummary(mean=3.0, stdev=1.0, stdev_relative=0.3)
OF_QUARTILES = TimeRange(lower=1.0, centre=3.0, upper=4.0)


@pytest.mark.parametrize(
    ("reference", "candidate", "family", "found"),
    [
        (
            replace(QUARTILES, mean=5.0, stdev=1.0),
            QUARTILES,
            Family.ROBUST,
            Estimate(centre=3.0, noise=0.6, interval=OF_QUARTILES),
        ),
        # Samples stand in for quartiles that were not recorded.
        (
            QUARTILES,
            TimeSummary(mean=9.0, times_s=[1.0, 2.0, 3.0, 4.0, 5.0]),
            Family.ROBUST,
            Estimate(centre=3.0, noise=2.0 / 3.0, interval=OF_QUARTILES),
        ),
        (
            replace(QUARTILES, mean=3.5, stdev=0.5),
            MOMENTS,
            Family.CLASSICAL,
            Estimate(centre=3.0, noise=0.3, interval=TimeRange(lower=2.0, centre=3.0, upper=4.0)),
        ),
        (QUARTILES, MOMENTS, Family.NONE, Estimate(centre=3.0, noise=0.3)),
        # Centres without intervals are of one kind where both have it.
        (
            TimeSummary(mean=1.0, median=2.0),
            TimeSummary(mean=3.0),
            Family.NONE,
            Estimate(centre=3.0),
        ),
    ],
)
def test_both_sides_are_described_by_the_first_family_that_both_have(
    reference, candidate, family, found
):
    told = estimates_of(reference, candidate)
    assert (told.family, told.candidate) == (family, found)
    assert (told.intervals is None) == (family is Family.NONE)
    if candidate.median is None and candidate.times_s is None and reference.mean is not None:
        assert told.reference.centre == reference.mean


@pytest.mark.parametrize(
    ("side", "bounds"),
    [
        (replace(MOMENTS, stdev=2.5, minimum=2.0, maximum=3.5), (2.0, 3.0, 3.5)),
        (replace(MOMENTS, stdev=30.0), (0.003, 3.0, 33.0)),
        (TimeSummary(mean=4.0, stdev_relative=0.25), (3.0, 4.0, 5.0)),
    ],
)
def test_the_interval_of_moments_stays_above_zero_and_within_what_was_seen(side, bounds):
    lower, centre, upper = bounds
    interval = estimates_of(side, side).reference.interval
    assert interval == TimeRange(lower=lower, centre=centre, upper=upper)


def test_a_dispersion_that_is_only_known_absolute_is_divided_by_the_centre():
    found = estimates_of(replace(QUARTILES, iqr_relative=None), QUARTILES)
    assert found.reference.noise == pytest.approx(2.0 / 3.0)


@pytest.mark.parametrize(
    "broken",
    [
        replace(QUARTILES, minimum=2.5),
        replace(QUARTILES, first_quartile=3.5),
        replace(QUARTILES, third_quartile=2.9),
        replace(QUARTILES, minimum=0.0),
        replace(QUARTILES, third_quartile=math.inf),
        replace(QUARTILES, median=math.nan),
        replace(QUARTILES, iqr=None, iqr_relative=None),
        replace(MOMENTS, stdev=-1.0),
        replace(MOMENTS, stdev=math.nan),
        replace(MOMENTS, stdev=math.inf),
        replace(MOMENTS, minimum=3.5),
        TimeSummary(mean=3.0),
    ],
)
def test_statistics_that_contradict_themselves_make_no_interval(broken):
    assert estimates_of(broken, broken).intervals is None


@pytest.mark.parametrize("bounds", [(0.0, 1.0, 2.0), (1.0, 3.0, 2.0), (1.0, 1.0, math.inf)])
def test_bounds_that_are_no_times_or_out_of_order_are_no_interval(bounds):
    assert interval_of(*bounds) is None


def test_the_interval_of_samples_is_that_of_their_summary():
    summary = summary_of([0.3, 0.1, 0.2, 0.7, 0.5])
    interval = interval_of_samples(raw_times(summary))
    assert interval == estimates_of(summary, summary).reference.interval


def test_relative_change_is_over_the_smaller_time_and_changes_sign_with_the_sides():
    one = TimeRange(lower=4.096e-6, centre=4.6e-6, upper=5.120e-6)
    other = TimeRange(lower=6.112e-6, centre=6.12e-6, upper=6.144e-6)

    assert (relative_difference(1.0, 2.0), relative_difference(2.0, 1.0)) == (-1.0, 1.0)
    assert change_between(one, other).relative == pytest.approx((0.19375, 0.5))
    assert change_between(other, one).relative == pytest.approx((-0.5, -0.19375))


WHOLE, NONE = (SampleCoverage(samples=share, support=share) for share in (1.0, 0.0))
COUNTS = st.lists(st.integers(1, 300), min_size=1, max_size=40)
THOUSAND_AND_TEN = np.concatenate((np.ones(1000), np.arange(2.0, 12.0)))
NINE_AND_TEN = np.concatenate((np.ones(9_981), np.full(9, 2.0), np.full(10, 3.0)))


def covered(reference, candidate, limits=DEFAULT):
    sides = (np.array(side, np.float64) for side in (reference, candidate))
    return coverages(*sides, limits)


def rare(sample_fraction, max_removed):
    limits = RareSupport(sample_fraction=sample_fraction, max_removed_sample_fraction=max_removed)
    return Thresholds(bulk=Bulk(rare_support=limits))


def near(center_relative):
    return Thresholds(same=Same(center_relative=center_relative))


@pytest.mark.parametrize(
    ("reference", "candidate", "limits", "first", "second"),
    [
        ([3.0, 1.0, 2.0], [1.0, 2.0, 3.0], DEFAULT, WHOLE, WHOLE),
        ([1.0], [2.0], DEFAULT, NONE, NONE),
        ([1.0, 2.0, 3.0], [0.999, 1.999, 2.999], DEFAULT, WHOLE, WHOLE),
        # A value is near up to the limit and not beyond.
        ([4.0], [5.0], near(0.25), WHOLE, WHOLE),
        ([4.0], [5.001], near(0.25), NONE, NONE),
        # Samples count each time, and support once.
        ([1.0] * 3 + [2.0] * 2, [1.0], DEFAULT, SampleCoverage(samples=0.6, support=0.5), WHOLE),
        ([1.0], [1.0, 2.0], DEFAULT, WHOLE, SampleCoverage(samples=0.5, support=0.5)),
        # Extremes of a float are compared without a warning.
        ([5e-324, 1e308], [1e-300], DEFAULT, NONE, NONE),
    ],
)
def test_a_side_is_covered_where_the_other_has_seen_something_near(
    reference, candidate, limits, first, second
):
    assert covered(reference, candidate, limits) == (first, second)


@pytest.mark.parametrize(
    ("samples", "limits", "support"),
    [
        (THOUSAND_AND_TEN, rare(0.001, 0.01), 1.0),
        (THOUSAND_AND_TEN, rare(0.001, 0.005), 1 / 11),  # ten of 1010 are more than may go
        (THOUSAND_AND_TEN, rare(0.0, 0.01), 1 / 11),  # switched off
        (THOUSAND_AND_TEN, rare(0.001, 0.0), 1 / 11),  # switched off
        (THOUSAND_AND_TEN, rare(1.0, 1.0), 1 / 11),  # would leave nothing
        (np.arange(1.0, 11.0), rare(0.5, 1.0), 0.1),  # all were seen once
        (NINE_AND_TEN, rare(0.001, 0.01), 0.5),  # ten of ten thousand is not rare, nine is
        ([1.0, 1.0, 2.0], rare(1e-9, 0.5), 1.0),  # seen once is rare however small the share
        ([1.0, 1.0, 1.0, 2.0], rare(0.001, 0.25), 1.0),  # just as much as may be left out
    ],
)
def test_rare_values_are_left_out_of_the_support_where_they_may_be(samples, limits, support):
    found, _ = covered(samples, [1.0], limits)
    assert found.support == pytest.approx(support)
    assert found.samples < 1


def test_the_worst_shortfall_is_the_share_that_misses_most_and_none_at_the_threshold():
    found = worst_shortfall(
        (SampleCoverage(samples=0.9, support=0.79), SampleCoverage(samples=0.95, support=0.5)),
        DEFAULT.bulk,
    )
    edge = SampleCoverage(
        samples=DEFAULT.bulk.sample_coverage, support=DEFAULT.bulk.support_coverage
    )

    assert (found.side, found.share) == ("candidate", "distinct")
    assert found.size == pytest.approx(0.3)
    assert worst_shortfall((edge, WHOLE), DEFAULT.bulk) is None


@given(COUNTS, COUNTS, st.sampled_from([0.0, 0.005, 0.1, 1.0]))
def test_samples_are_covered_as_comparing_every_pair_would_have_it(reference, candidate, reach):
    pairs = [
        any(abs(value - other) / min(value, other) <= reach for other in candidate)
        for value in reference
    ]
    found, back = covered(reference, candidate, near(reach))

    assert math.isclose(found.samples, sum(pairs) / len(pairs))
    assert covered(candidate, reference, near(reach)) == (back, found)
