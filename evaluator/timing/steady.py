"""Where the step times of one launch stop warming up, and whether they then stay level.

Everything is computed on log times, so that units do not matter and a level change is a ratio.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
"""Float64 log times, one per step unless said otherwise."""

BATCH = 5
LEAST_BATCHES = 5
"""Batches that truncation must leave: fewer agree with each other by chance."""
LEAST_SEGMENT = 3
FEW = 4 * LEAST_SEGMENT
"""Steps below which their noise is hard to separate from a change."""
PENALTY = 4.0
"""What a further level must explain, per logarithm of the length, in squared deviations: with it
few series of level noise are found to change, even where neighbouring steps are alike."""
LEAST_SHIFT = 0.01
"""Log ratio below which two levels are the same in practice."""
LEAST_NOISE = 0.002
"""Standard deviation of log times that is always there, whatever a few equal steps suggest."""
MOST_POINTS = 500
"""Longer series are searched for levels in averages, so that the search takes milliseconds."""
TUKEY = 1.5
NORMAL_MAD = 1.4826
"""Standard deviations of a normal sample per median absolute deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyPart:
    """The first steady step, and whether no later level change forbids trust in what follows."""

    first: int
    settled: bool


def steady_part(times_s: Sequence[float]) -> SteadyPart:
    """Find the warm-up of one launch; at most half of the steps are dropped.

    Warm-up ends where three accounts of it have ended: leading steps above the Tukey fence of the
    second half, MSER-5 truncation, and the last clear level change. A level change in the final
    third leaves too few steps of the last level: not settled. The first account takes any series,
    the second 30 steps or more and the third 6, of which 9 can be found not to settle. Raises
    `ValueError` for no step, or an impossible time.
    """
    times = np.asarray(times_s, dtype=np.float64)
    if times.size == 0 or not bool(np.all((times > 0) & (times < math.inf))):
        raise ValueError("step times must be positive and finite, at least one; drop failed steps")
    logs = np.log(times)
    # Rounded: times that differ by less than any clock resolves are equal, in every unit.
    logs = np.round(logs - np.median(logs), 9)
    calm = _without_spikes(logs)
    change = _last_change(logs, calm)
    half = logs.size // 2
    first = max(_slow_start(logs), _truncation(calm), min(change, half))
    return SteadyPart(first=first, settled=3 * change < 2 * logs.size)


def _slow_start(logs: Array) -> int:
    """Count leading steps that would be outliers among those of the second half."""
    half = logs.size // 2
    low, middle, high = np.quantile(logs[half:], [0.25, 0.5, 0.75])
    fence = max(high + TUKEY * (high - low), middle + LEAST_SHIFT)
    usual = np.flatnonzero(logs[:half] <= fence)
    return int(usual[0]) if usual.size else half


def _truncation(logs: Array) -> int:
    """Steps to drop so that the mean of the remaining batches has the least standard error."""
    means = _batches(logs, BATCH)
    most = min(means.size // 2, means.size - LEAST_BATCHES)
    errors = [means[cut:].var() / (means.size - cut) for cut in range(most + 1)]
    return BATCH * int(np.argmin(errors)) if errors else 0


def _without_spikes(logs: Array) -> Array:
    """Replace lone slow or fast steps by the running median of five: they are no level change."""
    if logs.size < BATCH:
        return logs
    padded = np.pad(logs, BATCH // 2, mode="reflect")
    middle = np.median(np.lib.stride_tricks.sliding_window_view(padded, BATCH), axis=1)
    distance = np.abs(logs - middle)
    usual = max(NORMAL_MAD * float(np.median(distance)), LEAST_NOISE)
    return np.where(distance > 3 * usual, middle, logs)


def _last_change(logs: Array, calm: Array) -> int:
    """First step of the last level; 0 where there is only one."""
    size = -(-logs.size // MOST_POINTS)
    points = _batches(calm, size)
    starts = _segments(points, _noise(_batches(logs, size)))
    levels = [float(part.mean()) for part in np.split(points, starts[1:])]
    clear = [
        start
        for start, before, after in zip(starts[1:], levels[:-1], levels[1:], strict=True)
        if abs(after - before) > LEAST_SHIFT
    ]
    return size * clear[-1] if clear else 0


def _noise(points: Array) -> float:
    """Standard deviation around a level: what near points differ by, or batches of them.

    The later points and the batches see noise that lasts for some steps, which neighbours hide.
    """
    if points.size < FEW:
        # A median of few distances is small by chance; the largest may be the level change.
        distances = np.sort(np.abs(np.diff(points)))[:-1]
        rest = math.sqrt(float(np.mean(distances**2)) / 2) if distances.size else 0.0
        return max(rest, LEAST_NOISE)
    batches = _batches(points, BATCH)
    many = batches.size >= 2 * LEAST_BATCHES
    lasting = math.sqrt(BATCH) * _scatter(batches, 1) if many else 0.0
    return max(_scatter(points, 1), _scatter(points, LEAST_SEGMENT), lasting, LEAST_NOISE)


def _scatter(points: Array, lag: int) -> float:
    """Standard deviation of points from the median distance of those `lag` apart."""
    distance = np.abs(points[lag:] - points[:-lag])
    return NORMAL_MAD * float(np.median(distance)) / math.sqrt(2)


def _batches(values: Array, size: int) -> Array:
    """Means of consecutive batches; values of an unfinished one at the end are left out."""
    count = values.size // size
    means: Array = values[: count * size].reshape(count, size).mean(axis=1)
    return means


def _segments(points: Array, noise: float) -> list[int]:
    """Starts of the segments that explain the points best, each with a separate mean.

    Exact optimal partitioning: squared distance to the mean over the noise, and a penalty for
    every further segment that grows with the logarithm of the length.
    """
    count = points.size
    penalty = PENALTY * math.log(count)
    sums, squares = (np.concatenate([[0.0], np.cumsum(x)]) for x in (points, points**2))
    best, start_of = np.full(count + 1, math.inf), np.zeros(count + 1, dtype=np.intp)
    best[0] = -penalty
    for end in range(min(LEAST_SEGMENT, count), count + 1):
        starts = np.arange(max(end - LEAST_SEGMENT, 0) + 1)
        inside = squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / (end - starts)
        costs = best[starts] + inside / noise**2 + penalty
        start_of[end] = np.argmin(costs)
        best[end] = costs[start_of[end]]
    found = [int(start_of[count])]
    while found[-1] > 0:
        found.append(int(start_of[found[-1]]))
    return found[::-1]
