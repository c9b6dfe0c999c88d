"""A Gaussian process over knobs, and the importance of each knob by it.

The covariance is the mean of a term for each knob alone and one for all together. The reach of
effects, the weight of each knob and the noise of launches maximize the marginal likelihood
(Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, chapter 5), with the
amplitude integrated out.

The importance of a knob is predicted: each tried configuration with every measured choice of the
knob and the other knobs unchanged, as the mean over configurations.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from policies.space import Knob, Space
from records.study import Value
from records.trial import Config, History

Floats: TypeAlias = NDArray[np.float64]


class Distances:
    """Distances between the configurations of one space, shaped (rows, columns, knobs).

    The distance of numbers is that of their places among the choices, so degrees that double are
    evenly spaced. The distance of texts, of switches, and of a value from none is 1.
    """

    def __init__(self, space: Space) -> None:
        self._knobs = space.knobs
        self._tables = [_table(knob) for knob in space.knobs]

    def between(self, rows: Sequence[Config], columns: Sequence[Config]) -> Floats:
        """Return the distance of every row to every column in every knob."""
        distances = np.empty((len(rows), len(columns), len(self._knobs)))
        for i, (knob, table) in enumerate(zip(self._knobs, self._tables, strict=True)):
            distances[:, :, i] = table[np.ix_(_places(knob, rows), _places(knob, columns))]
        return distances


def _places(knob: Knob, configs: Sequence[Config]) -> list[int]:
    """Return the place of each configuration's value among the choices; the last if it has none."""
    places = {choice: place for place, choice in enumerate(knob.choices)}
    nowhere = len(knob.choices)
    return [
        places[config[knob.name]] if knob.name in config.values else nowhere for config in configs
    ]


def _table(knob: Knob) -> Floats:
    count = len(knob.choices)
    table = np.ones((count + 1, count + 1))
    if isinstance(knob.choices[0], str | bool):
        np.fill_diagonal(table, 0)
        return table
    steps = np.arange(count)
    table[:count, :count] = np.abs(steps[:, None] - steps[None, :])
    table[count, count] = 0
    return table


ALONE_SHARES = (0.2, 0.5)
REACHES = (0.7, 1.5)
NOISES = (0.01, 0.05, 0.2)
"""Variance of a launch in units of the variance between configurations."""
WEIGHTS = (0.2, 1.0, 4.0)
WEIGHED_FROM = 4
"""Least number of measured configurations for which weights of knobs are fitted."""
WEIGHING_ROUNDS = 2
WEIGHT_PENALTY = 0.1
AMPLITUDE_COUNT, AMPLITUDE = 4.0, 0.3
"""Prior: as if four configurations had differed by 30 %."""


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """Similarity of two configurations, 1 for the same one."""

    alone_share: float
    reach: float
    weights: Floats

    def of(self, distances: Floats) -> Floats:
        """Return similarities (rows, columns) for distances (rows, columns, knobs)."""
        relative = self.weights / self.weights.mean()
        alone = (np.exp(-distances / self.reach) * relative).mean(axis=-1)
        together = np.exp(-(distances * relative).sum(axis=-1) / (2 * self.reach))
        similarity: Floats = self.alone_share * alone + (1 - self.alone_share) * together
        return similarity

    def weighing(self, knob: int, weight: float) -> "Kernel":
        """Return the kernel with another weight of a knob."""
        weights = self.weights.copy()
        weights[knob] = weight
        return replace(self, weights=weights)


@dataclass(frozen=True, slots=True, eq=False)
class Surrogate:
    """A fitted process: predicts how far values lie from their prior expectation.

    `unlikeliness` is the negative logarithm of how likely the values are by it.
    """

    kernel: Kernel
    noise: float
    variance: float
    factor: Floats
    values: Floats
    unlikeliness: float

    @property
    def solved(self) -> Floats:
        """The values, weighed by the inverse of their covariance."""
        solved: Floats = scipy.linalg.cho_solve((self.factor, True), self.values)
        return solved

    def predict(self, distances: Floats) -> tuple[Floats, Floats]:
        """Return mean and deviation for rows, by their distances to the measured configurations."""
        similar = self.kernel.of(distances)
        reduced = scipy.linalg.solve_triangular(self.factor, similar.T, lower=True)
        left = np.maximum(1 - (reduced**2).sum(axis=0), 1e-9)
        return similar @ self.solved, np.sqrt(self.variance * left)


