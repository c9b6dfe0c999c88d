"""The cost model of the offline strategy: a calibrated estimate, and the chance to run.

An analytic estimate of step times is calibrated on measured trials. The chance comes from the
configurations that ran or failed, and from the estimated memory.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from policies.space import Space
from records.trial import Config
from search.strategies.base import Estimates, Observations
from search.strategies.surrogate import Distances, Floats, Kernel, fit

MISFIT = 0.1
"""Relative error of a good estimate."""
FREEDOM = 1.0
"""Deviation of the logarithm of each part's factor from the common one."""
COMMON_FREEDOM = 5.0
MOST_EVALUATIONS = 30
LEAST_S = 1e-12


def estimated_parts(estimates: Estimates, configs: Sequence[Config]) -> Floats | None:
    """Return estimated seconds (configurations, parts); None unless all can be estimated."""
    each = [estimates(config) for config in configs]
    known = [parts for parts in each if parts is not None]
    if not known or len(known) < len(each):
        return None
    names = sorted(set[str]().union(*known))
    seconds = np.array([[parts.get(name, 0.0) for name in names] for parts in known])
    return seconds[:, seconds.any(axis=0)]


def calibrate(parts: Floats, measured: Sequence[int], logs: Floats) -> Floats:
    """Return the logarithm of each row's estimate, with a fitted factor for each part.

    `logs` are the logarithms of the `measured` rows. With few of them, all factors stay close to
    one common factor.
    """
    rows = parts[list(measured)]
    start = float(np.mean(logs - _log_sum(rows, np.zeros(parts.shape[1]))))

    def misfit(factors: Floats) -> Floats:
        middle = factors.mean()
        return np.concatenate(
            (
                (_log_sum(rows, factors) - logs) / MISFIT,
                (factors - middle) / FREEDOM,
                [(middle - start) / COMMON_FREEDOM],
            )
        )

    def slopes(factors: Floats) -> Floats:
        count = len(factors)
        shares = rows * np.exp(factors)
        shares /= shares.sum(axis=1, keepdims=True) + LEAST_S
        own = (np.eye(count) - 1 / count) / FREEDOM
        common = np.full((1, count), 1 / count / COMMON_FREEDOM)
        return np.concatenate((shares / MISFIT, own, common))

    found = scipy.optimize.least_squares(
        misfit, np.full(parts.shape[1], start), jac=slopes, max_nfev=MOST_EVALUATIONS
    )
    return _log_sum(parts, found.x)


def _log_sum(parts: Floats, factors: Floats) -> Floats:
    logs: Floats = np.log(parts @ np.exp(factors) + LEAST_S)
    return logs


@dataclass(frozen=True, slots=True, eq=False)
class Prospects:
    """Expected losses with their deviations, and chances to run, for each configuration."""

    configs: Sequence[Config]
    losses: Floats
    deviations: Floats
    chances: Floats

    def gains(self, best: float) -> Floats:
        """Return the expected improvement on a loss, times the chance to run.

        Jones et al., "Efficient Global Optimization of Expensive Black-Box Functions", 1998.
        """
        ahead = (best - self.losses) / self.deviations
        density = np.exp(-(ahead**2) / 2) / np.sqrt(2 * np.pi)
        gains: Floats = (
            self.deviations * (ahead * scipy.special.ndtr(ahead) + density) * self.chances
        )
        return gains


class Forecaster:
    """Expects the calibrated estimate, corrected by its errors at similar configurations.

    Without an estimate, the mean of the measured losses takes its place.
    """

    def __init__(self, space: Space, estimates: Estimates | None) -> None:
        self._distances = Distances(space)
        self._estimates = estimates

    def expected(self, known: Observations, configs: Sequence[Config]) -> Floats:
        """Return losses by the calibrated estimate alone, or the mean loss where there is none."""
        rows = range(len(known.measured))
        both = [*known.measured, *configs]
        parts = estimated_parts(self._estimates, both) if self._estimates else None
        if parts is None:
            return np.full(len(configs), known.losses.mean())
        return calibrate(parts, rows, known.losses)[len(rows) :]

    def prospects(
        self, known: Observations, configs: Sequence[Config], chances: Floats
    ) -> Prospects:
        """Return the prospects of configurations with these chances; `known` must not be empty."""
        measured = known.measured
        expected = self.expected(known, [*measured, *configs])
        before, ahead = expected[: len(measured)], expected[len(measured) :]
        surrogate = fit(
            self._distances.between(measured, measured),
            known.losses - before,
            known.launch_counts,
        )
        corrections, deviations = surrogate.predict(self._distances.between(configs, measured))
        return Prospects(configs, ahead + corrections, deviations, chances)


