"""The cost model of the offline strategy: calibrated estimates, and the chance to run.

An analytic estimate of step times is calibrated on measured trials; trials decide how far it is
believed. The chance comes from the configurations that ran or failed, and from the estimated
memory, whose error they show.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from policies.space import Space
from records.trial import Config
from search.strategies.base import Estimates, Observations
from search.strategies.surrogate import CONSTANT, Distances, Floats, Kernel, Surrogate, fit

MISFIT = 0.3
"""Relative error that an estimate is expected to have, before trials show it."""
FREEDOM = 1.0
"""Deviation of the logarithm of each part's factor from the common one."""
MOST_EVALUATIONS = 30
ROUNDS = 2
"""Of calibrating with the misfit of the round before."""
BELIEF = 3.0
"""Prior odds that the estimate helps."""
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


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Estimates with a fitted factor for each part: their logarithms, and the parts' shares."""

    logs: Floats
    shares: Floats

    @property
    def trends(self) -> Floats:
        """By how much each logarithm may be wrong: the factors are not known for sure."""
        count = self.shares.shape[1]
        own = self.shares @ (np.eye(count) - 1 / count) * FREEDOM
        return np.column_stack((np.full(len(own), CONSTANT), own))


def calibrate(
    parts: Floats, measured: Sequence[int], logs: Floats, misfit: float = MISFIT
) -> Calibration:
    """Return each row's estimate, with a factor for each part that was fitted to measured rows.

    `logs` are the logarithms of the `measured` rows, which the estimate misses by about `misfit`.
    With few of them, all factors stay close to one common factor.
    """
    rows = parts[list(measured)]
    start = float(np.mean(logs - _log_sum(rows, np.zeros(parts.shape[1]))))

    def misses(factors: Floats) -> Floats:
        middle = factors.mean()
        return np.concatenate(
            (
                (_log_sum(rows, factors) - logs) / misfit,
                (factors - middle) / FREEDOM,
                [(middle - start) / CONSTANT],
            )
        )

    def slopes(factors: Floats) -> Floats:
        count = len(factors)
        own = (np.eye(count) - 1 / count) / FREEDOM
        common = np.full((1, count), 1 / count / CONSTANT)
        return np.concatenate((_shares(rows, factors) / misfit, own, common))

    found = scipy.optimize.least_squares(
        misses, np.full(parts.shape[1], start), jac=slopes, max_nfev=MOST_EVALUATIONS
    )
    return Calibration(_log_sum(parts, found.x), _shares(parts, found.x))


def _log_sum(parts: Floats, factors: Floats) -> Floats:
    logs: Floats = np.log(parts @ np.exp(factors) + LEAST_S)
    return logs


def _shares(parts: Floats, factors: Floats) -> Floats:
    shares = parts * np.exp(factors)
    shares /= shares.sum(axis=1, keepdims=True) + LEAST_S
    return shares


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """What one forecaster expects of configurations, and how far it is believed, from 0 to 1."""

    losses: Floats
    deviations: Floats
    weight: float

    def log_gains(self, best: float) -> Floats:
        """Return logarithms of the expected improvement on a loss.

        Jones et al., "Efficient Global Optimization of Expensive Black-Box Functions", 1998; in a
        form that does not vanish far from the best (Ament et al., "Unexpected Improvements to
        Expected Improvement for Bayesian Optimization", 2023).
        """
        ahead = (best - self.losses) / self.deviations
        log_density = -(ahead**2) / 2 - math.log(2 * math.pi) / 2
        behind = np.maximum(-ahead, 0)
        tail = 1 - behind * math.sqrt(math.pi / 2) * scipy.special.erfcx(behind / math.sqrt(2))
        # Beyond ten deviations the difference is all rounding: its series takes over.
        tail = np.where(behind > 10, 1 / (3 + behind**2), tail)
        near = np.maximum(ahead, 0)
        density = np.exp(-(near**2) / 2) / math.sqrt(2 * math.pi)
        gains: Floats = np.log(self.deviations) + np.where(
            ahead > 0, np.log(near * scipy.special.ndtr(near) + density), log_density + np.log(tail)
        )
        return gains


