"""How sure each look has to be when evidence is looked at again and again as it grows."""

from functools import cache, lru_cache

import numpy as np
from scipy import optimize, stats

PATH_COUNT = 100_000


@cache
def level_per_look(alpha: float, first: int, last: int) -> float:
    """Level of Student's t at round `last` so that looks from round `first` on err by `alpha`.

    At earlier rounds the level is smaller in proportion. Found by following random rounds without a
    difference: the t statistic of normal rounds does not depend on their noise.
    """
    first = max(first, 2)
    if first >= last:
        return alpha
    paths = np.random.default_rng(0).standard_normal((PATH_COUNT, last))
    counts = np.arange(1, last + 1)
    sums, squares = paths.cumsum(axis=1), (paths**2).cumsum(axis=1)
    looks = slice(first - 1, last)
    spread = (squares - sums**2 / counts)[:, looks] / (counts[looks] - 1)
    seen = np.abs(sums[:, looks]) / np.sqrt(spread * counts[looks])

    def excess(level: float) -> float:
        levels = level * counts[looks] / last
        crossed = (seen > stats.t.ppf(1 - levels / 2, counts[looks] - 1)).any(axis=1)
        return float(crossed.mean()) - alpha

    return float(optimize.bisect(excess, alpha / last, alpha * last / first, xtol=alpha * 1e-3))


@lru_cache(maxsize=4096)
def student_quantile(level: float, freedom: float) -> float:
    """Give the value that Student's t stays below with this probability."""
    return float(stats.t.ppf(level, freedom))
