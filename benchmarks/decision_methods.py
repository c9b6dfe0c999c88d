"""Ways to decide from launches whether a candidate is slower than an anchor, all called alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

import numpy as np
from decision_rounds import Taken, values_s
from numpy.typing import NDArray
from scipy import stats

from evaluator.timing.decision import (
    DecisionRule,
    LaunchValue,
    Noise,
    Round,
    Verdict,
    decide,
    pooled,
)
from evaluator.timing.screening.decide import judge
from evaluator.timing.screening.estimate import Thresholds, summary_of
from evaluator.timing.steady import steady_part
from records.study import Measure
from search.loop.leader import claim_rule

Array: TypeAlias = NDArray[np.float64]

ALPHA = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One launch of each side, taken in the same round."""

    candidate: Taken
    anchor: Taken


Decide = Callable[[Sequence[Pair], Sequence[Pair]], Verdict | None]
"""The verdict on the pairs so far, or None to ask for one more; then the pairs before these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A way to decide on `most` launches of each side, or on fewer where it may stop early."""

    name: str
    most: int
    decide: Decide
    stops_early: bool = False


def lower_mean(pairs: Sequence[Pair], _before: Sequence[Pair]) -> Verdict:
    """Whatever is lower is faster."""
    candidate, anchor = _steps(pairs)
    return _direction(float(candidate.mean() - anchor.mean()))


def mean_apart(pairs: Sequence[Pair], _before: Sequence[Pair]) -> Verdict:
    """A change of 5 % or more is one."""
    candidate, anchor = _steps(pairs)
    change = float(candidate.mean() / anchor.mean()) - 1
    return _direction(change) if abs(change) >= 0.05 else Verdict.UNDECIDED


def steps_ranked(pairs: Sequence[Pair], _before: Sequence[Pair]) -> Verdict:
    """Mann-Whitney over all steps, as if they were independent."""
    return _ranked(*_steps(pairs))


def launches_ranked(pairs: Sequence[Pair], _before: Sequence[Pair]) -> Verdict:
    """Mann-Whitney over one value a launch."""
    candidate = np.array([pair.candidate.median_s for pair in pairs])
    return _ranked(candidate, np.array([pair.anchor.median_s for pair in pairs]))


def spans_apart(pairs: Sequence[Pair], _before: Sequence[Pair]) -> Verdict:
    """The interval judge over all steps, without a clock rate to confirm a gap."""
    candidate, anchor = map(summary_of, _steps(pairs))
    return judge(anchor, candidate, Thresholds(), confirmation=False).verdict


def paired(rule: DecisionRule, *, noise_known: bool = False) -> Decide:
    """The search's own decision, looked at after every round."""

    def decided(pairs: Sequence[Pair], before: Sequence[Pair]) -> Verdict | None:
        noise = _noise(before) if noise_known else None
        comparison = decide([round_of(pair) for pair in pairs], rule, noise=noise)
        at_end = len(pairs) >= rule.max_rounds
        return comparison.verdict if comparison.settled or at_end else None

    return decided


RULE = claim_rule(Measure())
"""That of a search's final."""


def _paired(name: str, decide: Decide) -> Method:
    return Method(name=f"paired, {name}", most=RULE.max_rounds, decide=decide, stops_early=True)


PAIRED = _paired("as in the final", paired(RULE))
BEYOND = _paired("beyond the margin", paired(replace(RULE, claim_margin=None)))
METHODS = (
    Method(name="lower mean of 1", most=1, decide=lower_mean),
    Method(name="lower mean of 10", most=10, decide=lower_mean),
    Method(name="means of 1 apart by 5 %", most=1, decide=mean_apart),
    Method(name="Mann-Whitney, steps of 1", most=1, decide=steps_ranked),
    Method(name="Mann-Whitney, steps of 10", most=10, decide=steps_ranked),
    Method(name="Mann-Whitney, 10 launches", most=10, decide=launches_ranked),
    Method(name="interval, steps of 1", most=1, decide=spans_apart),
    Method(name="interval, steps of 10", most=10, decide=spans_apart),
    PAIRED,
    _paired("noise known", paired(RULE, noise_known=True)),
    BEYOND,
    _paired("claims err by 5 %", paired(replace(RULE, claim_alpha=ALPHA))),
)


def _steps(pairs: Sequence[Pair]) -> tuple[Array, Array]:
    candidate = np.concatenate([pair.candidate.steps_s for pair in pairs])
    return candidate, np.concatenate([pair.anchor.steps_s for pair in pairs])


def _direction(difference: float) -> Verdict:
    return Verdict.SLOW if difference > 0 else Verdict.FAST


def _ranked(candidate: Array, anchor: Array) -> Verdict:
    test = stats.mannwhitneyu(candidate, anchor)
    if test.pvalue >= ALPHA:
        return Verdict.UNDECIDED
    return _direction(float(test.statistic) - candidate.size * anchor.size / 2)


def _noise(before: Sequence[Pair]) -> Noise | None:
    """From the rounds that were taken before."""
    rounds = [values_s(pair.candidate, pair.anchor) for pair in before]
    return pooled([rounds]) if rounds else None


def round_of(pair: Pair) -> Round:
    """A pair as the search's own decision takes it."""
    candidate_s, anchor_s = values_s(pair.candidate, pair.anchor)
    return Round(
        candidate=_launch(pair.candidate, candidate_s),
        anchor=_launch(pair.anchor, anchor_s),
        candidate_first=_before(pair.candidate.position, pair.anchor.position),
    )


def _before(first: int | None, second: int | None) -> bool | None:
    return None if first is None or second is None else first < second


@cache
def _launch(taken: Taken, value_s: float) -> LaunchValue:
    took_turns = taken.position is None
    late_shift = 0.0 if took_turns else steady_part(taken.steps_s).late_shift
    return LaunchValue(value=value_s, mean=taken.mean_s, late_shift=late_shift)