@dataclass(frozen=True, slots=True, eq=False)
class Prospects:
    """Expected losses with their deviations, and chances to run, for each configuration.

    The last forecast is the one without the estimate.
    """

    configs: Sequence[Config]
    forecasts: Sequence[Forecast]
    chances: Floats

    @property
    def believed(self) -> Forecast:
        """What the forecaster expects that is believed most."""
        return max(self.forecasts, key=lambda each: each.weight)

    def without_estimate(self) -> "Prospects":
        """Return what is expected by measured trials alone."""
        return replace(self, forecasts=(replace(self.forecasts[-1], weight=1.0),))

    def log_gains(self, best: int) -> Floats:
        """Return logarithms of expected improvement on a configuration, times the chance to run."""
        each = [
            math.log(one.weight + LEAST_S) + one.log_gains(float(one.losses[best]))
            for one in self.forecasts
        ]
        gains: Floats = np.logaddexp.reduce(each) + np.log(self.chances)
        return gains


class Forecaster:
    """Expects the calibrated estimate, corrected by its errors at similar configurations.

    Beside it stands a forecaster without estimate. How well each predicts the measured trials from
    the others decides by how much it counts.
    """

    def __init__(self, distances: Distances, estimates: Estimates | None) -> None:
        self._distances = distances
        self._estimates = estimates

    def expected(self, known: Observations, configs: Sequence[Config]) -> Floats:
        """Return losses by the calibrated estimate alone, or the mean loss where there is none."""
        parts = self._parts(known, configs)
        if parts is None:
            return np.full(len(configs), known.losses.mean())
        count = len(known.measured)
        return calibrate(parts, range(count), known.losses).logs[count:]

    def prospects(
        self, known: Observations, configs: Sequence[Config], chances: Floats
    ) -> Prospects:
        """Return the prospects of configurations with these chances; `known` must not be empty."""
        measured = known.measured
        among = self._distances.between(measured, measured)
        apart = self._distances.between(configs, measured)
        mean = known.losses.mean()
        alone = fit(among, known.losses - mean, known.launch_counts)
        losses, deviations = alone.predict(apart)
        without = Forecast(mean + losses, deviations, 1.0)
        parts = self._parts(known, configs)
        if parts is None:
            return Prospects(configs, (without,), chances)
        helped, calibration = _fit_errors(known, parts, among)
        count = len(measured)
        errors, deviations = helped.predict(apart, calibration.trends[count:])
        odds = BELIEF * math.exp(
            float(np.clip(helped.log_density - alone.log_density, -MOST_ODDS, MOST_ODDS))
        )
        belief = odds / (1 + odds)
        by_estimate = Forecast(calibration.logs[count:] + errors, deviations, belief)
        without = Forecast(without.losses, without.deviations, 1 - belief)
        return Prospects(configs, (by_estimate, without), chances)

    def _parts(self, known: Observations, configs: Sequence[Config]) -> Floats | None:
        """Return estimates of the measured configurations, then of these; None without any."""
        if self._estimates is None:
            return None
        return estimated_parts(self._estimates, [*known.measured, *configs])


MOST_ODDS = 30.0
"""Logarithm of odds beyond which a forecaster is believed alone."""


def _fit_errors(known: Observations, parts: Floats, among: Floats) -> tuple[Surrogate, Calibration]:
    """Fit the errors of the estimate, calibrated as closely as they are small."""
    count, misfit = len(known.measured), MISFIT
    for _ in range(ROUNDS):
        calibration = calibrate(parts, range(count), known.losses, misfit)
        errors = known.losses - calibration.logs[:count]
        surrogate = fit(among, errors, known.launch_counts, calibration.trends[:count])
        misfit = surrogate.misfit
    return surrogate, calibration


MEMORY = "estimated_memory_bytes"
MEMORY_DEVIATION = 0.6
"""Prior deviation of the binary logarithm of memory that is needed over what is estimated."""
MEMORY_ERRORS = (0.1, 0.2, 0.4)
"""What the deviation of a single configuration from the common error may be."""
MEMORY_REACH, MEMORY_STEPS = 3.0, 121
"""Binary logarithms around the limit in which the estimate may mean full, and how finely."""
ACCIDENT = 0.002
"""Chance that memory does not explain whether a launch ran out of it."""