def fit(distances: Floats, values: Floats, launch_counts: Floats) -> Surrogate:
    """Fit to values, each the mean of its launches; `distances` is (measured, measured, knobs)."""
    knob_count = distances.shape[-1]
    even = np.ones(knob_count)

    def fitted(kernel: Kernel, noise: float) -> Surrogate:
        factor = scipy.linalg.cholesky(
            kernel.of(distances) + np.diag(noise / launch_counts), lower=True
        )
        whitened = scipy.linalg.solve_triangular(factor, values, lower=True)
        count = AMPLITUDE_COUNT + len(values)
        scatter = AMPLITUDE_COUNT * AMPLITUDE**2 + float(whitened @ whitened)
        unlikeliness = count / 2 * np.log(scatter) + np.log(np.diag(factor)).sum()
        penalty = WEIGHT_PENALTY * (np.log(kernel.weights) ** 2).sum()
        total = float(unlikeliness + penalty)
        return Surrogate(kernel, noise, scatter / count, factor, values, total)

    def likeliest(fits: Iterable[Surrogate]) -> Surrogate:
        return min(fits, key=lambda each: each.unlikeliness)

    best = likeliest(
        fitted(Kernel(share, reach, even), noise)
        for share, reach, noise in product(ALONE_SHARES, REACHES, NOISES)
    )
    if len(values) >= WEIGHED_FROM:
        for knob in list(range(knob_count)) * WEIGHING_ROUNDS:
            kernels = [best.kernel.weighing(knob, weight) for weight in WEIGHTS]
            best = likeliest((best, *(fitted(kernel, best.noise) for kernel in kernels)))
    return best


LEAST_CONFIGS: Final = 8
MOST_CONFIGS: Final = 120
"""Half are the best, half are spread evenly; fitting takes the cube of their number."""
LEAST_SPREAD: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobEffect:
    """The effect of a knob by the model.

    `ratio` is the cost of the `worst` choice over that of the `best`, at least 1. `config_count` is
    the number of configurations in which the knob had an effect.
    """

    name: str
    ratio: float
    best: Value
    worst: Value
    config_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """Every knob of which more than one choice was measured, the most important first.

    `explained` is the share of the variation between configurations that the model predicts with
    each left out in turn; at 0 or less it predicts nothing.
    """

    effects: tuple[KnobEffect, ...]
    explained: float
    config_count: int


def importance(space: Space, history: History, sign: int) -> Importance | None:
    """Return the importance of knobs; None with too few configurations or a value of 0 or less.

    `sign` is 1 where lower values are better, else -1.
    """
    logs_of = _log_costs(space, history, sign)
    if len(logs_of) < LEAST_CONFIGS:
        return None
    configs = _chosen(logs_of)
    logs = np.array([np.mean(logs_of[config]) for config in configs])
    logs -= logs.mean()
    if float(np.abs(logs).max()) < LEAST_SPREAD:
        return None
    counts = np.array([float(len(logs_of[config])) for config in configs])
    distances = Distances(space)
    model = fit(distances.between(configs, configs), logs, counts)
    found = (_effect(knob, configs, distances, model) for knob in space.knobs)
    effects = sorted((each for each in found if each is not None), key=lambda each: -each.ratio)
    return Importance(
        effects=tuple(effects), explained=_explained(model, logs), config_count=len(configs)
    )


def _log_costs(space: Space, history: History, sign: int) -> Mapping[Config, Sequence[float]]:
    """Return the logarithms of each configuration's costs; nothing if one is not positive."""
    found: dict[Config, list[float]] = defaultdict(list)
    for trial in history.measured:
        value = sign * history.cost(trial)
        if value <= 0:
            return {}
        if trial.config is not None and _is_known(trial.config, space.knobs):
            found[trial.config].append(sign * math.log(value))
    return found


def _is_known(config: Config, knobs: Sequence[Knob]) -> bool:
    """Whether all of its settings are choices; imported configurations may have others."""
    return all(config.values.get(knob.name, knob.choices[0]) in knob.choices for knob in knobs)


def _chosen(logs_of: Mapping[Config, Sequence[float]]) -> Sequence[Config]:
    ranked = sorted(logs_of, key=lambda config: min(logs_of[config]))
    if len(ranked) <= MOST_CONFIGS:
        return ranked
    best, rest = ranked[: MOST_CONFIGS // 2], ranked[MOST_CONFIGS // 2 :]
    return [*best, *rest[:: math.ceil(len(rest) / (MOST_CONFIGS // 2))]]


def _effect(
    knob: Knob, configs: Sequence[Config], distances: Distances, model: Surrogate
) -> KnobEffect | None:
    """Compare the mean prediction for each choice of a knob, with the other knobs unchanged."""
    acting = [config for config in configs if knob.name in config.values]
    predicted: dict[Value, float] = {}
    for choice in knob.choices:
        if any(config[knob.name] == choice for config in acting):
            changed = [Config({**config.values, knob.name: choice}) for config in acting]
            mean, _ = model.predict(distances.between(changed, configs))
            predicted[choice] = float(mean.mean())
    if len(predicted) < 2:
        return None
    best, worst = (
        min(predicted, key=predicted.__getitem__),
        max(predicted, key=predicted.__getitem__),
    )
    return KnobEffect(
        name=knob.name,
        ratio=math.exp(min(predicted[worst] - predicted[best], 700.0)),
        best=best,
        worst=worst,
        config_count=len(acting),
    )


def _explained(model: Surrogate, values: Floats) -> float:
    """Return one minus the share of variation left when the others predict each value."""
    count = len(values)
    inverse = np.diag(scipy.linalg.cho_solve((model.factor, True), np.eye(count)))
    errors = model.solved / inverse
    without_model = values * count / (count - 1)
    return 1 - float((errors**2).sum() / (without_model**2).sum())
