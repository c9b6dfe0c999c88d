"""How much launches of one configuration differ by themselves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Standard deviation of a round's log ratio, known from elsewhere, and how well (`freedom`)."""

    sd: float
    freedom: int


def pooled(tables: Sequence[Sequence[Sequence[float]]]) -> Noise | None:
    """Noise of a round from repeated launches of the same configurations; None without any.

    Each table holds positive values shaped (rounds, configurations). What rounds have in common is
    taken out where there are several configurations, as pairing does. A round's log ratio has twice
    the variance of a launch's.
    """
    if not tables:
        return None
    import numpy as np  # slow to load, and few readers need it

    squares, freedom = 0.0, 0
    for table in tables:
        logs = np.log(np.asarray(table, dtype=np.float64))
        rounds, configurations = logs.shape
        residual = logs - logs.mean(axis=0)
        if configurations > 1:
            residual -= residual.mean(axis=1, keepdims=True)
        squares += float((residual**2).sum())
        freedom += (rounds - 1) * max(configurations - 1, 1)
    return Noise(sd=math.sqrt(2 * squares / freedom), freedom=freedom) if freedom else None
