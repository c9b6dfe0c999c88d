"""Strategies that need no surrogate: random, grid, ranked by the estimate, coordinate descent."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import numpy as np

from policies.space import Space
from records.study import Study
from records.trial import Config, Failed, FailureKind, History
from search.strategies.base import Choice, Estimates, Observations, change_words, untried
from search.strategies.cost_model import Forecaster
from search.views.format import differing_knobs


@dataclass(frozen=True, slots=True)
class RandomChooser:
    """Draws uniformly from the untried configurations; the same history gives the same draw."""

    space: Space
    name: ClassVar[str] = "random"

    def choose(self, study: Study, history: History) -> Choice | None:
        """Return a random untried configuration, or None when all were tried."""
        left = untried(self.space, history)
        if not left:
            return None
        draw = Random(f"{study.random_seed}/{len(history) + len(history.pending)}")
        why = f"random draw among {len(left)} untried configurations"
        return Choice(config=draw.choice(left), why=why)


@dataclass(frozen=True, slots=True)
class GridChooser:
    """Tries every configuration in the order of the space."""

    space: Space
    name: ClassVar[str] = "grid"

    def choose(self, study: Study, history: History) -> Choice | None:  # noqa: ARG002 - the port
        """Return the first untried configuration, or None when all were tried."""
        left = untried(self.space, history)
        if not left:
            return None
        return Choice(config=left[0], why=f"the first of {len(left)} untried configurations")


@dataclass(frozen=True, slots=True)
class RankedChooser:
    """Tries configurations in the order of the estimate, calibrated on measured trials."""

    space: Space
    estimates: Estimates
    name: ClassVar[str] = "ranked"

    def choose(self, study: Study, history: History) -> Choice | None:  # noqa: ARG002 - the port
        """Return the untried configuration with the best estimate, or None when all were tried."""
        left = untried(self.space, history)
        if not left:
            return None
        known = Observations.of(history)
        if known.measured:
            losses = Forecaster(self.space, self.estimates).expected(known, left)
        else:
            each = [self.estimates(config) for config in left]
            losses = np.array([sum(parts.values()) if parts else 0.0 for parts in each])
        why = f"the best estimate among {len(left)} untried configurations"
        return Choice(config=left[int(np.argmin(losses))], why=why)


@dataclass(frozen=True, slots=True)
class CoordinateChooser:
    """Moves from the best configuration to the nearest untried one.

    Nearest means: fewest knobs differ, then fewest neighbours that ran out of memory, then the knob
    that was varied longest ago, then the smallest step. Where constraints tie knobs together, a
    move changes two of them.
    """

    space: Space
    name: ClassVar[str] = "coordinate"

    def choose(self, study: Study, history: History) -> Choice | None:  # noqa: ARG002 - the port
        """Return the next move, or None when everything was tried."""
        left = untried(self.space, history)
        return self.move(left, history) if left else None

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
