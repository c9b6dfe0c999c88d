"""At a threshold, a number that just reaches it counts as reaching it."""

import numpy as np

from evaluator.timing.decision import Verdict
from evaluator.timing.screening.decide import Reason, judge
from evaluator.timing.screening.estimate import (
    Bulk,
    ClearGap,
    RareSupport,
    Same,
    Thresholds,
    TimeSummary,
    coverages,
)

# Quarters and halves are exact in binary, so that these edges are the true ones.
QUARTER = Thresholds(
    clear_gap=ClearGap(relative=0.25),
    same=Same(center_relative=0.25, overlap_fraction=0.5, relative_dispersion_ceiling=0.25),
)


def side(lower: float, centre: float, upper: float, noise: float = 0.0) -> TimeSummary:
    return TimeSummary(
        minimum=lower,
        first_quartile=lower,
        median=centre,
        third_quartile=upper,
        iqr_relative=noise,
    )


def test_a_gap_of_just_the_threshold_is_clear() -> None:
    reference, candidate = side(2.0, 3.0, 4.0), side(5.0, 6.0, 7.0)

    slow = judge(reference, candidate, QUARTER, confirmation=False)
    fast = judge(candidate, reference, QUARTER, confirmation=False)

    assert (slow.verdict, fast.verdict) == (Verdict.SLOW, Verdict.FAST)


def test_a_gap_just_below_the_threshold_is_not_clear() -> None:
    found = judge(side(2.0, 3.0, 4.0), side(4.999, 6.0, 7.0), QUARTER, confirmation=False)

    assert found.verdict is Verdict.UNDECIDED


def test_intervals_that_touch_are_not_apart_even_when_any_gap_is_clear() -> None:
    any_gap = Thresholds(clear_gap=ClearGap(relative=0.0))

    found = judge(side(2.0, 3.0, 4.0), side(4.0, 5.0, 6.0), any_gap, confirmation=False)

    assert found.verdict is Verdict.UNDECIDED


def test_centres_just_as_far_apart_as_allowed_are_close() -> None:
    assert judge(side(2.0, 4.0, 8.0), side(2.0, 5.0, 8.0), QUARTER).verdict is Verdict.SAME


def test_intervals_that_share_just_enough_overlap() -> None:
    reference, enough, less = side(2.0, 4.0, 4.0), side(3.0, 4.0, 5.0), side(3.001, 4.0, 5.0)

    assert judge(reference, enough, QUARTER).verdict is Verdict.SAME
    assert judge(reference, less, QUARTER).reason is Reason.WEAK_INTERVAL_OVERLAP


def test_noise_just_at_the_ceiling_is_not_too_high() -> None:
    calm, noisy, noisier = (side(2.0, 4.0, 8.0, noise) for noise in (0.0, 0.25, 0.26))

    assert judge(noisy, noisy, QUARTER).verdict is Verdict.SAME
    assert judge(noisier, noisier, QUARTER).reason is Reason.NOISE_TOO_HIGH
    assert judge(calm, noisier, QUARTER).reason is Reason.NOISE_TOO_HIGH
    assert judge(noisier, calm, QUARTER).reason is Reason.NOISE_TOO_HIGH


def test_a_value_seen_once_is_rare_however_small_the_fraction() -> None:
    limits = RareSupport(sample_fraction=1e-9, max_removed_sample_fraction=0.5)
    thresholds = Thresholds(bulk=Bulk(rare_support=limits))

    found, _ = coverages(np.array([1.0, 1.0, 2.0]), np.array([1.0]), thresholds)

    assert found.support == 1.0


def test_rare_values_of_just_the_allowed_mass_are_left_out() -> None:
    limits = RareSupport(sample_fraction=0.001, max_removed_sample_fraction=0.25)
    thresholds = Thresholds(bulk=Bulk(rare_support=limits))

    found, _ = coverages(np.array([1.0, 1.0, 1.0, 2.0]), np.array([1.0]), thresholds)

    assert found.support == 1.0
