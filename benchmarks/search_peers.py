"""Peers that strategies are compared with, in addition to those that cclsearch has itself."""

import warnings
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

import numpy as np
from numpy.typing import NDArray
from optuna.samplers import GPSampler
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from policies.space import Knob
from records.study import Study, Value
from records.trial import Config, History
from search.strategies.base import Choice, Chooser, Observations
from search.strategies.tpe import STARTUP, TpeChooser


class GpChooser(Chooser):
    """A Gaussian process of scikit-learn, whose expected improvement every candidate gets.

    Matern 5/2 with a length for each knob, by likelihood. Numbers are places among the choices,
    other choices a switch each. What failed counts as the slowest so far. The first trials are
    random, as those of `tpe`.
    """

    name = "gp"

    def choice(self, study: Study, history: History, left: list[Config]) -> Choice:
        """Return the untried configuration with the largest expected improvement."""
        known = Observations.of(history)
        if len(history) < STARTUP or not known.measured:
            return Choice(config=Random(f"{study.random_seed}/{len(history)}").choice(left), why="")
        failed = [config for config in known.barred if config not in known.measured]
        losses = np.concatenate((known.losses, np.full(len(failed), known.losses.max())))
        rows = self._rows([*known.measured, *failed])
        kernel = ConstantKernel(1.0, (0.05, 20)) * Matern(
            np.full(rows.shape[1], 1.0), (0.1, 20), nu=2.5
        ) + WhiteKernel(1e-3, (1e-5, 0.1))
        model = GaussianProcessRegressor(kernel, normalize_y=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a length at its bound
            model.fit(rows, losses)
        mean, deviation = model.predict(self._rows(left), return_std=True)
        ahead = (known.losses.min() - mean) / deviation
        gains = deviation * (ahead * norm.cdf(ahead) + norm.pdf(ahead))
        return Choice(config=left[int(np.argmax(gains))], why="")

    def _rows(self, configs: Sequence[Config]) -> NDArray[np.float64]:
        columns = {knob.name: _columns(knob) for knob in self.space.knobs}
        rows = [
            [x for name, each in columns.items() for x in each[config.values.get(name)]]
            for config in configs
        ]
        return np.array(rows)


def _columns(knob: Knob) -> Mapping[Value | None, Sequence[float]]:
    """Return the numbers that stand for each choice, and for none."""
    found: dict[Value | None, Sequence[float]]
    if isinstance(knob.choices[0], bool | str):
        found = {c: tuple(float(c == other) for other in knob.choices) for c in knob.choices}
        found[None] = (0.0,) * len(knob.choices)
    else:
        last = max(len(knob.choices) - 1, 1)
        found = {choice: (n / last,) for n, choice in enumerate(knob.choices)}
        found[None] = (0.0,)
    return found


class OptunaGpChooser(TpeChooser):
    """Optuna's Gaussian process, which is asked as its Parzen estimator is.

    It learns from trials that have every knob, so one without effect has its first choice.
    """

    name = "optuna-gp"

    def sampler(self, seed: int) -> GPSampler:
        """Return the sampler that is asked."""
        return GPSampler(n_startup_trials=0, seed=seed, constraints_func=lambda _trial: ())

    def settings(self, config: Config) -> Mapping[str, Value]:
        """Return the settings of a tried configuration, those without effect included."""
        return {knob.name: knob.choices[0] for knob in self.space.knobs} | dict(config.values)


PEERS: Final[Mapping[str, type[Chooser]]] = {
    each.name: each for each in (GpChooser, OptunaGpChooser)
}
