"""How much of what one side measured the other side measured too, mode weights apart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluator.timing.interval.summary import Samples
from evaluator.timing.interval.thresholds import Bulk, RareSupport, Thresholds

LEAST_COUNT = 2  # a value seen once is rare whatever the fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Shares of one side, 0 to 1, that lie near a value of the other side.

    `samples` counts each measurement, `support` each distinct value that is not too rare.
    """

    samples: float
    support: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """A share below its threshold: of the sampled or of the distinct values of a side."""

    side: str
    share: str
    covered: float
    needed: float

    @property
    def size(self) -> float:
        """How much is missing, as a fraction."""
        return self.needed - self.covered


def coverages(
    reference: Samples, candidate: Samples, thresholds: Thresholds
) -> tuple[Coverage, Coverage]:
    """Coverage of the reference by the candidate, and the other way, of positive samples."""
    values, counts = np.unique(reference, return_counts=True)
    other_values, other_counts = np.unique(candidate, return_counts=True)
    reach, rare = thresholds.same.center_relative, thresholds.bulk.rare_support
    return (
        _coverage(_near(values, other_values, reach), counts, rare),
        _coverage(_near(other_values, values, reach), other_counts, rare),
    )


def worst_shortfall(found: tuple[Coverage, Coverage], bulk: Bulk) -> Shortfall | None:
    """The share that misses its threshold by most; None if none does."""
    missed = [
        shortfall
        for side, coverage in zip(("reference", "candidate"), found, strict=True)
        for shortfall in _shortfalls(side, coverage, bulk)
    ]
    return max(missed, key=lambda shortfall: shortfall.size, default=None)


def _shortfalls(side: str, coverage: Coverage, bulk: Bulk) -> Sequence[Shortfall]:
    shares = (
        ("sampled", coverage.samples, bulk.sample_coverage),
        ("distinct", coverage.support, bulk.support_coverage),
    )
    return [
        Shortfall(side=side, share=share, covered=covered, needed=needed)
        for share, covered, needed in shares
        if covered < needed
    ]


def _near(values: Samples, others: Samples, reach: float) -> NDArray[np.bool_]:
    """Which values differ from the nearest of the others by no more than `reach` of the smaller.

    Both are sorted, neither is empty.
    """
    behind = np.searchsorted(others, values)
    neighbours = (others[np.maximum(behind - 1, 0)], others[np.minimum(behind, others.size - 1)])
    with np.errstate(over="ignore"):
        below, above = (
            np.abs(values - neighbour) / np.minimum(values, neighbour) for neighbour in neighbours
        )
    return np.minimum(below, above) <= reach


def _coverage(covered: NDArray[np.bool_], counts: NDArray[np.intp], rare: RareSupport) -> Coverage:
    return Coverage(
        samples=float(counts[covered].sum() / counts.sum()),
        support=float(covered[_kept(counts, rare)].mean()),
    )


def _kept(counts: NDArray[np.intp], rare: RareSupport) -> NDArray[np.bool_]:
    """Which distinct values count as support: all, unless leaving rare ones out costs little."""
    every = np.ones(counts.size, np.bool_)
    total = int(counts.sum())
    least = max(LEAST_COUNT, math.ceil(rare.sample_fraction * total))
    kept = counts >= least
    removed = int(counts[~kept].sum())
    off = rare.sample_fraction <= 0 or rare.max_removed_sample_fraction <= 0
    if off or not kept.any() or removed / total > rare.max_removed_sample_fraction:
        return every
    return kept