class Memory:
    """Which configurations fit into memory, by their estimates and by those that ran or did not.

    What is learned is the estimate at which memory is full, and how much single ones deviate.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._estimates: dict[Config, float] = {}

    def chances(self, known: Observations, configs: Sequence[Config]) -> Floats | None:
        """Return the chance of each to fit; None where memory is not estimated, or unlimited."""
        each = [known.measured, tuple(known.shortages), configs]
        ran, full, asked = (np.array([self._log(c) for c in some]) for some in each)
        totals = [short.total_bytes for short in known.shortages.values() if short.total_bytes]
        limit = self._space.memory_bytes or max(totals, default=None)
        if not np.isfinite([*ran, *full, *asked]).all() or (limit is None and not len(full)):
            return None
        reach = np.linspace(-MEMORY_REACH, MEMORY_REACH, MEMORY_STEPS)
        if limit is None:  # somewhere around what did not fit
            limits, prior = full.mean() + 2 * reach, np.zeros(MEMORY_STEPS)
        else:
            limits, prior = math.log2(limit) + reach, -((reach / MEMORY_DEVIATION) ** 2) / 2
            needed = [short.needed_bytes or limit for short in known.shortages.values()]
            # What needed twice the limit would have been full at half of its estimate.
            full -= np.maximum(np.log2(np.array(needed) / limit), 0)
        logs = np.stack([prior] * len(MEMORY_ERRORS))
        for row, error in enumerate(MEMORY_ERRORS):
            logs[row] += _log_chance((limits[:, None] - ran) / error).sum(axis=1)
            logs[row] += _log_chance((full - limits[:, None]) / error).sum(axis=1)
            if limit is not None:
                # A measured peak shows the error itself, not only on which side of the limit it is.
                missed = ran + math.log2(limit) - known.peaks - limits[:, None]
                spread = error + PEAK_ERROR
                logs[row] += np.nansum(-((missed / spread) ** 2) / 2 - math.log(spread), axis=1)
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        fits = [
            scipy.special.ndtr((limits - asked[:, None]) / error) @ row
            for row, error in zip(weights, MEMORY_ERRORS, strict=True)
        ]
        chances: Floats = np.sum(fits, axis=0)
        return chances

    def _log(self, config: Config) -> float:
        """Return the binary logarithm of the estimate; infinite where there is none."""
        if config not in self._estimates:
            estimate = self._space.derived_number(config, MEMORY)
            self._estimates[config] = math.log2(estimate) if estimate else math.inf
        return self._estimates[config]


PEAK_ERROR = 0.1
"""Further deviation of a measured peak, which is what was allocated, not all that was taken."""


def _log_chance(ahead: Floats) -> Floats:
    logs: Floats = np.log(ACCIDENT / 2 + (1 - ACCIDENT) * scipy.special.ndtr(ahead))
    return logs


TRUST = 0.8
"""Expectation for an unknown configuration: -1 fails, 1 runs."""
KNOWN_NOISE, DECISION_NOISE = 0.05, 0.05
LEAST_CHANCE = 1e-6
LENGTH = 0.7
"""Distance over which the chance to run changes."""


class Feasibility:
    """Estimates which configurations run within all limits.

    It is the chance to fit into memory, times that of a probit on a Gaussian process over the
    failures that memory does not explain.
    """

    def __init__(self, space: Space, distances: Distances) -> None:
        self._distances = distances
        self._memory = Memory(space)

    def chances(self, known: Observations, configs: Sequence[Config]) -> Floats:
        """Return the chance of each configuration to run, by those that did and did not."""
        sound = [config for config in known.measured if config not in known.barred]
        launched = [*sound, *known.barred]
        fits = self._memory.chances(known, [*launched, *configs])
        before = np.ones(len(launched)) if fits is None else fits[: len(launched)]
        ahead = np.ones(len(configs)) if fits is None else fits[len(launched) :]
        if not launched:
            return _chances(np.full(len(configs), TRUST), np.ones(len(configs)), ahead)
        worked = np.array([1.0] * len(sound) + [-1.0] * len(known.barred))
        full = np.array([config in known.shortages for config in launched])
        # A failure that memory explains says little of the knobs.
        noises = KNOWN_NOISE / np.where(full, np.maximum(before, 1e-3), 1.0) ** 2
        distances = self._distances.between(configs, launched)
        kernel = Kernel(np.full(distances.shape[-1], LENGTH), alone_share=0.6)
        among = kernel.of(self._distances.between(launched, launched))
        factor = scipy.linalg.cho_factor(among + np.diag(noises))
        similar = kernel.of(distances)
        mean = TRUST + similar @ scipy.linalg.cho_solve(factor, worked - TRUST)
        known_share = (similar * scipy.linalg.cho_solve(factor, similar.T).T).sum(axis=1)
        return _chances(mean, np.maximum(1 - known_share, 0), ahead)


def _chances(mean: Floats, variance: Floats, fits: Floats) -> Floats:
    chances = fits * scipy.special.ndtr(mean / np.sqrt(variance / 2 + DECISION_NOISE))
    return np.maximum(chances, LEAST_CHANCE)
