"""What comparing two sides gave: who they are, and a verdict for each thing measured on both."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from evaluator.timing.interval.judgement import Judgement
from evaluator.timing.interval.thresholds import Thresholds
from evaluator.timing.paired import Comparison, Rule, corrected_for_number
from evaluator.timing.student import student_quantile
from evaluator.timing.verdict import Verdict
from records.errors import StudyError

LEAST_ALPHA = 0.001
"""What few launches can tell; intervals that are right more often know no bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What counts as a difference; margin and alpha are those of the study where they are None."""

    thresholds: Thresholds
    margin: float | None = None
    alpha: float | None = None

    def __post_init__(self) -> None:
        if self.margin is not None and not 0 <= self.margin < math.inf:
            raise StudyError(f"--margin {self.margin}: give 0 or more, as in --margin 0.02")
        if self.alpha is not None and not LEAST_ALPHA <= self.alpha < 0.5:
            raise StudyError(
                f"--alpha {self.alpha}: give {LEAST_ALPHA} or more and less than 0.5, "
                "as in --alpha 0.05"
            )

    def over(self, rule: Rule) -> Rule:
        """The rule with what was asked for."""
        return replace(
            rule,
            margin=rule.margin if self.margin is None else self.margin,
            alpha=rule.alpha if self.alpha is None else self.alpha,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one side was measured at.

    Of a trial it is the number that is shown everywhere, and its ratio need not be that of the
    rounds. The interval is None where launches are too few. `step_count` is that of all launches,
    None where unknown.
    """

    centre: float
    low: float | None = None
    high: float | None = None
    launch_count: int = 1
    step_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What both sides gave in one round, by the name of the round."""

    round: str
    a: float
    b: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A verdict on B against A, and what it was taken from; a side that failed has no reading.

    `detail` tells why in words where the reason alone does not. `screening` is what the steps of
    one launch each say, which proves nothing.
    """

    name: str
    comparison: Comparison
    a: Reading | None = None
    b: Reading | None = None
    pairs: tuple[Pair, ...] = ()
    detail: str | None = None
    screening: Judgement | None = None

    @property
    def change(self) -> float | None:
        """How far B's centre is from A's, over the smaller one; None where one is missing."""
        if self.a is None or self.b is None or min(self.a.centre, self.b.centre) <= 0:
            return None
        return (self.b.centre - self.a.centre) / min(self.a.centre, self.b.centre)


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """One side as it is shown: what the command line calls it, and what tells it from the other."""

    name: str
    settings: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparisons:
    """Everything that is told about two sides.

    `quantity` was compared, in `unit`; where it is no time, sides are better, not faster.
    `only_a` and `only_b` were measured on one side alone and count for nothing.
    """

    a: Party
    b: Party
    quantity: str
    unit: str
    lines: tuple[Compared, ...]
    rule: Rule
    lower_is_better: bool = True
    is_time: bool = True
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[Verdict, int]:
        """Lines of each verdict."""
        found = Counter(line.comparison.verdict for line in self.lines)
        return {verdict: found[verdict] for verdict in Verdict}


def corrected(lines: Iterable[Compared], rule: Rule) -> tuple[Compared, ...]:
    """The lines without claims that as many of them make by chance."""
    given = tuple(lines)
    kept = corrected_for_number([(line.comparison, rule) for line in given])
    return tuple(replace(line, comparison=found) for line, found in zip(given, kept, strict=True))


def refused(name: str, reason: str, detail: str) -> Compared:
    """Sides that cannot be compared."""
    unknown = Comparison(verdict=Verdict.UNKNOWN, reason=reason)
    return Compared(name=name, comparison=unknown, detail=detail)


def differing(
    name: str, a: Sequence[tuple[str, object]], b: Sequence[tuple[str, object]]
) -> Compared | None:
    """A refusal naming the first fact that is not the same on both sides, if there is one."""
    for (field, of_a), (_, of_b) in zip(a, b, strict=True):
        if of_a != of_b:
            words = f"{field} is {of_a} for A and {of_b} for B"
            return refused(name, f"not_comparable:{field}", words)
    return None


def undecided(reason: str, ratio: float | None = None) -> Comparison:
    """Sides whose launches prove nothing about each other, whatever their ratio."""
    return Comparison(verdict=Verdict.UNDECIDED, reason=reason, ratio=ratio)


def reading(values: Sequence[float], alpha: float, step_count: int | None = None) -> Reading:
    """Centre of launches with the interval of their mean, both of the log values.

    There is no interval where it would end beyond any number.
    """
    plain = Reading(
        centre=statistics.median(values), launch_count=len(values), step_count=step_count
    )
    if len(values) == 1 or min(values) <= 0:
        return plain
    logs = [math.log(value) for value in values]
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(values))
    half = error * student_quantile(1 - alpha / 2, len(values) - 1)
    centred = replace(plain, centre=math.exp(mean))
    try:
        return replace(centred, low=math.exp(mean - half), high=math.exp(mean + half))
    except OverflowError:
        return centred
