"""Centre and interval of repeated launches of one configuration."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from evaluator.timing.student import student_quantile

LEAST_FOR_INTERVAL = 3
ALPHA = 0.05
"""How often an interval may miss the median."""
ONE_SIDE = ALPHA / 2
LARGEST_LOG = 100.0
"""Three launches that leave e^100 open have shown nothing, and larger ends may not be floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median of repeated launches with a 95 % interval of it, None for fewer than three launches.

    `values` are the launches in their order; empty where they are blocks of one launch, and in
    summaries that were stored before values were kept.
    """

    centre: float
    low: float | None
    high: float | None
    launch_count: int
    values: tuple[float, ...] = ()

    @property
    def both(self) -> tuple[float, float] | None:
        """The values where there are two, since they have no interval; None otherwise."""
        if self.launch_count != 2 or len(self.values) != 2:
            return None
        return self.values[0], self.values[1]


def spread(values: Sequence[float]) -> Spread:
    """Return the median over launches with its 95 % interval, which always holds the median.

    From six launches on their order gives the interval, whatever the distribution. For three to
    five it is Student's, of the mean logarithm where all values are above zero, else of the mean:
    the median lies within, because no median is further from the mean than the deviation.
    """
    if not values:
        raise ValueError("no launches")
    centre = statistics.median(values)
    low, high = _interval(values, centre) or (None, None)
    return Spread(
        centre=centre,
        low=low,
        high=high,
        launch_count=len(values),
        values=tuple(values),
    )


def order_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the median by the order of values; five or fewer have none."""
    ordered = sorted(values)
    outside = _left_out(len(ordered))
    return (ordered[outside - 1], ordered[-outside]) if outside else None


def _interval(values: Sequence[float], centre: float) -> tuple[float, float] | None:
    if len(values) < LEAST_FOR_INTERVAL:
        return None
    ordered = order_interval(values)
    if ordered is not None:
        return ordered
    if min(values) <= 0:
        low, high = _student_interval([value - centre for value in values])
        return centre + min(low, 0.0), centre + max(high, 0.0)
    low, high = _student_interval([math.log(value / centre) for value in values])
    if high > LARGEST_LOG:
        return None
    return centre * math.exp(min(low, 0.0)), centre * math.exp(max(high, 0.0))


def _student_interval(values: Sequence[float]) -> tuple[float, float]:
    count, mean = len(values), statistics.fmean(values)
    error = statistics.stdev(values) / math.sqrt(count)
    half = error * student_quantile(1 - ONE_SIDE, count - 1)
    return mean - half, mean + half


def _left_out(count: int) -> int:
    """How many values on either side cannot be the end: the binomial quantile of 2.5 %."""
    log_chance, reached = -count * math.log(2), 0.0
    for outside in range(count + 1):
        reached += math.exp(log_chance)
        if reached >= ONE_SIDE:
            return outside
        log_chance += math.log((count - outside) / (outside + 1))
    raise AssertionError("the chances of a binomial distribution add up to 1")
