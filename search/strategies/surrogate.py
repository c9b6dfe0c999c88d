"""Gaussian process; knob importance.

How far apart configurations are, knob by knob.

What measured configurations say about others: a Gaussian process over knobs.

Its covariance is the mean of what knobs say alone and of what they say together. How far a knob's
effect reaches, how much each knob matters and how noisy launches are is chosen by the marginal
likelihood of what was measured (Rasmussen and Williams, "Gaussian Processes for Machine
Learning", 2006, chapter 5), with the amplitude integrated out.

How much each knob matters, by what was measured: a smooth model asked one knob at a time.

The model is the surrogate of the offline strategies, a Gaussian process over the knobs, fitted to
the logarithm of the objective. Each tried configuration is predicted once with every choice of a
knob that was measured, the others as they are; what is told is the mean over configurations.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular

from policies.space import Knob, Space
from records.study import Value
from records.trial import Config, History

Floats: TypeAlias = NDArray[np.float64]


class Distances:
    """Distances between the configurations of one space, shaped (rows, columns, knobs).

    Numbers are as many steps apart as there are choices between them and one, so that degrees that
    double are evenly spaced. Texts and switches are one apart, and so is a knob that has no effect
    from one that has.
    """

    def __init__(self, space: Space) -> None:
        self._knobs = space.knobs
        self._tables = [_table(knob) for knob in space.knobs]

    def between(self, rows: Sequence[Config], columns: Sequence[Config]) -> Floats:
        """Distance of every row to every column in every knob."""
        apart = np.empty((len(rows), len(columns), len(self._knobs)))
        for i, (knob, table) in enumerate(zip(self._knobs, self._tables, strict=True)):
            apart[:, :, i] = table[np.ix_(_places(knob, rows), _places(knob, columns))]
        return apart


def _places(knob: Knob, configs: Sequence[Config]) -> list[int]:
    """Where each configuration's value comes among the choices; after all where it has none."""
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


def fit(apart: Floats, values: Floats, launch_counts: Floats) -> Surrogate:
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


LEAST_CONFIGS: Final = 8
MOST_CONFIGS: Final = 120
"""The best of them and others evenly; fitting takes the cube of their number."""
LEAST_SPREAD: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobEffect:
    """A knob by what the model says of it.

    `ratio` is the burden of the worst choice over that of the best one; `best` is that choice.
    `worst` is the other. `config_count` are the configurations in which the knob had an effect.
    """

    name: str
    ratio: float
    best: Value
    worst: Value
    config_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """Every knob of which more than one choice was measured, the most important first.

    `explained` is the share of the variation between configurations that the model foretells of
    one that it is not shown; where it is 0 or less, it knows nothing.
    """

    effects: tuple[KnobEffect, ...]
    explained: float
    config_count: int


def importance(space: Space, history: History, sign: int) -> Importance | None:
    """Ask a model of what was measured; None where there is too little or not above zero.

    `sign` is what a value is multiplied by to be a cost.
    """
    burdens = _burdens(space, history, sign)
    if len(burdens) < LEAST_CONFIGS:
        return None
    configs = _kept(burdens)
    logs = np.array([np.mean(burdens[config]) for config in configs])
    logs -= logs.mean()
    if float(np.abs(logs).max()) < LEAST_SPREAD:
        return None
    counts = np.array([float(len(burdens[config])) for config in configs])
    distances = Distances(space)
    model = fit(distances.between(configs, configs), logs, counts)
    found = (_effect(knob, configs, distances, model) for knob in space.knobs)
    effects = sorted((each for each in found if each is not None), key=lambda each: -each.ratio)
    return Importance(
        effects=tuple(effects), explained=_explained(model, logs), config_count=len(configs)
    )


def _burdens(space: Space, history: History, sign: int) -> Mapping[Config, Sequence[float]]:
    """Logarithms of what each configuration took; nothing where the objective is not positive."""
    found: dict[Config, list[float]] = defaultdict(list)
    for trial in history.measured:
        value = sign * history.cost(trial)
        if value <= 0:
            return {}
        if trial.config is not None and _is_known(trial.config, space.knobs):
            found[trial.config].append(sign * math.log(value))
    return found


def _is_known(config: Config, knobs: Sequence[Knob]) -> bool:
    """Whether all of its settings are choices: what comes from elsewhere may have others."""
    return all(config.values.get(knob.name, knob.choices[0]) in knob.choices for knob in knobs)


def _kept(burdens: Mapping[Config, Sequence[float]]) -> Sequence[Config]:
    ranked = sorted(burdens, key=lambda config: min(burdens[config]))
    if len(ranked) <= MOST_CONFIGS:
        return ranked
    best, rest = ranked[: MOST_CONFIGS // 2], ranked[MOST_CONFIGS // 2 :]
    return [*best, *rest[:: math.ceil(len(rest) / (MOST_CONFIGS // 2))]]


def _effect(
    knob: Knob, configs: Sequence[Config], distances: Distances, model: Surrogate
) -> KnobEffect | None:
    acting = [config for config in configs if knob.name in config.values]
    tried = [choice for choice in knob.choices if any(c[knob.name] == choice for c in acting)]
    if len(tried) < 2:
        return None
    predicted = dict(
        zip(tried, _means(knob, tried, acting, configs, distances, model), strict=True)
    )
    best, worst = min(tried, key=predicted.__getitem__), max(tried, key=predicted.__getitem__)
    return KnobEffect(
        name=knob.name,
        ratio=math.exp(min(predicted[worst] - predicted[best], 700.0)),
        best=best,
        worst=worst,
        config_count=len(acting),
    )


def _means(
    knob: Knob,
    tried: Sequence[Value],
    acting: Sequence[Config],
    configs: Sequence[Config],
    distances: Distances,
    model: Surrogate,
) -> Iterator[float]:
    """Mean prediction for each choice of a knob, all else as it is."""
    for choice in tried:
        changed = [Config({**config.values, knob.name: choice}) for config in acting]
        mean, _ = model.predict(distances.between(changed, configs))
        yield float(mean.mean())


def _explained(model: Surrogate, values: Floats) -> float:
    """One minus what is left of the variation when each value is foretold by the others alone."""
    count = len(values)
    inverse = np.diag(cho_solve((model.factor, True), np.eye(count)))
    errors = model.solved / inverse
    without_model = values * count / (count - 1)
    return 1 - float((errors**2).sum() / (without_model**2).sum())
