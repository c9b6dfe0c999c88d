"""The offline strategy: a cost model says where to look, and measured trials correct it.

An analytic estimate, calibrated on what was measured, is what is expected beforehand; a Gaussian
process over the knobs learns how far it is off, another one what does not run. The untried
configuration with the largest expected improvement comes next. While that brings nothing better,
every second move is one of coordinate descent, which trusts no model.
"""

import math
from collections.abc import Mapping, Sequence, Set
from random import Random

import numpy as np

from policies.space import Space
from records.study import Study
from records.trial import Config, History
from search.loop.budget import launches_since_best, remaining_launches
from search.loop.leader import STEP_OBJECTIVES
from search.loop.learned import learned_constraints
from search.strategies.base import Choice, Estimates, Observations, change_words, untried
from search.strategies.cost_model import Feasibility, Forecaster, Prospects
from search.strategies.simple import CoordinateChooser

POOL = 4000
"""Configurations that are weighed at once; of more, those near the best and a random part."""
NEAR_KNOBS = 3
"""A move leads at most so many knobs away from the best, while something is left there."""
DOUBT_AFTER = 4
"""Launches in a row that brought nothing better, after which the model has every second move."""
DOUBTFUL = 0.25
"""Trust in a configuration that breaks what was learned from failures, which may be wrong."""
NEGLIGIBLE = 0.002
"""Expected improvement on the logarithm of the objective that is not worth a launch."""
MOST_CANDIDATES = 20
SURE = 0.99


class HybridChooser:
    """Chooses by a calibrated cost model and by what was learned about its errors."""

    name = "offline"

    def __init__(self, space: Space, estimates: Estimates) -> None:
        self._space = space
        self._descent = CoordinateChooser(space)
        self._feasibility = Feasibility(space)
        self._known_parts: dict[Config, Mapping[str, float] | None] = {}
        self._estimates = estimates

    def choose(self, study: Study, history: History) -> Choice | None:
        """Give the most promising configuration, or None when everything was tried."""
        return next(iter(self.candidates(study, history, 1)), None)

    def candidates(self, study: Study, history: History, count: int) -> tuple[Choice, ...]:
        """The most promising configurations, best first; fewer where fewer are left."""
        left = untried(self._space, history)
        if not left:
            return ()
        known = Observations.of(history)
        best = history.best.config if history.best is not None else None
        if best is None:
            return self._untested(known, left, count)
        lessons = learned_constraints(self._space, history, study.revoked)
        doubtful = {c for c in left if any(each.breaks(c) is not None for each in lessons)}
        move: Config | None = None
        if _is_descending(history):
            sound = [config for config in left if config not in doubtful]
            move = self._descent.move(sound or left, history).config
        promising = self._promising(study, history, known, best, left, doubtful, move)
        return tuple(promising[:count])

    def _forecaster(self, study: Study, history: History) -> Forecaster:
        """Estimates speak about an objective that is the step time and nothing else."""
        timed = study.objective.expression.strip() in STEP_OBJECTIVES and not history.weights
        return Forecaster(self._space, self._parts if timed else None)

    def _promising(
        self,
        study: Study,
        history: History,
        known: Observations,
        best: Config,
        left: Sequence[Config],
        doubtful: Set[Config],
        move: Config | None,
    ) -> list[Choice]:
        """Configurations by expected improvement; what should fail by all lessons has little.

        A move that trusts no model comes before them all, with what the model says of it.
        """
        forecaster = self._forecaster(study, history)
        if history.pending:
            sure = np.ones(len(history.pending))
            pending = forecaster.prospects(known, history.pending, sure)
            known = known.with_pending(history.pending, pending.losses)
        pool = self._pool(study, history, best, left)
        if move is not None:
            pool = [move, *(config for config in pool if config != move)]
        chances = self._feasibility.chances(known, [best, *pool])
        prospects = forecaster.prospects(known, [best, *pool], chances)
        trust = np.array([DOUBTFUL if config in doubtful else 1.0 for config in pool])
        gains = prospects.gains(float(prospects.losses[0]))[1:] * trust
        if gains.max() < NEGLIGIBLE:
            # The best may have been lucky: the next best is what a final then finds.
            gains = prospects.gains(float(prospects.losses[1:].min()))[1:] * trust
        enumerates = _enumeration_words(study, history, left)
        if move is not None:
            gains[0] = np.inf
        order = np.argsort(-gains, kind="stable")[:MOST_CANDIDATES] + 1
        return [_choice(prospects, known, best, int(place), enumerates) for place in order]

    def _untested(
        self, known: Observations, left: Sequence[Config], count: int
    ) -> tuple[Choice, ...]:
        """While nothing is measured: what runs for sure first, then what should be fast."""
        chances = self._feasibility.chances(known, left)
        parts = [self._parts(config) for config in left]
        seconds = np.array([sum(each.values()) if each else 1.0 for each in parts])
        order = np.argsort(-chances / seconds, kind="stable")[:count]
        why = "nothing was measured yet: likely to run, and fast by an estimate from sizes alone"
        return tuple(Choice(config=left[place], why=why) for place in order)

    def _pool(
        self, study: Study, history: History, best: Config, left: Sequence[Config]
    ) -> Sequence[Config]:
        """Near the best as long as something is left there."""
        near = [each for each in left if self._space.distance(best, each)[0] <= NEAR_KNOBS]
        pool = near or left
        if len(pool) <= POOL:
            return pool
        return Random(f"{study.random_seed}/{len(history)}").sample(pool, POOL)

    def _parts(self, config: Config) -> Mapping[str, float] | None:
        if config not in self._known_parts:
            self._known_parts[config] = self._estimates(config)
        return self._known_parts[config]


def _is_descending(history: History) -> bool:
    """Whether this move trusts no model."""
    flat = launches_since_best(history) + len(history.pending)
    return flat >= DOUBT_AFTER and flat % 2 == DOUBT_AFTER % 2


def _enumeration_words(study: Study, history: History, left: Sequence[Config]) -> str:
    launches = remaining_launches(study, history)
    if len(left) > launches:
        return ""
    return f"all {len(left)} untried configurations fit in the {launches} launches left"


def _choice(
    prospects: Prospects, known: Observations, best: Config, place: int, enumerates: str
) -> Choice:
    """A configuration with why it is promising: what changes, and what is expected of it."""
    config = prospects.configs[place]
    ahead = float(prospects.losses[0] - prospects.losses[place])
    margin = 2 * float(prospects.deviations[place])
    told: list[str] = []
    if known.sign:
        low, high = math.exp(ahead - margin), math.exp(ahead + margin)
        told.append(f"expected {math.exp(ahead):.2f}x ({low:.2f} to {high:.2f})")
    chance = float(prospects.chances[place])
    told += [] if chance > SURE else [f"runs with a chance of {chance:.0%}"]
    expected = ", ".join(told)
    change = f"from the best so far, change {change_words(best, config)}"
    why = "; ".join(filter(None, (change, expected, enumerates)))
    return Choice(config=config, why=why, expected=expected, changes_best=True)
