"""How launches of today stand to those of another day, which no round ties together.

Each launch stands for itself: what drifted in between is in the ratio, and whoever judges it has to
allow for it. How much equal launches differ is learnt from all groups of equal launches together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.timing.decision import LARGEST_LOG, Rule, level_of_look
from evaluator.timing.student import student_quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """What is needed today where the other day's geometric mean is 1, with its interval.

    `record_high` is the upper end of the other day's own interval. None is what too few launches
    leave open; `reason` then says why.
    """

    reason: str = ""
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    record_high: float | None = None


def compare_apart(
    now: Sequence[float],
    then: Sequence[float],
    rule: Rule,
    alike: Sequence[Sequence[float]] = (),
) -> Apart:
    """Compare the launches of today with those of another day; values are lower is better.

    `alike` are further groups of equal launches, each of one configuration: with them a side may be
    a single launch. The rule's rounds are launches of today, which are looked at as they come.
    """
    if not now or not then:
        return Apart(reason="no_samples")
    if not all(0 < value < math.inf for group in (now, then, *alike) for value in group):
        return Apart(reason="bad_time")
    mean = _mean(now) - _mean(then)
    error, record_error = _error(now, (then, *alike)), _error(then, alike or (now,))
    if error is None or record_error is None or len(now) < rule.min_rounds:
        return Apart(reason="too_few_rounds", ratio=_ratio(mean))
    half = error.times(1 - _level(len(now), rule) / 2)
    return Apart(
        ratio=_ratio(mean),
        ratio_low=_ratio(mean - half),
        ratio_high=_ratio(mean + half),
        record_high=_ratio(record_error.times(1 - rule.alpha / 2)),
    )


@dataclass(frozen=True, slots=True)
class _Error:
    """Standard error of a side's mean logarithm, and its degrees of freedom."""

    value: float
    freedom: int

    def times(self, level: float) -> float:
        return self.value * student_quantile(level, self.freedom)


def _error(side: Sequence[float], others: Sequence[Sequence[float]]) -> _Error | None:
    """How far a side's mean may be off by chance; None where no launches are equal."""
    own, own_freedom = _spread((side,))
    pooled, freedom = _spread((side, *others))
    if not freedom:
        return None
    # A side that is noisier than the rest must not borrow their calm.
    sd = max(own, pooled) if own_freedom else pooled
    return _Error(sd / math.sqrt(len(side)), freedom)


def _level(count: int, rule: Rule) -> float:
    if not rule.look_often:
        return rule.alpha
    return level_of_look(count, alpha=rule.alpha, first=rule.min_rounds, last=rule.max_rounds)


def _ratio(log_ratio: float) -> float | None:
    """The ratio of a logarithm; None for one that floats do not hold."""
    return math.exp(log_ratio) if abs(log_ratio) < LARGEST_LOG else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(map(math.log, values)) / len(values)


def _spread(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Standard deviation of a launch's logarithm within its group, and its degrees of freedom."""
    logs = [np.log(np.asarray(group, dtype=np.float64)) for group in groups if group]
    squares = sum(float(((each - each.mean()) ** 2).sum()) for each in logs)
    freedom = sum(each.size - 1 for each in logs)
    return (math.sqrt(squares / freedom) if freedom else 0.0), freedom
