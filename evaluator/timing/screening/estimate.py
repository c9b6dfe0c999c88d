"""Statistics of one launch, intervals of two, and the thresholds of their comparison."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

Samples: TypeAlias = NDArray[np.float64]


class Channel(StrEnum):
    """A vector of raw samples."""

    TIMES = "times"
    CLOCKS = "clocks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unusable:
    """Raw samples that were recorded and cannot be used, and why.

    `is_gone` is a file that is missing or empty: a clear gap can do without it, sameness cannot.
    """

    channel: Channel
    why: str
    is_gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSummary:
    """Statistics of the times of one launch; None is what was not recorded.

    `stdev_relative` is over the mean, `iqr_relative` over the median; either may be +inf. The raw
    vectors are shaped (samples,), one clock rate for each time; no samples are as good as None.
    """

    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    stdev: float | None = None
    stdev_relative: float | None = None
    first_quartile: float | None = None
    median: float | None = None
    third_quartile: float | None = None
    iqr: float | None = None
    iqr_relative: float | None = None
    clock_hz: float | None = None
    times_s: ArrayLike | None = field(default=None, compare=False, repr=False)
    clocks_hz: ArrayLike | None = field(default=None, compare=False, repr=False)
    unusable: tuple[Unusable, ...] = ()
    skipped: bool = False

    @property
    def empty(self) -> bool:
        """Whether nothing was recorded of the times, not even unreadable samples."""
        without_clocks = replace(self, clock_hz=None, unusable=(), skipped=False)
        return without_clocks == TimeSummary() and raw_times(self) is None


def summary_of(
    times_s: ArrayLike, clocks_hz: ArrayLike | None = None, clock_hz: float | None = None
) -> TimeSummary:
    """The summary of raw samples; a vector that cannot be used is named in `unusable` instead.

    Without a clock rate for the whole launch it is the mean of the samples' own.
    """
    given = TimeSummary(times_s=times_s, clocks_hz=clocks_hz, clock_hz=clock_hz)
    times, clocks = raw_times(given), raw_clocks(given)
    unusable = tuple(raw for raw in (times, clocks) if isinstance(raw, Unusable))
    if not isinstance(clocks, np.ndarray):
        clocks = None
    elif clock_hz is None:
        clock_hz = _mean(clocks)
    known = TimeSummary(clocks_hz=clocks, clock_hz=clock_hz, unusable=unusable)
    if not isinstance(times, np.ndarray):
        return known
    ordered = np.sort(times)
    low, middle, high = (percentile(ordered, percent) for percent in (25, 50, 75))
    mean, stdev = _mean(times), None
    if times.size > 1:
        with np.errstate(over="ignore"):
            stdev = float(times.std(ddof=1))
    return replace(
        known,
        minimum=float(ordered[0]),
        maximum=float(ordered[-1]),
        mean=mean,
        stdev=stdev,
        stdev_relative=None if stdev is None else stdev / mean,
        first_quartile=low,
        median=middle,
        third_quartile=high,
        iqr=high - low,
        iqr_relative=(high - low) / middle,
        times_s=times,
    )


def percentile(ordered: Samples, percent: int) -> float:
    """The sample at a rank of sorted samples, halves rounded up: of two, the median is the larger.

    Always a value that was measured, never one between two modes.
    """
    return float(ordered[(percent * (ordered.size - 1) + 50) // 100])


def raw_times(summary: TimeSummary) -> Samples | Unusable | None:
    """The times behind a summary: positive and finite, or why not; None without any."""
    return _raw(summary, Channel.TIMES, summary.times_s)


def raw_clocks(summary: TimeSummary) -> Samples | Unusable | None:
    """The clock rates behind a summary, one for each time, or why not; None without any."""
    times, clocks = raw_times(summary), _raw(summary, Channel.CLOCKS, summary.clocks_hz)
    if not isinstance(times, np.ndarray) or not isinstance(clocks, np.ndarray):
        return clocks
    if times.size == clocks.size:
        return clocks
    why = f"{clocks.size} clock rates for {times.size} times"
    return Unusable(channel=Channel.CLOCKS, why=why)


def raw_cycles(summary: TimeSummary) -> Samples | Unusable | None:
    """The cycles that each sample took, or why they are unknown; None unless both are recorded."""
    times, clocks = raw_times(summary), raw_clocks(summary)
    if times is None or clocks is None:
        return None
    if isinstance(times, Unusable):
        return times
    if isinstance(clocks, Unusable):
        return clocks
    with np.errstate(over="ignore", under="ignore"):
        return _checked(Channel.CLOCKS, times * clocks)


def _raw(
    summary: TimeSummary, channel: Channel, values: ArrayLike | None
) -> Samples | Unusable | None:
    for known in summary.unusable:
        if known.channel is channel:
            return known
    if values is None:
        return None
    numbers = np.asarray(values, np.float64)
    return _checked(channel, numbers) if numbers.size else None


def _checked(channel: Channel, numbers: Samples) -> Samples | Unusable:
    good = np.isfinite(numbers) & (numbers > 0)
    if good.all():
        return numbers
    first = int(np.argmin(good))
    bad = int(numbers.size - np.count_nonzero(good))
    why = f"{bad} of {numbers.size} not positive and finite, first {numbers[first]:g} at {first}"
    return Unusable(channel=channel, why=why)


def _mean(numbers: Samples) -> float:
    """Mean of positive numbers; rounding must not carry it outside their range."""
    with np.errstate(over="ignore"):
        return float(np.clip(numbers.mean(), numbers.min(), numbers.max()))


LEAST_OF_MEAN = 0.001  # a spread wider than the mean must not carry the interval to zero


class Family(StrEnum):
    """Which statistics describe both sides: quartiles, moments, or none that both have."""

    ROBUST = "robust"
    CLASSICAL = "classical"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """Positive bounds of the usual times, in seconds or in cycles, around their centre."""

    lower: float
    centre: float
    upper: float

    @property
    def width(self) -> float:
        """Distance between the bounds."""
        return self.upper - self.lower

    def scaled(self, factor: float) -> "TimeRange | None":
        """The interval times a factor; None if that is not an interval."""
        return interval_of(self.lower * factor, self.centre * factor, self.upper * factor)


TimeRanges: TypeAlias = tuple[TimeRange, TimeRange]  # reference, candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One side in seconds; `noise` is relative to the centre, None if unknown.

    Without an interval the centre is as the summary has it, which need not be a time.
    """

    centre: float | None
    noise: float | None = None
    interval: TimeRange | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Both sides described by one family; without a family neither has an interval.

    Centres are then of one kind if there is one that both sides have.
    """

    family: Family
    reference: Estimate
    candidate: Estimate

    @property
    def intervals(self) -> TimeRanges | None:
        """The intervals of both sides; None unless both have one."""
        reference, candidate = self.reference.interval, self.candidate.interval
        return (reference, candidate) if reference is not None and candidate is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeChange:
    """Candidate minus reference between its least and its most, in seconds and relative.

    Relative is over the smaller of the two times, so that swapping the sides changes only the sign.
    """

    difference_s: tuple[float, float]
    relative: tuple[float, float]


def estimates_of(reference: TimeSummary, candidate: TimeSummary) -> Estimates:
    """Describe both sides by the first family that both have."""
    for family, estimate in ((Family.ROBUST, _robust), (Family.CLASSICAL, _classical)):
        first, second = estimate(reference), estimate(candidate)
        if first is not None and second is not None:
            return Estimates(family=family, reference=first, candidate=second)
    alike = _moments if None in (reference.median, candidate.median) else _median
    first, second = alike(reference), alike(candidate)
    if first.centre is None or second.centre is None:
        first, second = _own(reference), _own(candidate)
    return Estimates(family=Family.NONE, reference=first, candidate=second)


def is_time(value: float | None) -> TypeGuard[float]:
    """Whether a number can be the time that something took."""
    return value is not None and 0 < value < math.inf


def interval_of(lower: float, centre: float, upper: float) -> TimeRange | None:
    """An interval, if its numbers are positive, finite and in order."""
    if 0 < lower <= centre <= upper < math.inf:
        return TimeRange(lower=lower, centre=centre, upper=upper)
    return None


def robust_interval(summary: TimeSummary) -> TimeRange | None:
    """From the least time to the third quartile, around the median; the slow tail is left out."""
    least, first = summary.minimum, summary.first_quartile
    median, third = summary.median, summary.third_quartile
    if least is None or first is None or median is None or third is None:
        return None
    return interval_of(least, median, third) if least <= first <= median else None


def interval_of_samples(samples: Samples) -> TimeRange:
    """The robust interval of positive, finite samples, of which there is at least one."""
    ordered = np.sort(samples)
    return TimeRange(
        lower=float(ordered[0]),
        centre=percentile(ordered, 50),
        upper=percentile(ordered, 75),
    )


def relative_difference(value: float, other: float) -> float:
    """How far a positive value lies above another, over the smaller of the two."""
    return (value - other) / min(value, other)


def change_between(reference: TimeRange, candidate: TimeRange) -> RelativeChange:
    """The least and the most that any time of one interval can differ from one of the other."""
    low, high = (candidate.lower, reference.upper), (candidate.upper, reference.lower)
    return RelativeChange(
        difference_s=(low[0] - low[1], high[0] - high[1]),
        relative=(relative_difference(*low), relative_difference(*high)),
    )


def _robust(summary: TimeSummary) -> Estimate | None:
    measured = summary.iqr is not None or summary.iqr_relative is not None
    interval = robust_interval(summary) if measured else None
    if interval is not None:
        return replace(_median(summary), interval=interval)
    times = raw_times(summary)
    return _robust(summary_of(times)) if isinstance(times, np.ndarray) else None


def _classical(summary: TimeSummary) -> Estimate | None:
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
    return None if interval is None else replace(_moments(summary), interval=interval)


def _median(summary: TimeSummary) -> Estimate:
    noise = _noise(summary.iqr_relative, summary.iqr, summary.median)
    return Estimate(centre=summary.median, noise=noise)


def _moments(summary: TimeSummary) -> Estimate:
    noise = _noise(summary.stdev_relative, summary.stdev, summary.mean)
    return Estimate(centre=summary.mean, noise=noise)


def _own(summary: TimeSummary) -> Estimate:
    return _moments(summary) if summary.median is None else _median(summary)


def _noise(relative: float | None, absolute: float | None, centre: float | None) -> float | None:
    if relative is None and absolute is not None and is_time(centre):
        relative = absolute / centre
    return relative if relative is not None and 0 <= relative < math.inf else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearGap:
    """`relative` is the least distance between two intervals, over the smaller bound."""

    relative: float = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Same:
    """How close two centres must be, how much their intervals overlap, how noisy either may be."""

    center_relative: float = 0.005
    overlap_fraction: float = 0.5
    relative_dispersion_ceiling: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class RareSupport:
    """When a value is too rare to count as support, and how many samples may be left out so."""

    sample_fraction: float = 0.001
    max_removed_sample_fraction: float = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulk:
    """Share of the samples, and of the distinct values, that the other side must have nearby."""

    sample_coverage: float = 0.97
    support_coverage: float = 0.80
    rare_support: RareSupport = RareSupport()


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """All limits of a judgement."""

    clear_gap: ClearGap = ClearGap()
    same: Same = Same()
    bulk: Bulk = Bulk()


PRESETS: Mapping[str, Thresholds] = {
    "default": Thresholds(),
    "strict": Thresholds(
        clear_gap=ClearGap(relative=0.01),
        same=Same(center_relative=0.0025, overlap_fraction=0.75, relative_dispersion_ceiling=0.01),
        bulk=Bulk(
            sample_coverage=0.995,
            support_coverage=0.90,
            rare_support=RareSupport(max_removed_sample_fraction=0.005),
        ),
    ),
    "permissive": Thresholds(
        clear_gap=ClearGap(relative=0.0025),
        same=Same(center_relative=0.01, overlap_fraction=0.25, relative_dispersion_ceiling=0.05),
        bulk=Bulk(
            sample_coverage=0.90,
            support_coverage=0.60,
            rare_support=RareSupport(max_removed_sample_fraction=0.02),
        ),
    ),
}


LEAST_COUNT = 2  # a value seen once is rare whatever the fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCoverage:
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
) -> tuple[SampleCoverage, SampleCoverage]:
    """Coverage of the reference by the candidate, and the other way, of positive samples."""
    values, counts = np.unique(reference, return_counts=True)
    other_values, other_counts = np.unique(candidate, return_counts=True)
    reach, rare = thresholds.same.center_relative, thresholds.bulk.rare_support
    return (
        _coverage(_near(values, other_values, reach), counts, rare),
        _coverage(_near(other_values, values, reach), other_counts, rare),
    )


def worst_shortfall(found: tuple[SampleCoverage, SampleCoverage], bulk: Bulk) -> Shortfall | None:
    """The share that misses its threshold by most; None if none does."""
    missed = [
        Shortfall(side=side, share=share, covered=covered, needed=needed)
        for side, coverage in zip(("reference", "candidate"), found, strict=True)
        for share, covered, needed in (
            ("sampled", coverage.samples, bulk.sample_coverage),
            ("distinct", coverage.support, bulk.support_coverage),
        )
        if covered < needed
    ]
    return max(missed, key=lambda shortfall: shortfall.size, default=None)


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


def _coverage(
    covered: NDArray[np.bool_], counts: NDArray[np.intp], rare: RareSupport
) -> SampleCoverage:
    return SampleCoverage(
        samples=float(counts[covered].sum() / counts.sum()),
        support=float(covered[_kept(counts, rare)].mean()),
    )


def _kept(counts: NDArray[np.intp], rare: RareSupport) -> NDArray[np.bool_]:
    """Which distinct values count as support: all, unless leaving rare ones out costs little."""
    total = int(counts.sum())
    least = max(LEAST_COUNT, math.ceil(rare.sample_fraction * total))
    kept = counts >= least
    removed = int(counts[~kept].sum())
    off = rare.sample_fraction <= 0 or rare.max_removed_sample_fraction <= 0
    if off or not kept.any() or removed / total > rare.max_removed_sample_fraction:
        return np.ones(counts.size, np.bool_)
    return kept
