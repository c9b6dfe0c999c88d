"""Both sides are described by one family of statistics, the first that both have."""

import math
from dataclasses import replace

import pytest

from evaluator.timing.screening.decide import overlap_fraction
from evaluator.timing.screening.estimate import (
    Estimate,
    Family,
    TimeRange,
    TimeSummary,
    estimates_of,
    interval_of,
    interval_of_samples,
    raw_times,
    relative_difference,
    summary_of,
)

QUARTILES = TimeSummary(
    minimum=1.0, first_quartile=2.0, median=3.0, third_quartile=4.0, iqr=2.0, iqr_relative=0.6
)
MOMENTS = TimeSummary(mean=3.0, stdev=1.0, stdev_relative=0.3)


def test_quartiles_of_both_sides_come_first() -> None:
    both = replace(QUARTILES, mean=5.0, stdev=1.0)

    found = estimates_of(both, QUARTILES)

    interval = TimeRange(lower=1.0, centre=3.0, upper=4.0)
    assert found.family is Family.ROBUST
    assert found.reference == Estimate(centre=3.0, noise=0.6, interval=interval)


def test_samples_stand_in_for_quartiles_that_nobody_recorded() -> None:
    found = estimates_of(QUARTILES, TimeSummary(mean=9.0, times_s=[1.0, 2.0, 3.0, 4.0, 5.0]))

    assert found.family is Family.ROBUST
    assert found.candidate == Estimate(
        centre=3.0, noise=2.0 / 3.0, interval=TimeRange(lower=1.0, centre=3.0, upper=4.0)
    )


def test_moments_serve_both_sides_when_one_lacks_quartiles() -> None:
    found = estimates_of(replace(QUARTILES, mean=3.5, stdev=0.5), MOMENTS)

    assert found.family is Family.CLASSICAL
    assert found.reference.centre == 3.5
    assert found.candidate == Estimate(
        centre=3.0, noise=0.3, interval=TimeRange(lower=2.0, centre=3.0, upper=4.0)
    )


def test_without_a_common_family_there_is_no_interval() -> None:
    found = estimates_of(QUARTILES, MOMENTS)

    assert found.family is Family.NONE
    assert found.intervals is None
    assert found.reference == Estimate(centre=3.0, noise=0.6)
    assert found.candidate == Estimate(centre=3.0, noise=0.3)


def test_centres_without_intervals_are_of_one_kind_where_both_have_it() -> None:
    found = estimates_of(TimeSummary(mean=1.0, median=2.0), TimeSummary(mean=3.0))

    assert (found.reference.centre, found.candidate.centre) == (1.0, 3.0)


def test_the_interval_of_moments_stays_within_what_was_seen() -> None:
    side = replace(MOMENTS, stdev=2.5, minimum=2.0, maximum=3.5)

    found = estimates_of(side, side)

    assert found.reference.interval == TimeRange(lower=2.0, centre=3.0, upper=3.5)


def test_the_interval_of_moments_stays_above_zero() -> None:
    side = replace(MOMENTS, stdev=30.0)

    found = estimates_of(side, side)

    assert found.reference.interval == TimeRange(lower=0.003, centre=3.0, upper=33.0)


def test_a_deviation_that_is_only_known_relative_is_enough() -> None:
    side = TimeSummary(mean=4.0, stdev_relative=0.25)

    found = estimates_of(side, side)

    assert found.reference.interval == TimeRange(lower=3.0, centre=4.0, upper=5.0)


def test_a_dispersion_that_is_only_known_absolute_is_divided_by_the_centre() -> None:
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
def test_statistics_that_contradict_themselves_make_no_interval(broken: TimeSummary) -> None:
    assert estimates_of(broken, broken).intervals is None


@pytest.mark.parametrize("bounds", [(0.0, 1.0, 2.0), (1.0, 3.0, 2.0), (1.0, 1.0, math.inf)])
def test_bounds_that_are_no_times_or_out_of_order_are_no_interval(
    bounds: tuple[float, float, float],
) -> None:
    assert interval_of(*bounds) is None


def test_the_interval_of_samples_is_that_of_their_summary() -> None:
    summary = summary_of([0.3, 0.1, 0.2, 0.7, 0.5])
    times = raw_times(summary)

    assert interval_of_samples(times) == estimates_of(summary, summary).reference.interval


def test_relative_difference_is_over_the_smaller_number() -> None:
    assert relative_difference(1.0, 2.0) == -1.0
    assert relative_difference(2.0, 1.0) == 1.0


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
def test_overlap_is_the_share_of_the_narrower_interval(
    one: tuple[float, float], other: tuple[float, float], share: float
) -> None:
    first = TimeRange(lower=one[0], centre=one[0], upper=one[1])
    second = TimeRange(lower=other[0], centre=other[0], upper=other[1])

    assert overlap_fraction(first, second) == share
    assert overlap_fraction(second, first) == share
