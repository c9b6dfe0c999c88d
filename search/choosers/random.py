"""Uniform choice without replacement among the feasible configurations."""

from random import Random

from policies.space import Space
from records.history import History
from records.study import Study
from search.choosers.chooser import Choice, untried


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
