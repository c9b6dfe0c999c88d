"""Strategies without an LLM. `offline`: a cost model says where to look, trials correct it.

The expectation is an analytic estimate, calibrated on measured trials. A Gaussian process over the
knobs learns its errors, another one which configurations fail. The untried configuration with the
largest expected improvement comes next. After several launches without improvement, every second
move is one of coordinate descent, which uses no model.
"""

import math
from collections.abc import Sequence
from functools import cache
from random import Random

import numpy as np

from policies.space import Space
from records.study import Study
from records.trial import Config, Failed, FailureKind, History
from search.loop.budget import launches_since_best, remaining_launches
from search.loop.leader import STEP_OBJECTIVES
from search.loop.learned import learned_constraints
from search.strategies.base import (
    Choice,
    Chooser,
    Estimates,
    Observations,
    change_words,
    untried,
    worth_trying,
)
from search.strategies.cost_model import Feasibility, Forecaster, Prospects
from search.views.format import differing_knobs

POOL = 4000
"""Configurations that are compared per turn; of more, a random part of those near the best."""
NEAR_KNOBS = 3
"""Knobs in which a move may differ from the best, while such configurations are left."""
DOUBT_AFTER = 4
"""Launches in a row without improvement, after which the model has every second move."""
DOUBTFUL = 0.25
"""Factor for configurations that break a learned constraint, which may be wrong."""
NEGLIGIBLE = 0.002
"""Expected improvement of the logarithm of the objective that is not worth a launch."""
MOST_CANDIDATES = 20
SURE = 0.99


class HybridChooser(Chooser):
    """Chooses by a calibrated cost model and a model of its errors."""

    name = "offline"

    def __init__(self, space: Space, estimates: Estimates = lambda _: None) -> None:
        super().__init__(space, cache(estimates))
        self._descent = CoordinateChooser(space)
        self._feasibility = Feasibility(space)

    def choice(self, study: Study, history: History, left: list[Config]) -> Choice:
        """Return the most promising configuration."""
        return self._candidates(study, history, left, 1)[0]

    def candidates(self, study: Study, history: History, count: int) -> tuple[Choice, ...]:
        """Return up to `count` of the most promising configurations, best first.

        They are ordered by expected improvement, lowered where a learned constraint is broken. A
        move of coordinate descent comes first, with the expectation of the model.
        """
        left = worth_trying(study, history, untried(self.space, history))
        return self._candidates(study, history, left, count) if left else ()

    def _candidates(
        self, study: Study, history: History, left: list[Config], count: int
    ) -> tuple[Choice, ...]:
        known = Observations.of(history)
        best = history.best.config if history.best is not None else None
        if best is None:
            return self._untested(known, left, count)
        learned = learned_constraints(self.space, history, study.revoked)
        doubtful = {c for c in left if any(each.breaks(c) is not None for each in learned)}
        pool = self._pool(study, history, best, left)
        descends = _is_descending(history)
        if descends:
            sound = [config for config in left if config not in doubtful]
            move = self._descent.move(sound or left, history).config
            pool = [move, *(config for config in pool if config != move)]
        timed = study.objective.expression.strip() in STEP_OBJECTIVES and not history.weights
        # Estimates are of the step time only.
        forecaster = Forecaster(self.space, self.estimates if timed else None)
        if history.pending:
            sure = np.ones(len(history.pending))
            pending = forecaster.prospects(known, history.pending, sure)
            known = known.with_pending(history.pending, pending.losses)
        chances = self._feasibility.chances(known, [best, *pool])
        prospects = forecaster.prospects(known, [best, *pool], chances)
        trust = np.array([DOUBTFUL if config in doubtful else 1.0 for config in pool])
        gains = prospects.gains(float(prospects.losses[0]))[1:] * trust
        if gains.max() < NEGLIGIBLE:
            # The best may have been lucky: the next best is what a final then finds.
            gains = prospects.gains(float(prospects.losses[1:].min()))[1:] * trust
        if descends:
            gains[0] = np.inf
        launches, note = remaining_launches(study, history), ""
        if len(left) <= launches:
            note = f"all {len(left)} untried configurations fit in the {launches} launches left"
        order = np.argsort(-gains, kind="stable")[: min(count, MOST_CANDIDATES)] + 1
        return tuple(_choice(prospects, known, best, int(place), note) for place in order)

    def _untested(
        self, known: Observations, left: Sequence[Config], count: int
    ) -> tuple[Choice, ...]:
        """Order by the chance to run and the estimate, while nothing is measured."""
        chances = self._feasibility.chances(known, left)
        parts = [self.estimates(config) for config in left]
        seconds = np.array([sum(each.values()) if each else 1.0 for each in parts])
        order = np.argsort(-chances / seconds, kind="stable")[:count]
        why = "nothing was measured yet: likely to run, and fast by an estimate from sizes alone"
        return tuple(Choice(config=left[place], why=why) for place in order)

    def _pool(
        self, study: Study, history: History, best: Config, left: Sequence[Config]
    ) -> Sequence[Config]:
        """Return the configurations near the best, or all if none of those is left."""
        near = [each for each in left if self.space.distance(best, each)[0] <= NEAR_KNOBS]
        pool = near or left
        if len(pool) <= POOL:
            return pool
        return Random(f"{study.random_seed}/{len(history)}").sample(pool, POOL)


