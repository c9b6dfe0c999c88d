"""Optuna's tree-structured Parzen estimator over the knobs of a space."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from random import Random
from typing import TYPE_CHECKING, Final, TypeAlias

from policies.space import Knob, Space
from records.errors import StudyError
from records.study import Study, Value
from records.trial import Config, History
from search.strategies.base import Choice, untried

if TYPE_CHECKING:
    from optuna import Study as Asked
    from optuna.distributions import CategoricalDistribution, IntDistribution

    Distribution: TypeAlias = CategoricalDistribution | IntDistribution

STARTUP: Final = 5
"""Trials before the estimator speaks; all but the first are random."""
INSTALL: Final = "strategy 'tpe' needs Optuna; install it with: pip install 'cclsearch[optuna]'"


class TpeChooser:
    """Asks Optuna, which is told all trials anew each time: the same history, the same answer.

    A failed launch is told as worse than every measured one. Where what Optuna suggests breaks a
    constraint or was tried, the nearest that does not and was not is taken. To ask two dozen times,
    telling it each time what was wrong, took twenty times as long and needed no fewer trials.
    """

    name = "tpe"

    def __init__(self, space: Space) -> None:
        if find_spec("optuna") is None:
            raise StudyError(INSTALL)
        self._space = space
        self._axes = {knob.name: _Axis(knob) for knob in space.knobs}

    def choose(self, study: Study, history: History) -> Choice | None:
        """Give what Optuna suggests, or the nearest that is new; None when all were tried."""
        left = untried(self._space, history)
        if not left:
            return None
        draw = Random(f"{study.random_seed}/{len(history)}")
        tried_count = len(self._space.feasible) - len(left)
        if tried_count < STARTUP or not history.measured:
            why = f"random draw: the estimator begins after {STARTUP} trials"
            return Choice(config=draw.choice(left), why=why)
        suggested = self._suggestion(history, draw.getrandbits(32))
        draw.shuffle(left)  # among equally near ones
        nearest = min(left, key=lambda config: self._space.distance(suggested, config))
        if nearest == self._space.check(suggested.values):
            return Choice(config=nearest, why="suggested by the Parzen estimator")
        return Choice(config=nearest, why="the nearest to what the Parzen estimator suggested")

    def _suggestion(self, history: History, seed: int) -> Config:
        """What Optuna would try, in all knobs, whether or not that is feasible."""
        with _optuna(seed) as asked:
            from optuna.trial import create_trial

            for config, value in _told(history).items():
                told = create_trial(
                    params={name: self._axes[name].place(config[name]) for name in config},
                    distributions={name: self._axes[name].distribution() for name in config},
                    value=value,
                )
                asked.add_trial(told)
            trial = asked.ask({name: axis.distribution() for name, axis in self._axes.items()})
            return Config(
                {name: self._axes[name].choices[place] for name, place in trial.params.items()}
            )


class _Axis:
    """A knob as Optuna takes it: places among its choices, ordered where these are numbers."""

    def __init__(self, knob: Knob) -> None:
        numbers = [choice for choice in knob.choices if not isinstance(choice, bool | str)]
        self._is_ordered = len(numbers) == len(knob.choices)
        self.choices: tuple[Value, ...] = (
            tuple(sorted(numbers)) if self._is_ordered else knob.choices
        )

    def place(self, value: Value) -> int:
        return self.choices.index(value)

    def distribution(self) -> "Distribution":
        from optuna.distributions import CategoricalDistribution, IntDistribution

        if self._is_ordered:
            return IntDistribution(0, len(self.choices) - 1)
        return CategoricalDistribution(range(len(self.choices)))


def _told(history: History) -> Mapping[Config, float]:
    """The cost of each launched configuration: of one that failed twice as far off as the worst."""
    costs = [history.cost(trial) for trial in history.measured]
    bad = 2 * max(costs) - min(costs)
    failed = {t.config: bad for t in history if t.config is not None and t.launched}
    known = {t.config: history.cost(t) for t in history.measured if t.config is not None}
    return {**failed, **known}


@contextmanager
def _optuna(seed: int) -> Iterator["Asked"]:
    """An empty study of Optuna, without its log and its notes on what is experimental."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = optuna.samplers.TPESampler(
            multivariate=True, group=True, n_startup_trials=0, seed=seed
        )
        yield optuna.create_study(sampler=sampler)
