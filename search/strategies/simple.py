"""Strategies that need no surrogate: random, grid, ranked by the estimate, coordinate descent."""

from collections.abc import Sequence
from random import Random

import numpy as np

from records.study import Study
from records.trial import Config, Failed, FailureKind, History
from search.strategies.base import Choice, Chooser, Observations, change_words
from search.strategies.cost_model import Forecaster
from search.views.format import differing_knobs


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
