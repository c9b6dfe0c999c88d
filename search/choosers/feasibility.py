"""How likely a launch is to work, by which configurations did."""

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import ndtr

from search.choosers.distances import Floats
from search.choosers.surrogate import Kernel

TRUST = 0.8
"""What is expected of a configuration about which nothing is known, between -1 and 1."""
KNOWN_NOISE, DECISION_NOISE = 0.05, 0.05


def success_chances(among: Floats, apart: Floats, worked: Floats) -> Floats:
    """Chance of each row to work, in the manner of a probit on a Gaussian process.

    `among` are distances between the launched configurations, `apart` those of the rows to them;
    `worked` is 1 for each that was measured and -1 for each that failed by its own doing.
    """
    if (worked > 0).all():
        return np.ones(apart.shape[0])
    kernel = Kernel(alone_share=0.6, reach=2.5, weights=np.ones(apart.shape[-1]))
    known = cho_factor(kernel.of(among) + KNOWN_NOISE * np.eye(len(worked)))
    similar = kernel.of(apart)
    mean = TRUST + similar @ cho_solve(known, worked - TRUST)
    left = np.maximum(1 - (similar * cho_solve(known, similar.T).T).sum(axis=1), 0)
    chances: Floats = ndtr(mean / np.sqrt(left / 2 + DECISION_NOISE))
    return chances
