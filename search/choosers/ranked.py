"""The cost model alone: what it expects to be best comes next, whatever is not known."""

import numpy as np

from policies.space import Space
from records.history import History
from records.study import Study
from search.choosers.chooser import Choice, Estimates, untried
from search.choosers.known import Known
from search.choosers.prospects import Forecaster


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
        known = Known.of(history)
        if known.measured:
            losses = self._forecaster.expected(known, left)
        else:
            each = [self._estimates(config) for config in left]
            losses = np.array([sum(parts.values()) if parts else 0.0 for parts in each])
        why = f"the best estimate among {len(left)} untried configurations"
        return Choice(config=left[int(np.argmin(losses))], why=why)
