"""An analytic estimate of steps, brought in line with what was measured."""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import least_squares

from records.trial import Config
from search.choosers.chooser import Estimates
from search.choosers.distances import Floats

MISFIT = 0.1
"""A tenth is how far a good estimate may be off."""
FREEDOM = 1.0
"""Parts are wrong by a common factor first, and by factors of e of their own."""
COMMON_FREEDOM = 5.0
MOST_EVALUATIONS = 30
LEAST_S = 1e-12


def estimated_parts(estimates: Estimates, configs: Sequence[Config]) -> Floats | None:
    """Estimated seconds, shaped (configurations, parts); None unless all can be estimated."""
    each = [estimates(config) for config in configs]
    told = [parts for parts in each if parts is not None]
    if not told or len(told) < len(each):
        return None
    names = sorted(set[str]().union(*told))
    seconds = np.array([[parts.get(name, 0.0) for name in names] for parts in told])
    return seconds[:, seconds.any(axis=0)]


def calibrated(parts: Floats, measured: Sequence[int], logs: Floats) -> Floats:
    """Logarithm of each row's estimate, with a factor for each part that fits the measured rows.

    `logs` are the logarithms of what was measured. With few of them all factors stay close to one
    common factor.
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

    found = least_squares(
        misfit, np.full(parts.shape[1], start), jac=slopes, max_nfev=MOST_EVALUATIONS
    )
    return _log_sum(parts, found.x)


def _log_sum(parts: Floats, factors: Floats) -> Floats:
    logs: Floats = np.log(parts @ np.exp(factors) + LEAST_S)
    return logs
