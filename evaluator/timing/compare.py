"""Whether one configuration is really faster than another, from interleaved launches.

The launch is the unit of inference: one value per launch, paired by round, compared as log ratios
with a Student t interval. A difference smaller than the margin is no difference in practice.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy import stats

MIN_ROUNDS = 4


class Verdict(StrEnum):
    """What the evidence says about a candidate against an anchor."""

    FAST = "fast"
    SLOW = "slow"
    SAME = "same"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A verdict with its evidence; `ratio` is candidate over anchor, with its interval."""

    verdict: Verdict
    reason: str
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    round_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Centre of repeated launches with a 95 % interval of it; `low` is None for one launch."""

    centre: float
    low: float | None
    high: float | None
    launch_count: int


def compare(
    candidate: Sequence[float],
    anchor: Sequence[float],
    *,
    margin: float = 0.02,
    alpha: float = 0.05,
) -> Comparison:
    """Decide from positive, finite values paired by round, lower is better."""
    if len(candidate) != len(anchor):
        raise ValueError(f"{len(candidate)} candidate rounds, {len(anchor)} anchor rounds")
    rounds = len(candidate)
    if rounds < 2 or not all(0 < value < math.inf for value in (*candidate, *anchor)):
        reason = "too_few_rounds" if rounds < 2 else "not_positive"
        return _undecided(reason, rounds)
    logs = np.log(np.asarray(candidate)) - np.log(np.asarray(anchor))
    mean, error = float(logs.mean()), float(logs.std(ddof=1)) / math.sqrt(rounds)
    half = error * float(stats.t.ppf(1 - alpha / 2, rounds - 1))
    narrow = error * float(stats.t.ppf(1 - alpha, rounds - 1))
    verdict, reason = _decide(mean, half, narrow, math.log1p(margin), rounds)
    return Comparison(
        verdict=verdict,
        reason=reason,
        ratio=math.exp(mean),
        ratio_low=math.exp(mean - half),
        ratio_high=math.exp(mean + half),
        round_count=rounds,
    )


def _decide(
    mean: float, half: float, narrow: float, band: float, rounds: int
) -> tuple[Verdict, str]:
    if rounds < MIN_ROUNDS:
        return Verdict.UNDECIDED, "too_few_rounds"
    if mean + half < -band:
        return Verdict.FAST, "interval_clears_margin"
    if mean - half > band:
        return Verdict.SLOW, "interval_clears_margin"
    if -band <= mean - narrow and mean + narrow <= band:
        return Verdict.SAME, "interval_inside_margin"
    if abs(mean) > half:
        return Verdict.UNDECIDED, "direction_known_size_unclear"
    return Verdict.UNDECIDED, "noise_exceeds_margin"


def spread(values: Sequence[float]) -> Spread:
    """Median over launches with the t interval of their mean; one launch has no known spread."""
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0:
        raise ValueError("no launches")
    centre = float(np.median(data))
    if data.size == 1:
        return Spread(centre=centre, low=None, high=None, launch_count=1)
    error = float(data.std(ddof=1)) / math.sqrt(data.size)
    half = error * float(stats.t.ppf(0.975, data.size - 1))
    mean = float(data.mean())
    return Spread(centre=centre, low=mean - half, high=mean + half, launch_count=int(data.size))


def _undecided(reason: str, rounds: int) -> Comparison:
    return Comparison(
        verdict=Verdict.UNDECIDED,
        reason=reason,
        ratio=None,
        ratio_low=None,
        ratio_high=None,
        round_count=rounds,
    )
