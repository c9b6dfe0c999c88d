"""Centre, interval and noise of both sides, and the change that their intervals guarantee."""

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias, TypeGuard

import numpy as np

from evaluator.timing.interval.summary import (
    Samples,
    Summary,
    percentile,
    raw_times,
    summary_of,
)

LEAST_OF_MEAN = 0.001  # a spread wider than the mean must not carry the interval to zero


class Family(StrEnum):
    """Which statistics describe both sides: quartiles, moments, or none that both have."""

    ROBUST = "robust"
    CLASSICAL = "classical"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Positive bounds of the usual times, in seconds or in cycles, around their centre."""

    lower: float
    centre: float
    upper: float

    @property
    def width(self) -> float:
        """Distance between the bounds."""
        return self.upper - self.lower

    def scaled(self, factor: float) -> "Interval | None":
        """The interval times a factor; None if that is no interval."""
        return interval_of(self.lower * factor, self.centre * factor, self.upper * factor)


Intervals: TypeAlias = tuple[Interval, Interval]  # reference, candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One side in seconds; `noise` is relative to the centre, None if nobody can say.

    Without an interval the centre is as the summary has it, which need not be a time.
    """

    centre: float | None
    noise: float | None = None
    interval: Interval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Both sides described by one family; without a family neither has an interval.

    Centres are then of one kind if there is one that both sides have.
    """

    family: Family
    reference: Estimate
    candidate: Estimate

    @property
    def intervals(self) -> Intervals | None:
        """The intervals of both sides; None unless both have one."""
        reference, candidate = self.reference.interval, self.candidate.interval
        return (reference, candidate) if reference is not None and candidate is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Candidate minus reference between its least and its most, in seconds and relative.

    Relative is over the smaller of the two times, so that swapping the sides changes only the sign.
    """

    difference_s: tuple[float, float]
    relative: tuple[float, float]


def estimates_of(reference: Summary, candidate: Summary) -> Estimates:
    """Describe both sides by the first family that both have."""
    for family, estimate in ((Family.ROBUST, _robust), (Family.CLASSICAL, _classical)):
        first, second = estimate(reference), estimate(candidate)
        if first is not None and second is not None:
            return Estimates(family=family, reference=first, candidate=second)
    alike = _mean if None in (reference.median, candidate.median) else _median
    first, second = alike(reference), alike(candidate)
    if first.centre is None or second.centre is None:
        first, second = _own(reference), _own(candidate)
    return Estimates(family=Family.NONE, reference=first, candidate=second)


def is_time(value: float | None) -> TypeGuard[float]:
    """Whether a number can be the time that something took."""
    return value is not None and 0 < value < math.inf


def interval_of(lower: float, centre: float, upper: float) -> Interval | None:
    """An interval, if its numbers are positive, finite and in order."""
    if 0 < lower <= centre <= upper < math.inf:
        return Interval(lower=lower, centre=centre, upper=upper)
    return None


def robust_interval(summary: Summary) -> Interval | None:
    """From the least time to the third quartile, around the median; the slow tail is left out."""
    least, first = summary.minimum, summary.first_quartile
    median, third = summary.median, summary.third_quartile
    if least is None or first is None or median is None or third is None:
        return None
    return interval_of(least, median, third) if least <= first <= median else None


def interval_of_samples(samples: Samples) -> Interval:
    """The robust interval of positive, finite samples, of which there is at least one."""
    ordered = np.sort(samples)
    return Interval(
        lower=float(ordered[0]),
        centre=percentile(ordered, 50),
        upper=percentile(ordered, 75),
    )


def relative_difference(value: float, other: float) -> float:
    """How far a positive value lies above another, over the smaller of the two."""
    return (value - other) / min(value, other)


def change_between(reference: Interval, candidate: Interval) -> Change:
    """The least and the most that any time of one interval can differ from one of the other."""
    low, high = (candidate.lower, reference.upper), (candidate.upper, reference.lower)
    return Change(
        difference_s=(low[0] - low[1], high[0] - high[1]),
        relative=(relative_difference(*low), relative_difference(*high)),
    )


def _robust(summary: Summary) -> Estimate | None:
    measured = summary.iqr is not None or summary.iqr_relative is not None
    interval = robust_interval(summary) if measured else None
    if interval is not None:
        return replace(_median(summary), interval=interval)
    times = raw_times(summary)
    return _robust(summary_of(times)) if isinstance(times, np.ndarray) else None


def _classical(summary: Summary) -> Estimate | None:
    mean, stdev = summary.mean, summary.stdev
    if mean is None:
        return None
    if stdev is None and summary.stdev_relative is not None:
        stdev = summary.stdev_relative * mean
    if stdev is None or not 0 <= stdev < math.inf:
        return None  # one sample: its own minimum and maximum are no interval
    lower, upper = max(mean - stdev, LEAST_OF_MEAN * mean), mean + stdev
    if is_time(summary.minimum):
        lower = max(lower, summary.minimum)
    if is_time(summary.maximum):
        upper = min(upper, summary.maximum)
    interval = interval_of(lower, mean, upper)
    return None if interval is None else replace(_mean(summary), interval=interval)


def _median(summary: Summary) -> Estimate:
    noise = _noise(summary.iqr_relative, summary.iqr, summary.median)
    return Estimate(centre=summary.median, noise=noise)


def _mean(summary: Summary) -> Estimate:
    noise = _noise(summary.stdev_relative, summary.stdev, summary.mean)
    return Estimate(centre=summary.mean, noise=noise)


def _own(summary: Summary) -> Estimate:
    return _mean(summary) if summary.median is None else _median(summary)


def _noise(relative: float | None, absolute: float | None, centre: float | None) -> float | None:
    if relative is None and absolute is not None and is_time(centre):
        relative = absolute / centre
    return relative if relative is not None and 0 <= relative < math.inf else None
