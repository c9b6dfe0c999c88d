"""Judges one point that both sides were measured at, from its launches on each side."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from evaluator.timing.paired import Comparison, Launch, Round, Rule, decide
from search.comparing.compared import Compared, Pair, reading, refused, undecided

ONCE = Rule(look_often=False)
"""All rounds are there before anybody looks."""
WIDEST = 1e12
"""Ratio of times beyond which they are no results, and its powers no numbers."""
UNPAIRED = ("one_sample", "not_interleaved")
"""Reasons for which only other launches help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One launch in a round; `order` tells which came first, where that is known."""

    launch: Launch
    order: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicates:
    """Every launch of one side at one point, lower is better; those of a round by its name."""

    values: tuple[float, ...]
    rounds: Mapping[str, Turn] = field(default_factory=dict)


def judged(name: str, a: Replicates, b: Replicates, rule: Rule) -> Compared:
    """Judge B against A over the rounds that both have."""
    for side, replicates in (("A", a), ("B", b)):
        if not replicates.values:
            return refused(name, "no_samples", f"{side} was not measured here")
        if min(replicates.values) <= 0:
            return refused(name, "bad_time", f"{side} has a time that is not above zero")
    everything = (*a.values, *b.values)
    if max(everything) / min(everything) > WIDEST:
        return refused(name, "bad_time", "times differ beyond measure; is a unit wrong?")
    shared = [each for each in a.rounds if each in b.rounds]
    if not shared:
        return Compared(
            name=name,
            comparison=_unpaired(a, b),
            a=reading(a.values, rule.alpha),
            b=reading(b.values, rule.alpha),
        )
    rounds = [_round(a.rounds[each], b.rounds[each]) for each in shared]
    pairs = tuple(
        Pair(round=each, a=a.rounds[each].launch.value, b=b.rounds[each].launch.value)
        for each in shared
    )
    return Compared(
        name=name,
        comparison=decide(rounds, replace(rule, max_rounds=max(len(rounds), rule.min_rounds))),
        a=reading([pair.a for pair in pairs], rule.alpha),
        b=reading([pair.b for pair in pairs], rule.alpha),
        pairs=pairs,
    )


def _round(a: Turn, b: Turn) -> Round:
    first = None
    if a.order is not None and b.order is not None and a.order != b.order:
        first = b.order < a.order
    return Round(candidate=b.launch, anchor=a.launch, candidate_first=first)


def _unpaired(a: Replicates, b: Replicates) -> Comparison:
    """Launches that did not take turns: how their middles differ, and that this proves nothing."""
    reason = "one_sample" if 1 in (len(a.values), len(b.values)) else "not_interleaved"
    return undecided(reason, statistics.median(b.values) / statistics.median(a.values))
