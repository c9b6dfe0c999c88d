"""Chooser protocol.

What an offline strategy is asked, and what all of them look at: what was not tried yet.

What a history says about configurations, as numbers that can be learned from.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from policies.space import Space
from records.study import Study
from records.trial import Config, Failed, FailureKind, History, Trial
from search.strategies.surrogate import Floats
from search.views.format import differing_knobs

Estimates: TypeAlias = Callable[[Config], Mapping[str, float] | None]
"""Seconds that a step of a configuration should take, by what takes them; None where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A configuration to try next, and why in one line.

    `expected` is the part of it that says how good it should be, empty where nobody knows. It
    `changes_best` where it is the best so far with some settings changed.
    """

    config: Config
    why: str
    expected: str = ""
    changes_best: bool = False


class Chooser(Protocol):
    """Chooses configurations; a pure function of its arguments and its construction.

    What it chooses is feasible and was not tried: no duplicate costs a launch.
    """

    @property
    def name(self) -> str:
        """Name under which its policies are recorded."""
        ...

    def choose(self, study: Study, history: History) -> Choice | None:
        """Give the next configuration; None when every feasible one was tried."""
        ...


def untried(space: Space, history: History) -> list[Config]:
    """Feasible configurations that were not launched yet, in the order of the space."""
    seen = attempted(history)
    return [config for config in space.feasible if config not in seen]


def attempted(history: History) -> Set[Config]:
    """Configurations that reached a launch, whatever came of it, or are about to."""
    launched = {t.config for t in history if t.config is not None and t.reached_launch}
    return launched | set(history.pending)


def change_words(before: Config, after: Config) -> str:
    """What changes from one configuration to another: `pp 1 to 2, schedule (not set) to 1f1b`."""
    return ", ".join(
        f"{knob} {before.values.get(knob, '(not set)')} to {after.values.get(knob, '(not set)')}"
        for knob in differing_knobs(before, after)
    )


RELAUNCHED = 3.0
"""Launches behind the cost of a trial that was launched again, about."""
SPREAD = 0.3
"""Standard deviation that costs without logarithms are scaled to."""
BLAMELESS = frozenset({FailureKind.INFRASTRUCTURE, FailureKind.METRIC_ERROR})


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """Measured configurations with their losses, lower is better, and those that cannot lead.

    A configuration is `barred` where it failed by its own doing, or was measured and broke a limit.
    Losses are logarithms where costs have one sign: of a time itself, of a rate with the sign
    turned. `launch_counts` say how many launches each stands for.
    """

    measured: tuple[Config, ...]
    losses: Floats
    launch_counts: Floats
    barred: tuple[Config, ...]
    sign: int
    """1 where losses are logarithms of the objective, -1 of its inverse, 0 where they are none."""

    @classmethod
    def of(cls, history: History) -> "Observations":
        """Read the history; of a configuration that was tried twice the later trial counts."""
        measured = {trial.config: trial for trial in history.measured if trial.config is not None}
        failed = {
            trial.config: None
            for trial in history
            if trial.config is not None and trial.config not in measured and _is_its_doing(trial)
        }
        broken = [
            config for config, trial in measured.items() if trial.score and trial.score.broken
        ]
        costs = np.array([history.cost(trial) for trial in measured.values()])
        losses, sign = _losses(costs)
        counts = [RELAUNCHED if t.ordinal in history.costs else 1.0 for t in measured.values()]
        return cls(
            measured=tuple(measured),
            losses=losses,
            launch_counts=np.array(counts),
            barred=(*broken, *failed),
            sign=sign,
        )

    def value(self, loss: float) -> float | None:
        """The objective that a loss stands for; None where losses are no logarithms."""
        return float(np.exp(self.sign * loss)) if self.sign else None

    def with_pending(self, pending: Sequence[Config], losses: Floats) -> "Observations":
        """As if what is being measured had come out as expected."""
        return Observations(
            measured=(*self.measured, *pending),
            losses=np.concatenate((self.losses, losses)),
            launch_counts=np.concatenate((self.launch_counts, np.ones(len(pending)))),
            barred=self.barred,
            sign=self.sign,
        )


def _is_its_doing(trial: Trial) -> bool:
    outcome = trial.outcome
    return trial.launched and isinstance(outcome, Failed) and outcome.kind not in BLAMELESS


def _losses(costs: Floats) -> tuple[Floats, int]:
    if (costs > 0).all():
        return np.log(costs), 1
    if (costs < 0).all():
        return -np.log(-costs), -1
    return (costs - costs.mean()) / (costs.std() or 1.0) * SPREAD, 0
