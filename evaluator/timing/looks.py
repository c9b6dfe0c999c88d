"""How sure each look has to be when evidence is looked at again and again as it grows."""

from functools import cache
from typing import TYPE_CHECKING

from evaluator.timing.student import student_quantile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
    import numpy as np  # slow to load, and few readers need it

    paths = np.random.default_rng(0).standard_normal((PATH_COUNT, last))
    counts = np.arange(1, last + 1)
    sums, squares = paths.cumsum(axis=1), (paths**2).cumsum(axis=1)
    looks = slice(first - 1, last)
    spread = (squares - sums**2 / counts)[:, looks] / (counts[looks] - 1)
    seen = np.abs(sums[:, looks]) / np.sqrt(spread * counts[looks])
    shares = (counts[looks] / last) ** GROWTH

    def beyond(level: float) -> "NDArray[np.bool_]":
        limits = [
            student_quantile(1 - level * float(share) / 2, int(count) - 1)
            for share, count in zip(shares, counts[looks], strict=True)
        ]
        erring: NDArray[np.bool_] = (seen > limits).any(axis=1)
        return erring

    # Only rounds that err at the highest level can err at a lower one.
    seen = seen[beyond(alpha)]
    below, width = alpha / last, alpha - alpha / last
    while width > alpha * 1e-3:
        width /= 2
        if int(beyond(below + width).sum()) < alpha * PATH_COUNT:
            below += width
    return below + width
