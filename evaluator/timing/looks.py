"""How sure each look has to be when evidence is looked at again and again as it grows."""

from functools import cache, lru_cache

import numpy as np
from scipy import optimize, stats

PATH_COUNT = 100_000
GROWTH = 2
"""Power of the rounds by which levels grow: most is kept for the end, where it tells close sides
apart; sides that are far apart are told apart early all the same."""


def level_of_look(count: int, *, alpha: float, first: int, last: int) -> float:
    """Level of Student's t at a look after `count` rounds, when all looks together err by `alpha`.

    Looks begin after `first` rounds and end after `last`.
    """
    return _last_level(alpha, max(first, 2), last) * float(min(count, last) / last) ** GROWTH


@cache
def _last_level(alpha: float, first: int, last: int) -> float:
    """Level of the last look, found by following random rounds without a difference.

    The t statistic of normal rounds does not depend on their noise.
    """
    if first >= last:
        return alpha
    paths = np.random.default_rng(0).standard_normal((PATH_COUNT, last))
    counts = np.arange(1, last + 1)
    sums, squares = paths.cumsum(axis=1), (paths**2).cumsum(axis=1)
    looks = slice(first - 1, last)
    spread = (squares - sums**2 / counts)[:, looks] / (counts[looks] - 1)
    seen = np.abs(sums[:, looks]) / np.sqrt(spread * counts[looks])
    shares = (counts[looks] / last) ** GROWTH

    def excess(level: float) -> float:
        limits = stats.t.ppf(1 - level * shares / 2, counts[looks] - 1)
        return float((seen > limits).any(axis=1).mean()) - alpha

    return float(optimize.bisect(excess, alpha / last, alpha, xtol=alpha * 1e-3))


@lru_cache(maxsize=4096)
def student_quantile(level: float, freedom: float) -> float:
    """Give the value that Student's t stays below with this probability."""
    return float(stats.t.ppf(level, freedom))
