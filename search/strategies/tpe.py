"""Optuna's tree-structured Parzen estimator over the knobs of a space."""

import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from random import Random
from typing import TYPE_CHECKING, Final

from policies.space import Knob, Space
from records.errors import StudyError
from records.study import Study, Value
from records.trial import Config, History
from search.strategies.base import Choice, Chooser, Estimates, attempted

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

STARTUP: Final = 5
"""Trials before the estimator is used; all but the first are random."""
INSTALL: Final = "strategy 'tpe' needs Optuna; install it with: pip install 'cclsearch[optuna]'"


class TpeChooser(Chooser):
    """Asks Optuna, with all trials added anew each turn: the same history, the same answer.

    A configuration that failed or broke a limit breaks a constraint of Optuna's, by which it is
    ranked below every other. Where the suggestion breaks a constraint or was tried, the nearest
    feasible untried configuration replaces it. Asking 24 times instead, with each violation
    reported back, took 20 times as long and needed as many trials.
    """

    name = "tpe"

    def __init__(self, space: Space, estimates: Estimates = lambda _: None) -> None:
        if find_spec("optuna") is None:
            raise StudyError(INSTALL)
        super().__init__(space, estimates)
        # Places in a sorted list of choices are ordered for Optuna where the choices are numbers.
        self._choices = {
            knob.name: tuple(sorted(knob.choices)) if _is_ordered(knob) else knob.choices
            for knob in space.knobs
        }

    def choice(self, study: Study, history: History, left: list[Config]) -> Choice:
        """Return Optuna's suggestion, or the nearest untried one."""
        draw = Random(f"{study.random_seed}/{len(history)}")
        tried_count = len(attempted(history))
        if tried_count < STARTUP or not history.measured:
            why = f"random draw: the estimator begins after {STARTUP} trials"
            return Choice(config=draw.choice(left), why=why)
        suggested = self._suggestion(history, draw.getrandbits(32))
        draw.shuffle(left)  # among equally near ones
        nearest = min(left, key=lambda config: self.space.distance(suggested, config))
        if nearest == self.space.check(suggested.values):
            return Choice(config=nearest, why="suggested by the Parzen estimator")
        return Choice(config=nearest, why="the nearest to what the Parzen estimator suggested")

    def sampler(self, seed: int) -> "BaseSampler":
        """Return Optuna's sampler; past trials carry the constraints that they broke."""
        from optuna.samplers import TPESampler

        return TPESampler(
            multivariate=True,
            group=True,
            n_startup_trials=0,
            seed=seed,
            constraints_func=lambda _trial: (),
        )

    def settings(self, config: Config) -> Mapping[str, Value]:
        """Return the settings of a tried configuration that the sampler learns from."""
        return config.values

    def _suggestion(self, history: History, seed: int) -> Config:
        """Return the next configuration by Optuna, in all knobs, feasible or not."""
        import optuna
        from optuna.distributions import (
            BaseDistribution,
            CategoricalDistribution,
            IntDistribution,
        )

        axes: dict[str, BaseDistribution] = {
            knob.name: IntDistribution(0, len(knob.choices) - 1)
            if _is_ordered(knob)
            else CategoricalDistribution(range(len(knob.choices)))
            for knob in self.space.knobs
        }
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # notes on experimental options
            parzen = optuna.create_study(sampler=self.sampler(seed))
            for config, (cost, is_barred) in _costs(history).items():
                settings = self.settings(config)
                parzen.add_trial(
                    optuna.trial.create_trial(
                        params={n: self._choices[n].index(v) for n, v in settings.items()},
                        distributions={name: axes[name] for name in settings},
                        value=cost,
                        system_attrs={"constraints": (float(is_barred),)},
                    )
                )
            params = parzen.ask(axes).params
        return Config({name: self._choices[name][place] for name, place in params.items()})


def _is_ordered(knob: Knob) -> bool:
    return not any(isinstance(choice, bool | str) for choice in knob.choices)


def _costs(history: History) -> Mapping[Config, tuple[float, bool]]:
    """Return the cost of each launched configuration, and whether it failed or broke a limit."""
    costs = [history.cost(trial) for trial in history.measured]
    bad = 2 * max(costs) - min(costs)
    failed = {t.config: (bad, True) for t in history if t.config is not None and t.launched}
    known = {
        t.config: (history.cost(t), bool(t.score and t.score.broken))
        for t in history.measured
        if t.config is not None
    }
    return {**failed, **known}
