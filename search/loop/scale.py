"""How good trials are against each other, on one scale whatever the machine did meanwhile.

Rounds in which both were launched tell it best, directly or by way of trials that were launched
with either. A trial that was launched alone is set against the launches closest in time to its own.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean
from typing import NamedTuple

from evaluator.objective import Scoring
from evaluator.timing.decision import decide
from records.study import Measure
from records.trial import History, Trial
from search.loop.leader import claim_rule, launch_of, rounds_between


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How many times as good one trial is as another: above 1 is better.

    `low` and `high` are an interval of 95 %, None where too few rounds give one.
    """

    ratio: float
    low: float | None = None
    high: float | None = None
    side_by_side: bool = True
    """Whether rounds say so; else single launches, made as close in time as there are."""

    def __str__(self) -> str:
        """`1.48x (1.16 to 1.90)`, `~0.78x` by single launches."""
        if not self.side_by_side:
            return f"~{self.ratio:.2f}x"
        if self.low is None or self.high is None:
            return f"{self.ratio:.2f}x"
        return f"{self.ratio:.2f}x ({self.low:.2f} to {self.high:.2f})"


class _Step(NamedTuple):
    """The logarithm of a speed and the half width of its interval, where it has one."""

    log: float
    half: float | None


_SAME = _Step(0.0, 0.0)
Links = Mapping[int, Mapping[int, _Step]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What a history says of any two of its trials; `reached` keeps what was worked out."""

    links: Links
    launches: Mapping[int, Sequence[tuple[float, float]]]
    """When each launch of a trial was made, in trials, and the logarithm of what it took."""
    reached: dict[int, Mapping[int, _Step]] = field(default_factory=dict)

    @classmethod
    def of(cls, history: History, scoring: Scoring, measure: Measure) -> "Scale":
        """Read a history; where costs stand for several objectives nothing is compared."""
        if history.weights:
            return cls(links={}, launches={})
        return cls(links=_links(history, scoring, measure), launches=_launches(history, scoring))

    def speed(self, trial: int, against: int) -> Speed | None:
        """How good a trial is against another; None where nothing says so."""
        linked = self._linked(against)
        if trial in linked:
            log, half = linked[trial]
            if half is None:
                return Speed(ratio=math.exp(log))
            return Speed(ratio=math.exp(log), low=math.exp(log - half), high=math.exp(log + half))
        log_alone = self._alone(trial, linked)
        if log_alone is None:
            return None
        return Speed(ratio=math.exp(log_alone), side_by_side=False)

    def _linked(self, against: int) -> Mapping[int, _Step]:
        """Every trial that rounds lead to, by the fewest others in between."""
        if against not in self.reached:
            found, ahead = {against: _SAME}, [against]
            for here in ahead:
                for other, step in self.links.get(here, {}).items():
                    if other not in found:
                        found[other] = _then(found[here], step)
                        ahead.append(other)
            self.reached[against] = found
        return self.reached[against]

    def _alone(self, trial: int, linked: Mapping[int, _Step]) -> float | None:
        """What the launches closest in time say, as if the other had been launched then."""
        apart = [
            (abs(at - when), step.log + took - own)
            for when, own in self.launches.get(trial, ())
            for other, step in linked.items()
            for at, took in self.launches.get(other, ())
        ]
        nearest = min((distance for distance, _ in apart), default=None)
        return None if nearest is None else fmean(log for d, log in apart if d == nearest)


def _then(before: _Step, step: _Step) -> _Step:
    if before.half is None or step.half is None:
        return _Step(before.log + step.log, None)
    return _Step(before.log + step.log, math.hypot(before.half, step.half))


def _links(history: History, scoring: Scoring, measure: Measure) -> Links:
    """What races and other rounds say of two trials, both ways round."""
    links: dict[int, dict[int, _Step]] = defaultdict(dict)

    def link(one: int, other: int, ratio: float, low: float | None, high: float | None) -> None:
        half = None if low is None or high is None else math.log(high / low) / 2
        links[other][one] = _Step(-math.log(ratio), half)
        links[one][other] = _Step(math.log(ratio), half)

    for race in history.raced:
        if race.ratio is not None:
            link(race.challenger, race.incumbent, race.ratio, race.ratio_low, race.ratio_high)
    rounds: dict[tuple[int, int], set[int]] = defaultdict(set)
    for repeat in history.repeats:
        rounds[repeat.series, repeat.round].add(repeat.ordinal)
    together = {pair for launched in rounds.values() for pair in combinations(sorted(launched), 2)}
    for one, other in sorted(together):
        if other not in links[one]:
            both = rounds_between(history.repeats, one, other, scoring)
            found = decide(both, claim_rule(measure))
            if found.ratio is not None:
                link(one, other, found.ratio, found.ratio_low, found.ratio_high)
    return links


def _launches(history: History, scoring: Scoring) -> Mapping[int, list[tuple[float, float]]]:
    launches: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for trial in history:
        burden = _own_burden(trial)
        if burden is not None:
            launches[trial.ordinal].append((float(trial.ordinal), math.log(burden)))
    for repeat in history.repeats:
        launch = launch_of(repeat.outcome, scoring)
        if launch is not None:
            # After the last of so many trials, before the next.
            when = repeat.series - 0.5
            launches[repeat.ordinal].append((when, math.log(launch.value)))
    return launches


def _own_burden(trial: Trial) -> float | None:
    """What its first launch took, or the inverse of what it reached where more is better."""
    score = trial.score
    if score is None or score.value <= 0:
        return None
    return score.value if score.cost > 0 else 1 / score.value
