"""Samples cover each other when each side has seen, nearby, what the other has seen."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.timing.screening.estimate import (
    PRESETS,
    Bulk,
    RareSupport,
    Same,
    SampleCoverage,
    Samples,
    Thresholds,
    coverages,
    worst_shortfall,
)

DEFAULT = PRESETS["default"]
WHOLE = SampleCoverage(samples=1.0, support=1.0)
TIMES = st.lists(st.integers(1, 300), min_size=1, max_size=40)


def array(*values: float) -> Samples:
    return np.array(values, np.float64)


def rare(sample_fraction: float, max_removed: float) -> Thresholds:
    limits = RareSupport(sample_fraction=sample_fraction, max_removed_sample_fraction=max_removed)
    return Thresholds(bulk=Bulk(rare_support=limits))


def test_equal_samples_cover_each_other_wholly() -> None:
    assert coverages(array(3.0, 1.0, 2.0), array(1.0, 2.0, 3.0), DEFAULT) == (WHOLE, WHOLE)


def test_samples_far_apart_cover_nothing() -> None:
    none = SampleCoverage(samples=0.0, support=0.0)

    assert coverages(array(1.0), array(2.0), DEFAULT) == (none, none)


def test_a_value_is_near_up_to_the_limit_and_not_beyond() -> None:
    limits = Thresholds(same=Same(center_relative=0.25))

    assert coverages(array(4.0), array(5.0), limits) == (WHOLE, WHOLE)
    assert coverages(array(4.0), array(5.001), limits)[0].samples == 0.0


def test_the_nearest_value_may_lie_above_or_below() -> None:
    reference = array(1.0, 2.0, 3.0)
    candidate = array(0.999, 1.999, 2.999)

    assert coverages(reference, candidate, DEFAULT) == (WHOLE, WHOLE)
    assert coverages(candidate, reference, DEFAULT) == (WHOLE, WHOLE)


def test_samples_count_each_time_and_support_once() -> None:
    found, _ = coverages(array(1.0, 1.0, 1.0, 2.0, 2.0), array(1.0), DEFAULT)

    assert found == SampleCoverage(samples=0.6, support=0.5)


def test_a_side_may_be_covered_though_it_does_not_cover_the_other() -> None:
    first, second = coverages(array(1.0), array(1.0, 2.0), DEFAULT)

    assert first == WHOLE
    assert second == SampleCoverage(samples=0.5, support=0.5)


THOUSAND_AND_TEN = np.concatenate((np.ones(1000), np.arange(2.0, 12.0)))


def test_rare_values_are_left_out_of_the_support_and_not_of_the_samples() -> None:
    found, _ = coverages(THOUSAND_AND_TEN, np.ones(1000), rare(0.001, 0.01))

    assert found.samples == pytest.approx(0.990, abs=1e-3)
    assert found.support == 1.0


@pytest.mark.parametrize(
    "limits",
    [
        rare(0.001, 0.005),  # ten of 1010 samples are more than may be left out
        rare(0.0, 0.01),  # switched off
        rare(0.001, 0.0),  # switched off
        rare(1.0, 1.0),  # would leave nothing
    ],
)
def test_rare_values_stay_where_they_may_not_be_left_out(limits: Thresholds) -> None:
    found, _ = coverages(THOUSAND_AND_TEN, np.ones(1000), limits)

    assert found.support == pytest.approx(1 / 11)


def test_values_that_were_all_seen_once_are_all_support() -> None:
    found, _ = coverages(np.arange(1.0, 11.0), array(1.0), rare(0.5, 1.0))

    assert found.support == pytest.approx(0.1)


def test_how_often_a_rare_value_occurs_grows_with_the_samples() -> None:
    many = np.concatenate((np.ones(9_981), np.full(9, 2.0), np.full(10, 3.0)))

    found, _ = coverages(many, array(1.0), rare(0.001, 0.01))

    assert found.support == pytest.approx(0.5)  # ten of ten thousand is not rare, nine is


def test_the_worst_shortfall_is_the_share_that_misses_most() -> None:
    found = worst_shortfall(
        (SampleCoverage(samples=0.9, support=0.79), SampleCoverage(samples=0.95, support=0.5)),
        DEFAULT.bulk,
    )

    assert found is not None
    assert (found.side, found.share) == ("candidate", "distinct")
    assert found.size == pytest.approx(0.3)


def test_shares_at_their_thresholds_fall_short_of_nothing() -> None:
    edge = SampleCoverage(
        samples=DEFAULT.bulk.sample_coverage, support=DEFAULT.bulk.support_coverage
    )

    assert worst_shortfall((edge, WHOLE), DEFAULT.bulk) is None


@given(TIMES, TIMES, st.sampled_from([0.0, 0.005, 0.1, 1.0]))
def test_samples_are_covered_as_comparing_every_pair_would_have_it(
    reference: list[int], candidate: list[int], reach: float
) -> None:
    limits = Thresholds(same=Same(center_relative=reach))
    covered = [
        any(abs(value - other) / min(value, other) <= reach for other in candidate)
        for value in reference
    ]

    found, _ = coverages(array(*reference), array(*candidate), limits)

    assert math.isclose(found.samples, sum(covered) / len(covered))


@given(TIMES, TIMES)
def test_swapping_the_sides_swaps_the_coverages(reference: list[int], candidate: list[int]) -> None:
    one = coverages(array(*reference), array(*candidate), DEFAULT)
    other = coverages(array(*candidate), array(*reference), DEFAULT)

    assert one == (other[1], other[0])


def test_extremes_of_a_float_are_compared_without_a_warning() -> None:
    found, _ = coverages(array(5e-324, 1e308), array(1e-300), DEFAULT)

    assert found.samples == 0.0
