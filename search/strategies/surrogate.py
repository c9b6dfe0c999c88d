"""A Gaussian process over knobs, and the importance of each knob by it.

The covariance is the mean of a term for each knob alone and one for all together, both Matern 5/2.
Lengths, shares, amplitude and noise maximize the posterior (Rasmussen and Williams, "Gaussian
Processes for Machine Learning", 2006, chapter 5); the prior of lengths grows with the number of
knobs (Hvarfner et al., "Vanilla Bayesian Optimization Performs Great in High Dimensions", 2024).

The importance of a knob is predicted: each tried configuration with every measured choice of the
knob and the other knobs unchanged, as the mean over configurations.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from policies.space import Knob, Space
from records.study import Value
from records.trial import Config, History

Floats: TypeAlias = NDArray[np.float64]


class Distances:
    """Distances between the configurations of one space, shaped (rows, columns, knobs), 0 to 1.

    The distance of numbers is that of their places among the choices, as a share of the largest,
    so degrees that double are evenly spaced. The distance between texts or switches, or
    from one of them to none, is 1. None lies off the line of numbers, at a distance of 1 from both
    ends. If it were equally far from every number, no points in space would have these distances,
    and the covariance matrix would not be positive.
    """

    def __init__(self, space: Space) -> None:
        self._tables = [_table(knob) for knob in space.knobs]
        self._places = [
            (knob.name, {choice: place for place, choice in enumerate(knob.choices)})
            for knob in space.knobs
        ]
        self._rows: dict[Config, tuple[int, ...]] = {}

    def between(self, rows: Sequence[Config], columns: Sequence[Config]) -> Floats:
        """Return the distance of every row to every column in every knob."""
        here, there = self._of(rows), self._of(columns)
        distances = np.empty((len(rows), len(columns), len(self._tables)))
        for i, table in enumerate(self._tables):
            distances[:, :, i] = table[np.ix_(here[:, i], there[:, i])]
        return distances

    def _of(self, configs: Sequence[Config]) -> NDArray[np.intp]:
        """Return the place of each value among the choices of its knob; the last if it has none."""
        for config in configs:
            if config not in self._rows:
                self._rows[config] = tuple(
                    places[config[name]] if name in config.values else len(places)
                    for name, places in self._places
                )
        rows = [self._rows[config] for config in configs]
        return np.array(rows, dtype=np.intp).reshape(len(rows), len(self._tables))


def _table(knob: Knob) -> Floats:
    count = len(knob.choices)
    table = np.ones((count + 1, count + 1))
    if isinstance(knob.choices[0], str | bool):
        np.fill_diagonal(table, 0)
        return table
    places = np.arange(count) / max(1, count - 1)
    table[:count, :count] = np.abs(places[:, None] - places[None, :])
    table[count, :count] = table[:count, count] = np.sqrt(3 / 4 + (places - 1 / 2) ** 2)
    table[count, count] = 0
    return table


SQRT5 = math.sqrt(5)
LENGTH_DEVIATION = math.sqrt(3)
AMPLITUDE_COUNT, AMPLITUDE = 4.0, 0.3
"""Prior: as if four configurations had differed by 30 %."""
NOISE, NOISE_DEVIATION = 0.03, 0.7
"""Prior of the deviation of a launch, and deviation of its logarithm."""
SHARE_DEVIATION = 1.5
"""Of the log odds of the share of knobs alone."""
CONSTANT = 3.0
"""Prior deviation of the mean of all values."""
LARGEST = 10.0
"""Of all parameters, which are logarithms."""
LEAST_VARIANCE = 1e-6
MOST_STEPS = 60


@dataclass(frozen=True, slots=True)
class Kernel:
    """Covariance of configurations; `lengths` are distances over which values change."""

    lengths: Floats
    alone_share: float = 0.5
    variance: float = 1.0

    def of(self, distances: Floats) -> Floats:
        """Return covariances (rows, columns) for distances (rows, columns, knobs)."""
        squares = (distances / self.lengths) ** 2
        alone = _matern(squares).mean(axis=-1)
        together = _matern(squares.sum(axis=-1))
        mixed: Floats = self.alone_share * alone + (1 - self.alone_share) * together
        return self.variance * mixed


def _matern(squares: Floats) -> Floats:
    """Return the Matern 5/2 correlation at squared distances."""
    far = SQRT5 * np.sqrt(squares)
    near: Floats = (1 + far + far**2 / 3) * np.exp(-far)
    return near


def _matern_slope(squares: Floats) -> Floats:
    """Return its derivative by the squared distance."""
    far = SQRT5 * np.sqrt(squares)
    slope: Floats = -5 / 6 * (1 + far) * np.exp(-far)
    return slope


def usual_length(knob_count: int) -> float:
    """Return the mode of the prior of a length."""
    return math.exp(math.sqrt(2) + math.log(knob_count) / 2 - LENGTH_DEVIATION**2)


@dataclass(frozen=True, slots=True, eq=False)
class Surrogate:
    """A fitted process: predicts values from the measured ones.

    `trends` (measured, count) are functions of which values are a sum with unknown weights, each
    with a deviation of 1; `noise` is the deviation of a launch.
    """

    kernel: Kernel
    noise: float
    values: Floats
    trends: Floats
    factor: Floats

    @property
    def solved(self) -> Floats:
        """The values, weighed by the inverse of their covariance."""
        solved: Floats = scipy.linalg.cho_solve((self.factor, True), self.values)
        return solved

    @property
    def misfit(self) -> float:
        """Deviation of a single value from the trends."""
        return math.sqrt(self.kernel.variance + self.noise**2)

    def predict(self, distances: Floats, trends: Floats | None = None) -> tuple[Floats, Floats]:
        """Return mean and deviation for rows, by their distances to the measured configurations."""
        own = _constant(len(distances)) if trends is None else trends
        similar = self.kernel.of(distances) + own @ self.trends.T
        reduced = scipy.linalg.solve_triangular(self.factor, similar.T, lower=True)
        prior = self.kernel.variance + (own**2).sum(axis=1)
        left = np.maximum(prior - (reduced**2).sum(axis=0), 1e-6)
        return similar @ self.solved, np.sqrt(left)

    def left_out(self) -> tuple[Floats, Floats]:
        """Return error and variance of each value as the others predict it."""
        inverse = np.diag(scipy.linalg.cho_solve((self.factor, True), np.eye(len(self.values))))
        return self.solved / inverse, 1 / inverse

    @property
    def log_density(self) -> float:
        """Logarithm of how likely each value is by the others, over all values."""
        errors, variances = self.left_out()
        return float(-0.5 * (np.log(2 * np.pi * variances) + errors**2 / variances).sum())


def _constant(count: int) -> Floats:
    return np.full((count, 1), CONSTANT)


def fit(
    distances: Floats, values: Floats, launch_counts: Floats, trends: Floats | None = None
) -> Surrogate:
    """Fit to values, each the mean of its launches; `distances` is (measured, measured, knobs)."""
    own = _constant(len(values)) if trends is None else trends
    posterior = Posterior(distances, values, launch_counts, own)
    return posterior.surrogate(posterior.mode())


class Posterior:
    """The negative logarithm of the posterior of lengths, share, variance and noise.

    Its parameters are the logarithms of these, and the log odds of the share.
    """

    def __init__(
        self, distances: Floats, values: Floats, launch_counts: Floats, trends: Floats
    ) -> None:
        self._distances, self._values, self._trends = distances, values, trends
        self._squares = distances**2
        self._launch_counts = launch_counts
        self._trend = trends @ trends.T
        self._count = distances.shape[-1]
        self._usual = math.log(usual_length(self._count))

    def mode(self) -> Floats:
        """Return the most probable parameters."""
        # L-BFGS-B would start threads in each step, which takes far longer on a busy machine.
        start = [self._usual] * self._count
        start += [0.0, 2 * math.log(AMPLITUDE), math.log(NOISE)]
        found = scipy.optimize.minimize(
            self.loss, np.array(start), jac=True, method="BFGS", options={"maxiter": MOST_STEPS}
        )
        best: Floats = found.x
        return best

    def surrogate(self, parameters: Floats) -> Surrogate:
        """Return the process with these parameters."""
        kernel, noise = self._parts(parameters)
        covariance = kernel.of(self._distances) + self._trend + np.diag(self._noises(noise))
        factor = scipy.linalg.cholesky(covariance, lower=True)
        return Surrogate(kernel, noise, self._values, self._trends, factor)

    def loss(self, parameters: Floats) -> tuple[float, Floats]:
        """Return the loss and its gradient."""
        kernel, noise = self._parts(parameters)
        share, variance = kernel.alone_share, kernel.variance
        squares = self._squares / kernel.lengths**2
        total = squares.sum(axis=-1)
        alone, together = _matern(squares).mean(axis=-1), _matern(total)
        mixed = share * alone + (1 - share) * together
        noises = self._noises(noise)
        factor = scipy.linalg.cholesky(
            variance * mixed + self._trend + np.diag(noises), lower=True, check_finite=False
        )
        inverse = scipy.linalg.cho_solve((factor, True), np.eye(len(noises)), check_finite=False)
        solved = inverse @ self._values
        outer = 0.5 * (inverse - np.outer(solved, solved))
        slopes = share / self._count * _matern_slope(squares)
        slopes += ((1 - share) * _matern_slope(total))[:, :, None]
        by_length = -2 * variance * np.einsum("ij,ijk->k", outer, slopes * squares)
        by_share = variance * float((outer * (alone - together)).sum()) * share * (1 - share)
        by_variance = variance * float((outer * mixed).sum())
        by_noise = 2 * float(np.diag(outer) @ (noises - LEAST_VARIANCE))
        likely = 0.5 * float(self._values @ solved) + float(np.log(np.diag(factor)).sum())
        prior, by_prior = self._prior(parameters)
        gradient = np.array([*by_length, by_share, by_variance, by_noise]) + by_prior
        return likely + prior, gradient

    def _parts(self, parameters: Floats) -> tuple[Kernel, float]:
        bounded = np.clip(parameters, -LARGEST, LARGEST)
        share, variance, noise = bounded[-3:].tolist()
        kernel = Kernel(
            lengths=np.exp(bounded[:-3]),
            alone_share=1 / (1 + math.exp(-share)),
            variance=math.exp(variance),
        )
        return kernel, math.exp(noise)

    def _noises(self, noise: float) -> Floats:
        return noise**2 / self._launch_counts + LEAST_VARIANCE

    def _prior(self, parameters: Floats) -> tuple[float, Floats]:
        """Return the negative logarithm of the prior, and its gradient."""
        centres = np.array([*[self._usual] * self._count, 0.0, 0.0, math.log(NOISE)])
        deviations = np.array(
            [*[LENGTH_DEVIATION] * self._count, SHARE_DEVIATION, math.inf, NOISE_DEVIATION]
        )
        apart = (parameters - centres) / deviations
        scale = AMPLITUDE_COUNT * AMPLITUDE**2 / 2 * math.exp(-max(parameters[-2], -LARGEST))
        loss = 0.5 * float(apart @ apart) + scale + AMPLITUDE_COUNT / 2 * parameters[-2]
        gradient = apart / deviations
        gradient[-2] = AMPLITUDE_COUNT / 2 - scale
        return float(loss), gradient


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
    errors, _ = model.left_out()
    without_model = values * count / (count - 1)
    return 1 - float((errors**2).sum() / (without_model**2).sum())
