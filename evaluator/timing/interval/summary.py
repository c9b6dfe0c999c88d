"""What is known of the times of one launch: summary statistics, and the samples behind them."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

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
class Summary:
    """Statistics of the times of one launch; None is what nobody recorded.

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
        """Whether nothing was recorded of the times, not even samples that nobody can read."""
        without_clocks = replace(self, clock_hz=None, unusable=(), skipped=False)
        return without_clocks == Summary() and raw_times(self) is None


def summary_of(
    times_s: ArrayLike, clocks_hz: ArrayLike | None = None, clock_hz: float | None = None
) -> Summary:
    """The summary of raw samples; a vector that cannot be used is named in `unusable` instead.

    Without a clock rate for the whole launch it is the mean of the samples' own.
    """
    given = Summary(times_s=times_s, clocks_hz=clocks_hz, clock_hz=clock_hz)
    times, clocks = raw_times(given), raw_clocks(given)
    unusable = tuple(raw for raw in (times, clocks) if isinstance(raw, Unusable))
    if not isinstance(clocks, np.ndarray):
        clocks = None
    elif clock_hz is None:
        clock_hz = _mean(clocks)
    known = Summary(clocks_hz=clocks, clock_hz=clock_hz, unusable=unusable)
    return _with_statistics(known, times) if isinstance(times, np.ndarray) else known


def percentile(ordered: Samples, percent: int) -> float:
    """The sample at a rank of sorted samples, halves rounded up: of two, the median is the larger.

    Always a value that was measured, never one between two modes.
    """
    return float(ordered[(percent * (ordered.size - 1) + 50) // 100])


def raw_times(summary: Summary) -> Samples | Unusable | None:
    """The times behind a summary: positive and finite, or why not; None without any."""
    return _raw(summary, Channel.TIMES, summary.times_s)


def raw_clocks(summary: Summary) -> Samples | Unusable | None:
    """The clock rates behind a summary, one for each time, or why not; None without any."""
    times, clocks = raw_times(summary), _raw(summary, Channel.CLOCKS, summary.clocks_hz)
    if not isinstance(times, np.ndarray) or not isinstance(clocks, np.ndarray):
        return clocks
    if times.size == clocks.size:
        return clocks
    why = f"{clocks.size} clock rates for {times.size} times"
    return Unusable(channel=Channel.CLOCKS, why=why)


def raw_cycles(summary: Summary) -> Samples | Unusable | None:
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


def _raw(summary: Summary, channel: Channel, values: ArrayLike | None) -> Samples | Unusable | None:
    for known in summary.unusable:
        if known.channel is channel:
            return known
    if values is None:
        return None
    try:
        found = np.asarray(values)
    except (TypeError, ValueError, OverflowError):
        found = np.empty(0, np.object_)
    if found.ndim != 1 or found.dtype.kind not in "iuf":
        return Unusable(channel=channel, why="not a list of numbers")
    with np.errstate(over="ignore"):
        numbers = found.astype(np.float64, copy=False)
    return _checked(channel, numbers) if numbers.size else None


def _checked(channel: Channel, numbers: Samples) -> Samples | Unusable:
    good = np.isfinite(numbers) & (numbers > 0)
    if good.all():
        return numbers
    first = int(np.argmin(good))
    bad = int(numbers.size - np.count_nonzero(good))
    why = f"{bad} of {numbers.size} not positive and finite, first {numbers[first]:g} at {first}"
    return Unusable(channel=channel, why=why)


def _with_statistics(known: Summary, times: Samples) -> Summary:
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


def _mean(numbers: Samples) -> float:
    """Mean of positive numbers; rounding must not carry it outside their range."""
    with np.errstate(over="ignore"):
        return float(np.clip(numbers.mean(), numbers.min(), numbers.max()))
