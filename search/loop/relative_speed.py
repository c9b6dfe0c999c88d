"""Relative speeds of any two trials, independent of the drift of the machine.

They come from rounds with both trials, directly or through other trials. A trial that was only
launched alone is compared with the launches closest in time.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean
from typing import NamedTuple

from evaluator.objective import Scoring
from evaluator.timing.decision import Comparison, Noise, decide
from records.study import Measure
from records.trial import History, RaceResult
from search.loop.leader import claim_rule, launch_of, rounds_between

SIDE_BY_CHANCE = 1.96
"""Standard deviations that equal launches stay within in 19 of 20 cases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The speedup of one trial over another: above 1 is better.

    `low` and `high` are an interval of 95 %, None where too few rounds give one.
    """

    ratio: float
    low: float | None = None
    high: float | None = None
    side_by_side: bool = True
    """Whether it comes from rounds; else from single launches closest in time."""

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

    def then(self, step: "_Step") -> "_Step":
        """Return the product of both speeds."""
        if self.half is None or step.half is None:
            return _Step(self.log + step.log, None)
        return _Step(self.log + step.log, math.hypot(self.half, step.half))


Links = Mapping[int, Mapping[int, _Step]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeSpeeds:
    """The relative speeds of any two trials of a history; `reached` caches results."""

    links: Links
    launches: Mapping[int, Sequence[tuple[float, float]]]
    """The time of each launch of a trial, in trials, and the logarithm of its cost."""
    reached: dict[int, Mapping[int, _Step]] = field(default_factory=dict)

    @classmethod
    def of(cls, history: History, scoring: Scoring, measure: Measure) -> "RelativeSpeeds":
        """Read a history; with several objectives nothing is compared."""
        if history.weights:
            return cls(links={}, launches={})
        return cls(links=_links(history, scoring, measure), launches=_launches(history, scoring))

    def speed(self, trial: int, against: int) -> Speed | None:
        """Return the speedup of a trial over another, or None if unknown."""
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
        """Return every trial connected by rounds, through the fewest others."""
        if against not in self.reached:
            found, ahead = {against: _Step(0.0, 0.0)}, [against]
            for here in ahead:
                for other, step in self.links.get(here, {}).items():
                    if other not in found:
                        found[other] = found[here].then(step)
                        ahead.append(other)
            self.reached[against] = found
        return self.reached[against]

    def _alone(self, trial: int, linked: Mapping[int, _Step]) -> float | None:
        """Return the logarithm of the speedup by the launches closest in time."""
        found = [
            (abs(at - when), step.log + took - own)
            for when, own in self.launches.get(trial, ())
            for other, step in linked.items()
            for at, took in self.launches.get(other, ())
        ]
        nearest = min((distance for distance, _ in found), default=None)
        return None if nearest is None else fmean(log for d, log in found if d == nearest)


def _links(history: History, scoring: Scoring, measure: Measure) -> Links:
    """Return the speedups in both directions, each from all rounds of both trials.

    A race decides for two trials that shared no later round: its interval knows the noise.
    """
    links: dict[int, dict[int, _Step]] = defaultdict(dict)
    round_counts: dict[frozenset[int], int] = {}

    def link(one: int, other: int, found: RaceResult | Comparison) -> None:
        if found.ratio is None:
            return
        low, high = found.ratio_low, found.ratio_high
        half = None if low is None or high is None else math.log(high / low) / 2
        links[other][one] = _Step(-math.log(found.ratio), half)
        links[one][other] = _Step(math.log(found.ratio), half)

    for race in history.races:
        link(race.challenger, race.incumbent, race)
        round_counts[frozenset({race.challenger, race.incumbent})] = race.round_count
    rounds: dict[tuple[int, int], set[int]] = defaultdict(set)
    for repeat in history.repeats:
        rounds[repeat.series, repeat.round].add(repeat.ordinal)
    together = {pair for launched in rounds.values() for pair in combinations(sorted(launched), 2)}
    for one, other in sorted(together):
        both = rounds_between(history.repeats, one, other, scoring)
        if len(both) > round_counts.get(frozenset({one, other}), 0):
            link(one, other, decide(both, claim_rule(measure)))
    return links


def _launches(history: History, scoring: Scoring) -> Mapping[int, list[tuple[float, float]]]:
    launches: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for trial in history:
        score = trial.score
        if score is not None and score.value > 0:
            # The cost is the value, or its inverse if higher is better.
            log_cost = math.log(score.value) * (1 if score.cost > 0 else -1)
            launches[trial.ordinal].append((float(trial.ordinal), log_cost))
    for repeat in history.repeats:
        launch = launch_of(repeat.outcome, scoring)
        if launch is not None:
            # Between the last trial of the series and the next.
            when = repeat.series - 0.5
            launches[repeat.ordinal].append((when, math.log(launch.value)))
    return launches


def single_launch_ratio(noise: Noise) -> float:
    """The ratio that two single launches of equal configurations may well show."""
    return math.exp(SIDE_BY_CHANCE * noise.sd)
