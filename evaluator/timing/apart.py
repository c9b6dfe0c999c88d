"""Whether launches of today differ from those of another day, which no round ties together.

Each launch stands for itself: what drifted in between is in the ratio, and the margin has to allow
for it. How much equal launches differ is learnt from all groups of equal launches together.
"""

import math
from collections.abc import Sequence

import numpy as np

from evaluator.timing.looks import level_of_look, student_quantile
from evaluator.timing.paired import LARGEST_LOG, Comparison, Rule
from evaluator.timing.verdict import Verdict


def compare_apart(
    now: Sequence[float],
    then: Sequence[float],
    rule: Rule,
    alike: Sequence[Sequence[float]] = (),
) -> Comparison:
    """Judge the launches of today against those of another day; values are lower is better.

    `alike` are further groups of equal launches, each of one configuration: with them a side may be
    a single launch. The rule's rounds are launches of today.
    """
    if not now or not then:
        return Comparison(verdict=Verdict.UNKNOWN, reason="no_samples")
    if not all(0 < value < math.inf for group in (now, then, *alike) for value in group):
        return Comparison(verdict=Verdict.UNKNOWN, reason="bad_time", round_count=len(now))
    mean = _mean(now) - _mean(then)
    own, freedom = _spread((now, then))
    others, all_freedom = _spread((now, then, *alike))
    if not all_freedom or len(now) < rule.min_rounds:
        return Comparison(
            verdict=Verdict.UNDECIDED,
            reason="too_few_rounds",
            ratio=_ratio(mean),
            round_count=len(now),
        )
    # Sides that are noisier than the rest must not borrow their calm.
    sd = max(own, others) if freedom else others
    error = sd * math.sqrt(1 / len(now) + 1 / len(then))
    half = error * student_quantile(1 - _level(len(now), rule) / 2, all_freedom)
    verdict, reason = _judge(mean, half, len(now), rule)
    return Comparison(
        verdict=verdict,
        reason=reason,
        ratio=_ratio(mean),
        ratio_low=_ratio(mean - half),
        ratio_high=_ratio(mean + half),
        round_count=len(now),
        noise=sd,
        alpha=rule.alpha,
    )


def _judge(mean: float, half: float, count: int, rule: Rule) -> tuple[Verdict, str]:
    if mean + half < -rule.band:
        return Verdict.FAST, "interval_clears_band"
    if mean - half > rule.band:
        return Verdict.SLOW, "interval_clears_band"
    if abs(mean) + half <= rule.band:
        return Verdict.SAME, "interval_inside_band"
    spent = count >= rule.max_rounds
    return Verdict.UNDECIDED, "budget_exhausted" if spent else "interval_too_wide"


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
