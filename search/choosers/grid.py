"""Every feasible configuration, in the order of the space."""

from policies.space import Space
from records.history import History
from records.study import Study
from search.choosers.chooser import Choice, untried


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
