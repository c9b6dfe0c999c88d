"""A summary of raw samples says what it can, and names the samples nobody can use."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.timing.screening.estimate import (
    Channel,
    TimeSummary,
    Unusable,
    raw_clocks,
    raw_cycles,
    raw_times,
    summary_of,
)

TIMES = st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=60)


def test_statistics_of_five_samples_are_as_by_hand() -> None:
    found = summary_of([5.0, 1.0, 3.0, 2.0, 4.0])

    assert found == TimeSummary(
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


def test_the_median_of_two_samples_is_the_larger() -> None:
    found = summary_of([2.0, 1.0])

    assert (found.first_quartile, found.median, found.third_quartile) == (1.0, 2.0, 2.0)


def test_quartiles_of_ten_samples_are_the_third_sixth_and_eighth() -> None:
    found = summary_of(range(1, 11))

    assert (found.first_quartile, found.median, found.third_quartile) == (3.0, 6.0, 8.0)


def test_one_sample_has_a_centre_and_no_standard_deviation() -> None:
    found = summary_of([2.0])

    assert (found.median, found.mean, found.iqr) == (2.0, 2.0, 0.0)
    assert found.stdev is None
    assert found.stdev_relative is None


def test_no_samples_are_an_empty_summary() -> None:
    assert summary_of([]) == TimeSummary()
    assert summary_of([]).empty


def test_a_launch_with_unreadable_samples_only_is_not_empty() -> None:
    lost = Unusable(channel=Channel.TIMES, why="cut off")

    assert not TimeSummary(unusable=(lost,)).empty


@pytest.mark.parametrize(
    ("times_s", "why"),
    [
        ([1.0, math.nan, 2.0], "1 of 3 not positive and finite, first nan at 1"),
        ([1.0, math.inf], "1 of 2 not positive and finite, first inf at 1"),
        ([-1.0, 0.0], "2 of 2 not positive and finite, first -1 at 0"),
        ([1.0, 0.0], "1 of 2 not positive and finite, first 0 at 1"),
    ],
)
def test_times_that_cannot_be_used_are_named_and_give_no_statistics(
    times_s: object, why: str
) -> None:
    found = summary_of(times_s)

    assert found == TimeSummary(unusable=(Unusable(channel=Channel.TIMES, why=why),))
    assert found.times_s is None


def test_clock_rates_of_another_count_are_named_and_the_times_kept() -> None:
    found = summary_of([1.0, 2.0, 3.0], [100.0, 100.0])

    why = "2 clock rates for 3 times"
    assert found.unusable == (Unusable(channel=Channel.CLOCKS, why=why),)
    assert found.median == 2.0
    assert found.clock_hz is None


def test_the_clock_rate_of_a_launch_is_the_mean_of_its_samples() -> None:
    assert summary_of([1.0, 2.0], [100.0, 200.0]).clock_hz == 150.0


def test_a_clock_rate_that_was_recorded_comes_before_the_mean_of_the_samples() -> None:
    assert summary_of([1.0, 2.0], [100.0, 200.0], 120.0).clock_hz == 120.0


def test_cycles_are_time_by_clock_rate() -> None:
    found = raw_cycles(summary_of([1.0, 2.0], [100.0, 50.0]))

    assert np.array_equal(found, [100.0, 100.0])


def test_cycles_need_both_times_and_clock_rates() -> None:
    assert raw_cycles(summary_of([1.0])) is None
    assert raw_cycles(TimeSummary(clocks_hz=[100.0])) is None


def test_cycles_beyond_what_a_float_holds_are_unusable() -> None:
    found = raw_cycles(summary_of([1e300], [1e300]))

    assert isinstance(found, Unusable)
    assert found.channel is Channel.CLOCKS


def test_a_reader_may_say_that_samples_are_unusable_though_it_kept_them() -> None:
    lost = Unusable(channel=Channel.TIMES, why="cut off")

    assert raw_times(TimeSummary(times_s=[1.0], unusable=(lost,))) is lost
    assert raw_cycles(TimeSummary(times_s=[1.0], clocks_hz=[1.0], unusable=(lost,))) is lost


def test_vectors_from_files_in_single_precision_become_double() -> None:
    single = np.array([1.5, 2.5], np.float32)
    summary = TimeSummary(times_s=single, clocks_hz=single)

    times, clocks = raw_times(summary), raw_clocks(summary)

    assert isinstance(times, np.ndarray) and times.dtype == np.float64
    assert isinstance(clocks, np.ndarray) and clocks.dtype == np.float64


@given(TIMES)
def test_statistics_are_in_order_and_positive(times_s: list[float]) -> None:
    found = summary_of(times_s)

    assert found.minimum is not None and found.maximum is not None and found.mean is not None
    assert found.first_quartile is not None and found.third_quartile is not None
    assert found.median in times_s
    assert 0 < found.minimum <= found.mean <= found.maximum
    assert found.minimum <= found.first_quartile <= found.median
    assert found.median <= found.third_quartile <= found.maximum


@given(TIMES)
def test_the_order_of_samples_does_not_move_the_quartiles(
    times_s: list[float],
) -> None:
    shuffled = sorted(times_s, reverse=True)

    one, other = summary_of(times_s), summary_of(shuffled)

    assert (one.minimum, one.median, one.iqr) == (other.minimum, other.median, other.iqr)


@given(st.lists(st.floats(), max_size=20), st.lists(st.floats(), max_size=20))
def test_any_numbers_make_a_summary(times_s: list[float], clocks_hz: list[float]) -> None:
    found = summary_of(times_s, clocks_hz)

    assert found.empty == (not times_s)
    assert (found.median is None) == (not times_s or not all(0 < t < math.inf for t in times_s))
