"""How much each knob matters, by what was measured: a smooth model asked one knob at a time.

The model is the surrogate of the offline strategies, a Gaussian process over the knobs, fitted to
the logarithm of the objective. Each tried configuration is predicted once with every choice of a
knob that was measured, the others as they are; what is told is the mean over configurations.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.linalg import cho_solve

from policies.knob import Knob
from policies.space import Space
from records.history import History
from records.study import Value
from records.trial import Config
from search.choosers.distances import Distances, Floats
from search.choosers.surrogate import Surrogate, fitted

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
    model = fitted(distances.between(configs, configs), logs, counts)
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