TRUST = 0.8
"""Expectation for an unknown configuration: -1 fails, 1 runs."""
FULL_FROM = -0.3
"""Binary logarithm of the estimated share of memory above which a launch may not fit."""
FULL_DOUBT = 1.0
"""Decrease of the expectation where the estimate equals all memory."""
MEMORY_STEP = 0.15
"""Binary logarithm of memory that counts as one step of a knob."""
KNOWN_NOISE, DECISION_NOISE = 0.05, 0.05
MEMORY = "estimated_memory_bytes"


class Feasibility:
    """Estimates which configurations run within all limits: a probit on a Gaussian process."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._distances = Distances(space)
        self._memory_bytes = space.memory_bytes
        self._filled: dict[Config, float | None] = {}

    def chances(self, known: Observations, configs: Sequence[Config]) -> Floats:
        """Return the chance of each configuration to run, by those that did and did not."""
        sound = [config for config in known.measured if config not in known.barred]
        launched = [*sound, *known.barred]
        expected = self._expected([*launched, *configs])
        before, ahead = expected[: len(launched)], expected[len(launched) :]
        worked = np.array([1.0] * len(sound) + [-1.0] * len(known.barred))
        if not launched:
            return _chances(ahead, np.ones(len(ahead)))
        among, distances = self._between(launched, launched), self._between(configs, launched)
        kernel = Kernel(alone_share=0.6, reach=2.5, weights=np.ones(distances.shape[-1]))
        factor = scipy.linalg.cho_factor(kernel.of(among) + KNOWN_NOISE * np.eye(len(worked)))
        similar = kernel.of(distances)
        mean = ahead + similar @ scipy.linalg.cho_solve(factor, worked - before)
        known_share = (similar * scipy.linalg.cho_solve(factor, similar.T).T).sum(axis=1)
        return _chances(mean, np.maximum(1 - known_share, 0))

    def _between(self, rows: Sequence[Config], columns: Sequence[Config]) -> Floats:
        """Return the distances by knobs, and by memory where it can be estimated."""
        distances = self._distances.between(rows, columns)
        filled = [[self._fill(config) for config in configs] for configs in (rows, columns)]
        if any(None in part for part in filled):
            return distances
        one, other = (np.array(part, dtype=float) for part in filled)
        steps = np.abs(one[:, None] - other[None, :]) / MEMORY_STEP
        return np.concatenate((distances, steps[:, :, None]), axis=2)

    def _expected(self, configs: Sequence[Config]) -> Floats:
        """Return the expectation before any launch: lower where memory would be full."""
        filled = np.array([self._fill(config) or 2 * FULL_FROM for config in configs])
        full = np.clip((filled - FULL_FROM) / -FULL_FROM, 0, 1)
        expected: Floats = TRUST - FULL_DOUBT * full
        return expected if self._memory_bytes else np.full(len(configs), TRUST)

    def _fill(self, config: Config) -> float | None:
        """Return the binary logarithm of the estimated share of memory, else of bytes."""
        if config not in self._filled:
            estimate = self._space.derived_number(config, MEMORY)
            share = None if not estimate else math.log2(estimate / (self._memory_bytes or 1))
            self._filled[config] = share
        return self._filled[config]


def _chances(mean: Floats, variance: Floats) -> Floats:
    chances: Floats = scipy.special.ndtr(mean / np.sqrt(variance / 2 + DECISION_NOISE))
    return chances
