"""How likely a launch is to work, by which configurations did, and by how full memory would be."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import ndtr

from policies.space import Space
from records.trial import Config
from search.choosers.distances import Distances, Floats
from search.choosers.known import Known
from search.choosers.surrogate import Kernel

TRUST = 0.8
"""What is expected of a configuration about which nothing is known, between -1 and 1."""
FULL_FROM = -0.3
"""Binary logarithm of the share of memory that an estimate takes, from which on it may not fit."""
FULL_DOUBT = 1.0
"""How much less is expected where an estimate takes all memory."""
MEMORY_STEP = 0.15
"""Binary logarithm of memory that is as far as one step of a knob."""
KNOWN_NOISE, DECISION_NOISE = 0.05, 0.05
MEMORY = "estimated_memory_bytes"


class Feasibility:
    """Tells what should run within all limits, in the manner of a probit on a Gaussian process."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._distances = Distances(space)
        self._memory_bytes = space.memory_bytes
        self._filled: dict[Config, float | None] = {}

    def chances(self, known: Known, configs: Sequence[Config]) -> Floats:
        """Chance of each configuration, by which did and which did not."""
        sound = [config for config in known.measured if config not in known.barred]
        launched = [*sound, *known.barred]
        expected = self._expected([*launched, *configs])
        before, ahead = expected[: len(launched)], expected[len(launched) :]
        worked = np.array([1.0] * len(sound) + [-1.0] * len(known.barred))
        if not launched:
            return _chances(ahead, np.ones(len(ahead)))
        among, apart = self._between(launched, launched), self._between(configs, launched)
        kernel = Kernel(alone_share=0.6, reach=2.5, weights=np.ones(apart.shape[-1]))
        factor = cho_factor(kernel.of(among) + KNOWN_NOISE * np.eye(len(worked)))
        similar = kernel.of(apart)
        mean = ahead + similar @ cho_solve(factor, worked - before)
        known_share = (similar * cho_solve(factor, similar.T).T).sum(axis=1)
        return _chances(mean, np.maximum(1 - known_share, 0))

    def _between(self, rows: Sequence[Config], columns: Sequence[Config]) -> Floats:
        """Distances by knobs, and by memory where it can be estimated."""
        apart = self._distances.between(rows, columns)
        filled = [[self._fill(config) for config in configs] for configs in (rows, columns)]
        told = [[each for each in part if each is not None] for part in filled]
        if any(len(each) < len(part) for each, part in zip(told, filled, strict=True)):
            return apart
        ours, theirs = (np.array(each) for each in told)
        steps = np.abs(ours[:, None] - theirs[None, :]) / MEMORY_STEP
        return np.concatenate((apart, steps[:, :, None]), axis=2)

    def _expected(self, configs: Sequence[Config]) -> Floats:
        """What is expected before anything is launched: less where memory would be full."""
        filled = np.array([self._fill(config) or 2 * FULL_FROM for config in configs])
        full = np.clip((filled - FULL_FROM) / -FULL_FROM, 0, 1)
        expected: Floats = TRUST - FULL_DOUBT * full
        return expected if self._memory_bytes else np.full(len(configs), TRUST)

    def _fill(self, config: Config) -> float | None:
        """Binary logarithm of the estimated share of memory, of bytes where nothing limits it."""
        if config not in self._filled:
            estimate = self._space.derived_number(config, MEMORY)
            share = None if not estimate else math.log2(estimate / (self._memory_bytes or 1))
            self._filled[config] = share
        return self._filled[config]


def _chances(mean: Floats, variance: Floats) -> Floats:
    chances: Floats = ndtr(mean / np.sqrt(variance / 2 + DECISION_NOISE))
    return chances
