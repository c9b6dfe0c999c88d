"""What an offline strategy is asked, and what all of them look at: what was not tried yet."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from policies.space import Space
from records.history import History
from records.study import Study
from records.trial import Config
from search.words.config import differing

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
        for knob in differing(before, after)
    )
