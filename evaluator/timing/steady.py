"""Where the step times of one launch stop warming up, and whether they then stay level.

Everything is computed on log times, so that units do not matter and a level change is a ratio.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean, median, quantiles
from typing import TypeAlias

Logs: TypeAlias = Sequence[float]
"""Log times, one per step unless said otherwise."""

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
    """The first steady step, and by how much a change after it forbids trust in what follows.

    `late_shift` is the log ratio of the last two levels where the change is late, else 0.
    """

    first: int
    late_shift: float

    @property
    def settled(self) -> bool:
        """Whether the level did not change late."""
        return self.late_shift == 0


def steady_part(times_s: Sequence[float]) -> SteadyPart:
    """Find the warm-up of one launch; at most half of the steps are dropped.

    Warm-up ends where three accounts of it have ended: leading steps above the Tukey fence of the
    second half, MSER-5 truncation, and the last clear level change. A level change in the final
    third leaves too few steps of the last level: not settled. The first account takes any series,
    the second 30 steps or more and the third 6, of which 9 can be found not to settle. Raises
    `ValueError` for no step, or an impossible time.
    """
    logs = [math.log(time) for time in times_s if 0 < time < math.inf]
    if not logs or len(logs) < len(times_s):
        raise ValueError("step times must be positive and finite, at least one; drop failed steps")
    middle = median(logs)
    # Rounded: times that differ by less than any clock resolves are equal, in every unit.
    logs = [round(log - middle, 9) for log in logs]
    calm = _without_spikes(logs)
    change, shift = _last_change(logs, calm)
    half = len(logs) // 2
    first = max(_slow_start(logs), _truncation(calm), min(change, half))
    return SteadyPart(first=first, late_shift=shift if 3 * change >= 2 * len(logs) else 0.0)


def _slow_start(logs: list[float]) -> int:
    """Count leading steps that would be outliers among those of the second half."""
    half = len(logs) // 2
    later = logs[half:]
    is_one = len(later) == 1
    low, middle, high = later * 3 if is_one else quantiles(later, n=4, method="inclusive")
    fence = max(high + TUKEY * (high - low), middle + LEAST_SHIFT)
    return next((step for step, log in enumerate(logs[:half]) if log <= fence), half)


def _truncation(logs: Logs) -> int:
    """Steps to drop so that the mean of the remaining batches has the least standard error."""
    means = _batches(logs, BATCH)
    most = min(len(means) // 2, len(means) - LEAST_BATCHES)
    sums, squares = (
        list(accumulate(reversed(powers)))[::-1] for powers in (means, [m * m for m in means])
    )
    errors = [
        (squares[cut] - sums[cut] ** 2 / (len(means) - cut)) / (len(means) - cut) ** 2
        for cut in range(most + 1)
    ]
    return BATCH * errors.index(min(errors)) if errors else 0


def _without_spikes(logs: Logs) -> Logs:
    """Replace lone slow or fast steps by the running median of five: they are no level change."""
    if len(logs) < BATCH:
        return logs
    reach = BATCH // 2
    padded = [*logs[reach:0:-1], *logs, *logs[-2 : -2 - reach : -1]]
    middles = [sorted(padded[step : step + BATCH])[reach] for step in range(len(logs))]
    distances = [abs(log - middle) for log, middle in zip(logs, middles, strict=True)]
    usual = 3 * max(NORMAL_MAD * median(distances), LEAST_NOISE)
    return [
        middle if distance > usual else log
        for log, middle, distance in zip(logs, middles, distances, strict=True)
    ]


def _last_change(logs: Logs, calm: Logs) -> tuple[int, float]:
    """First step of the last level and its distance from the one before; 0 where there is one."""
    size = -(-len(logs) // MOST_POINTS)
    points = _batches(calm, size)
    starts = _segments(points, _noise(_batches(logs, size)))
    levels = [fmean(points[start:end]) for start, end in pairwise([*starts, len(points)])]
    clear = [
        (size * start, abs(after - before))
        for start, (before, after) in zip(starts[1:], pairwise(levels), strict=True)
        if abs(after - before) > LEAST_SHIFT
    ]
    return clear[-1] if clear else (0, 0.0)


def _noise(points: Logs) -> float:
    """Standard deviation around a level: what near points differ by, or batches of them.

    The later points and the batches see noise that lasts for some steps, which neighbours hide.
    """
    if len(points) < FEW:
        # A median of few distances is small by chance; the largest may be the level change.
        squares = sorted((after - before) ** 2 for before, after in pairwise(points))[:-1]
        return max(math.sqrt(fmean(squares) / 2) if squares else 0.0, LEAST_NOISE)
    batches = _batches(points, BATCH)
    many = len(batches) >= 2 * LEAST_BATCHES
    lasting = math.sqrt(BATCH) * _scatter(batches, 1) if many else 0.0
    return max(_scatter(points, 1), _scatter(points, LEAST_SEGMENT), lasting, LEAST_NOISE)


def _scatter(points: Logs, lag: int) -> float:
    """Standard deviation of points from the median distance of those `lag` apart."""
    distances = [abs(after - before) for before, after in zip(points, points[lag:], strict=False)]
    return NORMAL_MAD * median(distances) / math.sqrt(2)


def _batches(values: Logs, size: int) -> Logs:
    """Means of consecutive batches; values of an unfinished one at the end are left out."""
    last = len(values) - size
    return [fmean(values[start : start + size]) for start in range(0, last + 1, size)]


def _segments(points: Logs, noise: float) -> list[int]:
    """Starts of the segments that explain the points best, each with a separate mean.

    Exact optimal partitioning: squared distance to the mean over the noise, and a penalty for
    every further segment that grows with the logarithm of the length.
    """
    count = len(points)
    penalty = PENALTY * math.log(count)
    sums = [0.0, *accumulate(point / noise for point in points)]
    # Least cost of what is before each point; squares of points are left out, they cost the same.
    before = [-penalty, *[math.inf] * count]
    start_of = [0] * (count + 1)
    for end in range(min(LEAST_SEGMENT, count), count + 1):
        total, starts = sums[end], max(end - LEAST_SEGMENT, 0) + 1
        lengths = range(end, 0, -1)
        costs = [
            cost - (part := total - start) * part / length
            for cost, start, length in zip(before[:starts], sums, lengths, strict=False)
        ]
        start_of[end] = costs.index(min(costs))
        before[end] = min(costs) + penalty
    found = [start_of[count]]
    while found[-1] > 0:
        found.append(start_of[found[-1]])
    return found[::-1]