def _is_descending(history: History) -> bool:
    """Whether this move is one of coordinate descent."""
    flat = launches_since_best(history) + len(history.pending)
    return flat >= DOUBT_AFTER and flat % 2 == DOUBT_AFTER % 2


def _choice(
    prospects: Prospects, known: Observations, best: Config, place: int, note: str
) -> Choice:
    """Return a configuration with its changes from the best and its expected result."""
    config = prospects.configs[place]
    ahead = float(prospects.losses[0] - prospects.losses[place])
    margin = 2 * float(prospects.deviations[place])
    gain, risk = "", ""
    if known.sign:
        low, high = math.exp(ahead - margin), math.exp(ahead + margin)
        gain = f"expected {math.exp(ahead):.2f}x ({low:.2f} to {high:.2f})"
    chance = float(prospects.chances[place])
    if chance <= SURE:
        risk = f"runs with a chance of {chance:.0%}"
    expected = ", ".join(filter(None, (gain, risk)))
    change = f"from the best so far, change {change_words(best, config)}"
    why = "; ".join(filter(None, (change, expected, note)))
    return Choice(config=config, why=why, expected=expected, changes_best=True)


class RandomChooser(Chooser):
    """Draws uniformly from the untried configurations; the same history gives the same draw."""

    name = "random"

    def choice(self, study: Study, history: History, left: list[Config]) -> Choice:
        """Return a random untried configuration."""
        draw = Random(f"{study.random_seed}/{len(history) + len(history.pending)}")
        why = f"random draw among {len(left)} untried configurations"
        return Choice(config=draw.choice(left), why=why)


class GridChooser(Chooser):
    """Tries every configuration in the order of the space."""

    name = "grid"

    def choice(self, study: Study, history: History, left: list[Config]) -> Choice:  # noqa: ARG002 - the port
        """Return the first untried configuration."""
        return Choice(config=left[0], why=f"the first of {len(left)} untried configurations")


class RankedChooser(Chooser):
    """Tries configurations in the order of the estimate, calibrated on measured trials."""

    name = "ranked"

    def choice(self, study: Study, history: History, left: list[Config]) -> Choice:  # noqa: ARG002 - the port
        """Return the untried configuration with the best estimate."""
        known = Observations.of(history)
        if known.measured:
            losses = Forecaster(self.space, self.estimates).expected(known, left)
        else:
            each = [self.estimates(config) for config in left]
            losses = np.array([sum(parts.values()) if parts else 0.0 for parts in each])
        why = f"the best estimate among {len(left)} untried configurations"
        return Choice(config=left[int(np.argmin(losses))], why=why)


class CoordinateChooser(Chooser):
    """Moves from the best configuration to the nearest untried one.

    Nearest means: fewest knobs differ, then fewest neighbours that ran out of memory, then the knob
    that was varied longest ago, then the smallest step. Where constraints tie knobs together, a
    move changes two of them.
    """

    name = "coordinate"

    def choice(self, study: Study, history: History, left: list[Config]) -> Choice:  # noqa: ARG002 - the port
        """Return the next move."""
        return self.move(left, history)

    def move(self, left: Sequence[Config], history: History) -> Choice:
        """Return the next move among `left`, which must not be empty."""
        decided = [trial.config for trial in history if trial.config is not None]
        best = history.best.config if history.best is not None else None
        centre = best or (decided[-1] if decided else None)
        if centre is None:
            return Choice(config=left[0], why="first feasible configuration")
        choice = self._nearest(left, centre, history)
        why = f"from the best so far, change {change_words(centre, choice)}"
        return Choice(config=choice, why=why, changes_best=history.best is not None)

    def _nearest(self, left: Sequence[Config], centre: Config, history: History) -> Config:
        last_varied: dict[str, int] = {}
        out_of_memory: list[Config] = []
        for trial in history:
            if trial.config is not None:
                varied = differing_knobs(centre, trial.config)
                last_varied |= dict.fromkeys(varied, trial.ordinal + 1)
                outcome = trial.outcome
                if isinstance(outcome, Failed) and outcome.kind is FailureKind.OUT_OF_MEMORY:
                    out_of_memory.append(trial.config)

        def order(config: Config) -> tuple[int, int, int, int]:
            knob_count, steps = self.space.distance(centre, config)
            risk = sum(self.space.distance(config, bad)[0] <= 1 for bad in out_of_memory)
            ages = (last_varied.get(knob, 0) for knob in differing_knobs(centre, config))
            return knob_count, risk, max(ages, default=0), steps

        return min(left, key=order)
