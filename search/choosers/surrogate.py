"""What measured configurations say about others: a Gaussian process over knobs.

Its covariance is the mean of what knobs say alone and of what they say together. How far a knob's
effect reaches, how much each knob matters and how noisy launches are is chosen by the marginal
likelihood of what was measured (Rasmussen and Williams, "Gaussian Processes for Machine Learning",
2006, chapter 5), with the amplitude integrated out.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular

from search.choosers.distances import Floats

ALONE_SHARES = (0.2, 0.5)
REACHES = (0.7, 1.5)
NOISES = (0.01, 0.05, 0.2)
"""Variance of a launch in units of the variance between configurations."""
WEIGHTS = (0.2, 1.0, 4.0)
WEIGHED_FROM = 4
"""Measured configurations from which on knobs are told apart by how much they matter."""
WEIGHING_ROUNDS = 2
WEIGHT_PENALTY = 0.1
AMPLITUDE_COUNT, AMPLITUDE = 4.0, 0.3
"""What is known beforehand: as if four configurations had differed by 30 %."""


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """Similarity of two configurations, 1 for the same one."""

    alone_share: float
    reach: float
    weights: Floats

    def of(self, apart: Floats) -> Floats:
        """Similarities for distances shaped (rows, columns, knobs)."""
        relative = self.weights / self.weights.mean()
        alone = (np.exp(-apart / self.reach) * relative).mean(axis=-1)
        together = np.exp(-(apart * relative).sum(axis=-1) / (2 * self.reach))
        similarity: Floats = self.alone_share * alone + (1 - self.alone_share) * together
        return similarity


@dataclass(frozen=True, slots=True, eq=False)
class Surrogate:
    """A fitted process: predicts how far values lie from what was expected beforehand."""

    kernel: Kernel
    variance: float
    factor: Floats
    solved: Floats

    def predict(self, apart: Floats) -> tuple[Floats, Floats]:
        """Mean and deviation for rows, by their distances to the measured configurations."""
        similar = self.kernel.of(apart)
        reduced = solve_triangular(self.factor, similar.T, lower=True)
        left = np.maximum(1 - (reduced**2).sum(axis=0), 1e-9)
        return similar @ self.solved, np.sqrt(self.variance * left)


def fitted(apart: Floats, values: Floats, launch_counts: Floats) -> Surrogate:
    """Fit to values, each the mean of so many launches; `apart` is (measured, measured, knobs)."""
    knob_count = apart.shape[-1]
    even = np.ones(knob_count)
    fits = (
        _Fit.of(Kernel(share, reach, even), noise, apart, values, launch_counts)
        for share, reach, noise in product(ALONE_SHARES, REACHES, NOISES)
    )
    best = min(fits, key=lambda fit: fit.unlikeliness)
    if len(values) >= WEIGHED_FROM:
        for knob in list(range(knob_count)) * WEIGHING_ROUNDS:
            weighed = (best.weighing(knob, weight) for weight in WEIGHTS)
            best = min((best, *weighed), key=lambda fit: fit.unlikeliness)
    return best.surrogate


@dataclass(frozen=True, slots=True, eq=False)
class _Fit:
    """One way to explain the values, and how unlikely they are by it."""

    kernel: Kernel
    noise: float
    apart: Floats
    values: Floats
    launch_counts: Floats
    factor: Floats
    variance: float
    unlikeliness: float

    @classmethod
    def of(
        cls, kernel: Kernel, noise: float, apart: Floats, values: Floats, counts: Floats
    ) -> "_Fit":
        factor = cholesky(kernel.of(apart) + np.diag(noise / counts), lower=True)
        whitened = solve_triangular(factor, values, lower=True)
        count = AMPLITUDE_COUNT + len(values)
        scatter = AMPLITUDE_COUNT * AMPLITUDE**2 + float(whitened @ whitened)
        unlikeliness = count / 2 * np.log(scatter) + np.log(np.diag(factor)).sum()
        penalty = WEIGHT_PENALTY * (np.log(kernel.weights) ** 2).sum()
        variance = scatter / count
        total = float(unlikeliness + penalty)
        return cls(kernel, noise, apart, values, counts, factor, variance, total)

    def weighing(self, knob: int, weight: float) -> "_Fit":
        weights = self.kernel.weights.copy()
        weights[knob] = weight
        kernel = Kernel(self.kernel.alone_share, self.kernel.reach, weights)
        return _Fit.of(kernel, self.noise, self.apart, self.values, self.launch_counts)

    @property
    def surrogate(self) -> Surrogate:
        solved = cho_solve((self.factor, True), self.values)
        return Surrogate(self.kernel, self.variance, self.factor, solved)
