"""random, grid, ranked, coordinate.

Uniform choice without replacement among the feasible configurations.

Every feasible configuration, in the order of the space.

The cost model alone: what it expects to be best comes next, whatever is not known.

Coordinate descent over the feasible configurations: one knob at a time around the best.
"""

from collections.abc import Sequence
from random import Random

import numpy as np

from policies.space import Space
from records.study import Study
from records.trial import Config, Failed, FailureKind, History, Trial
from search.strategies.base import Choice, Estimates, Observations, change_words, untried
from search.strategies.cost_model import Forecaster
from search.views.format import differing_knobs


class RandomChooser:
    """Draws from what was not tried; the same history gives the same draw."""

    name = "random"

    def __init__(self, space: Space) -> None:
        self._space = space

    def choose(self, study: Study, history: History) -> Choice | None:
        """Give a random untried configuration, or None when all were tried."""
        left = untried(self._space, history)
        if not left:
            return None
        begun = len(history) + len(history.pending)
        config = Random(f"{study.random_seed}/{begun}").choice(left)
        why = f"random draw among {len(left)} untried configurations"
        return Choice(config=config, why=why)


class GridChooser:
    """Goes through the space from its first configuration to its last."""

    name = "grid"

    def __init__(self, space: Space) -> None:
        self._space = space

    def choose(self, study: Study, history: History) -> Choice | None:  # noqa: ARG002 - the port
        """Give the first untried configuration, or None when all were tried."""
        left = untried(self._space, history)
        if not left:
            return None
        return Choice(config=left[0], why=f"the first of {len(left)} untried configurations")


class RankedChooser:
    """Takes configurations in the order of the estimate, calibrated on what was measured."""

    name = "ranked"

    def __init__(self, space: Space, estimates: Estimates) -> None:
        self._space = space
        self._estimates = estimates
        self._forecaster = Forecaster(space, estimates)

    def choose(self, study: Study, history: History) -> Choice | None:  # noqa: ARG002 - the port
        """Give the untried configuration with the best estimate, or None when all were tried."""
        left = untried(self._space, history)
        if not left:
            return None
        known = Observations.of(history)
        if known.measured:
            losses = self._forecaster.expected(known, left)
        else:
            each = [self._estimates(config) for config in left]
            losses = np.array([sum(parts.values()) if parts else 0.0 for parts in each])
        why = f"the best estimate among {len(left)} untried configurations"
        return Choice(config=left[int(np.argmin(losses))], why=why)


class CoordinateChooser:
    """Moves from the best configuration to the nearest untried one.

    Nearest means: fewest knobs differ, then fewest neighbours known to run out of memory, then the
    knob that was varied longest ago, then the smallest step. Where constraints tie knobs together
    a move changes two of them.
    """

    name = "coordinate"

    def __init__(self, space: Space) -> None:
        self._space = space

    def choose(self, study: Study, history: History) -> Choice | None:  # noqa: ARG002 - the port
        """Give the next move, or None when everything was tried."""
        left = untried(self._space, history)
        return self.move(left, history) if left else None

    def move(self, left: Sequence[Config], history: History) -> Choice:
        """Give the next move among what is left, which is not nothing."""
        centre = _centre(history)
        if centre is None:
            return Choice(config=left[0], why="first feasible configuration")
        choice = self._nearest(left, centre, history)
        why = f"from the best so far, change {change_words(centre, choice)}"
        return Choice(config=choice, why=why, changes_best=history.best is not None)

    def _nearest(self, left: Sequence[Config], centre: Config, history: History) -> Config:
        varied = _last_varied(history, centre)
        exhausted = [t.config for t in history if t.config is not None and _ran_out_of_memory(t)]

        def order(config: Config) -> tuple[int, int, int, int]:
            knob_count, steps = self._space.distance(centre, config)
            risk = sum(self._space.distance(config, bad)[0] <= 1 for bad in exhausted)
            age = max((varied.get(knob, 0) for knob in differing_knobs(centre, config)), default=0)
            return knob_count, risk, age, steps

        return min(left, key=order)


def _centre(history: History) -> Config | None:
    """The best configuration, or the last decided one while none is measured."""
    if history.best is not None:
        return history.best.config
    decided = [trial.config for trial in history if trial.config is not None]
    return decided[-1] if decided else None


def _last_varied(history: History, centre: Config) -> dict[str, int]:
    """When each knob was last varied around the centre: ordinal of that trial plus one."""
    return {
        knob: trial.ordinal + 1
        for trial in history
        if trial.config is not None
        for knob in differing_knobs(centre, trial.config)
    }


def _ran_out_of_memory(trial: Trial) -> bool:
    outcome = trial.outcome
    return isinstance(outcome, Failed) and outcome.kind is FailureKind.OUT_OF_MEMORY
