"""Centre and interval of repeated launches of one configuration."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Centre of repeated launches with a 95 % interval of it; `low` is None for one launch."""

    centre: float
    low: float | None
    high: float | None
    launch_count: int


def spread(values: Sequence[float]) -> Spread:
    """Median over launches with the t interval of their mean; one launch has no known spread.

    Where all values are above zero the interval ends there.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0:
        raise ValueError("no launches")
    centre = float(np.median(data))
    if data.size == 1:
        return Spread(centre=centre, low=None, high=None, launch_count=1)
    error = float(data.std(ddof=1)) / math.sqrt(data.size)
    half = error * float(stats.t.ppf(0.975, data.size - 1))
    mean = float(data.mean())
    low = max(mean - half, 0.0) if data.min() > 0 else mean - half
    return Spread(centre=centre, low=low, high=mean + half, launch_count=int(data.size))
