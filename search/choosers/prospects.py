"""What is expected of configurations that were not measured, and how sure that is."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from policies.space import Space
from records.trial import Config
from search.choosers.calibration import calibrated, estimated_parts
from search.choosers.chooser import Estimates
from search.choosers.distances import Distances, Floats
from search.choosers.known import Known
from search.choosers.surrogate import fitted


@dataclass(frozen=True, slots=True, eq=False)
class Prospects:
    """Expected losses with their deviations, and chances to run, one of each per configuration."""

    configs: Sequence[Config]
    losses: Floats
    deviations: Floats
    chances: Floats

    def gains(self, best: float) -> Floats:
        """Expected improvement on a loss, times the chance to see it.

        Jones et al., "Efficient Global Optimization of Expensive Black-Box Functions", 1998.
        """
        ahead = (best - self.losses) / self.deviations
        density = np.exp(-(ahead**2) / 2) / np.sqrt(2 * np.pi)
        gains: Floats = self.deviations * (ahead * ndtr(ahead) + density) * self.chances
        return gains


class Forecaster:
    """Expects what a calibrated estimate says, corrected by how far it was off nearby.

    Without an estimate it expects the mean of what was measured, corrected likewise.
    """

    def __init__(self, space: Space, estimates: Estimates | None) -> None:
        self._distances = Distances(space)
        self._estimates = estimates

    def expected(self, known: Known, configs: Sequence[Config]) -> Floats:
        """Losses by the calibrated estimate alone, or the mean loss where there is none."""
        asked = [*known.measured, *configs]
        parts = estimated_parts(self._estimates, asked) if self._estimates else None
        if parts is None:
            return np.full(len(asked), known.losses.mean())[len(known.measured) :]
        rows = range(len(known.measured))
        return calibrated(parts, rows, known.losses)[len(known.measured) :]

    def prospects(self, known: Known, configs: Sequence[Config], chances: Floats) -> Prospects:
        """Prospects of configurations with these chances; `known` is not nothing."""
        measured = known.measured
        expected = self.expected(known, [*measured, *configs])
        before, ahead = expected[: len(measured)], expected[len(measured) :]
        surrogate = fitted(
            self._distances.between(measured, measured),
            known.losses - before,
            known.launch_counts,
        )
        corrections, deviations = surrogate.predict(self._distances.between(configs, measured))
        return Prospects(configs, ahead + corrections, deviations, chances)
