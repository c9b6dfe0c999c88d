"""Strategies without an LLM. `offline`: a cost model says where to look, trials correct it.

The expectation is an analytic estimate, calibrated on measured trials, as far as trials confirm it.
A Gaussian process over the knobs learns its errors, another one which configurations fail. The
untried configuration with the largest expected improvement comes next; without an estimate, the
first few are spread over the choices of all knobs. Where nothing is expected to be gained, what
looks best without the estimate comes next: it may be wrong where nothing was measured.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from statistics import fmean

import numpy as np

from policies.space import Space
from records.study import Study
from records.trial import Config, Failed, FailureKind, History
from search.loop.budget import remaining_launches
from search.loop.leader import STEP_OBJECTIVES
from search.loop.learned import learned_constraints
from search.strategies.base import (
    Choice,
    Chooser,
    Estimates,
    Observations,
    change_words,
    untried,
    worth_trying,
)
from search.strategies.cost_model import Feasibility, Forecaster, Prospects
from search.strategies.earlier import next_earlier
from search.strategies.surrogate import Distances, Floats
from search.views.format import differing_knobs

TIMED = (*STEP_OBJECTIVES, "output_tokens_per_s")
"""Objectives that follow from the step time alone, which is what estimates are of."""
POOL = 4000
"""Configurations that are compared per turn; of more, half are drawn from those near the best."""
NEAR_KNOBS = 2
"""Knobs in which a configuration near the best may differ from it."""
SPREAD_COUNT = 5
"""Configurations to measure before the model chooses, where there is no estimate."""
DOUBTFUL = 0.25
"""Factor for configurations that break a learned constraint, which may be wrong."""
ALIKE = 0.02
"""Gains that differ by less, relatively, are one: the nearest to the best comes first."""
MOST_CANDIDATES = 20
SURE = 0.99
SAFE = 0.9
"""Share of the largest chance to run that counts as safe."""
LEARNED_FROM = 5
"""Measured configurations from which on the model may end a search."""
WORTH = 0.2
"""Share of the margin that a launch must be expected to gain: a gain of 5 % is worth one even where
it is unlikely."""
CALM_LAUNCHES = 3
"""Launches that were expected to gain nothing, and did not, before a search ends."""


class HybridChooser(Chooser):
    """Chooses by a calibrated cost model and a model of its errors."""

    name = "offline"

    def __init__(self, space: Space, estimates: Estimates = lambda _: None) -> None:
        super().__init__(space, cache(estimates))
        self._distances = Distances(space)
        self._feasibility = Feasibility(space, self._distances)
        self._forecasters = {
            estimated: Forecaster(self._distances, self.estimates if estimated else None)
            for estimated in (True, False)
        }

    def choice(self, study: Study, history: History, left: list[Config]) -> Choice:
        """Return the most promising configuration."""
        return self._from_earlier(study, history) or self._candidates(study, history, left, 1)[0]

    def candidates(self, study: Study, history: History, count: int) -> tuple[Choice, ...]:
        """Return up to `count` of the most promising configurations, best first.

        They are ordered by expected improvement, lowered where a learned constraint is broken,
        after what an earlier study found.
        """
        left = worth_trying(study, history, untried(self.space, history))
        first = self._from_earlier(study, history)
        found = self._candidates(study, history, left, count) if left else ()
        if first is None:
            return found
        return (first, *(each for each in found if each.config != first.config))[:count]

    def expectation(self, study: Study, history: History, config: Config) -> str:
        """Return the expected speedup over the best."""
        best = None if history.best is None else history.best.config
        if best is None or not self._expects(study, history, Observations.of(history), best):
            return ""
        options = self._options(study, history, [config])
        return _expected(options.prospects, options.known, 1)

    def no_gain(self, study: Study, history: History) -> str | None:
        """Return why no launch is worth it now, nor was the last three; None where one may be.

        A space that fits in the remaining budget is enumerated all the same. Patience, where it is
        given, takes the place of this.
        """
        if study.budget.patience is not None or history.weights or history.best is None:
            return None
        left = worth_trying(study, history, untried(self.space, history))
        if len(left) <= remaining_launches(study, history):
            return None
        gain, worth = 0.0, WORTH * study.measure.margin
        for back in range(CALM_LAUNCHES + 1):
            earlier = history if back == 0 else history.before(history.trials[-back].ordinal)
            if earlier.best is None or len(earlier.measured) < LEARNED_FROM:
                return None
            before = worth_trying(study, earlier, untried(self.space, earlier))
            expected = self._options(study, earlier, before).largest_gain
            if expected >= worth:
                return None
            gain = gain or expected
        return (
            f"nothing is left to gain: the most promising of {len(left)} untried configurations "
            f"is expected to improve on the best by {gain:.2%}, its chance to fail included, and "
            f"less than {worth:.2%} is not worth a launch"
        )

    def _from_earlier(self, study: Study, history: History) -> Choice | None:
        """Return what an earlier study found, once the seed was measured."""
        found = next_earlier(study, history, self.space) if history.best is not None else None
        if found is None:
            return None
        config, best = found
        work = f"other work ({best.differs})" if best.differs else "the same work"
        why = f"the best of study {best.study} for {work}, {best.speedup:.2f}x as good as its seed"
        return Choice(config=config, why=why, expected=why)

    def _candidates(
        self, study: Study, history: History, left: list[Config], count: int
    ) -> tuple[Choice, ...]:
        known = Observations.of(history)
        best = history.best.config if history.best is not None else None
        if best is None:
            return self._untested(study, history, known, left, count)
        launches, note = remaining_launches(study, history), ""
        if len(left) <= launches:
            note = f"all {len(left)} untried configurations fit in the {launches} launches left"
        if not note and not self._expects(study, history, known, best):
            return self._spread(study, history, left, known, count)
        options = self._options(study, history, left)
        is_estimated = len(options.prospects.forecasts) > 1
        if is_estimated and options.largest_gain < WORTH * study.measure.margin:
            options = options.without_estimate()
            note = note or "by measured trials alone, as the estimate expects no gain"
        order = self._order(options)[: min(count, MOST_CANDIDATES)]
        return tuple(
            _choice(options.prospects, options.known, best, place + 1, note) for place in order
        )

    def _expects(self, study: Study, history: History, known: Observations, best: Config) -> bool:
        """Whether there is enough to expect anything by: trials, or an estimate."""
        decided = len(known.measured) + len(history.pending)
        return decided >= SPREAD_COUNT or self._is_estimated(study, history, best)

    def _is_estimated(self, study: Study, history: History, config: Config) -> bool:
        """Whether estimates, which are of the step time only, are of the objective too."""
        timed = study.objective.expression.strip() in TIMED and not history.weights
        return timed and self.estimates(config) is not None

    def _options(self, study: Study, history: History, left: Sequence[Config]) -> "_Options":
        """Return what is expected of a pool of untried configurations, and of the best."""
        known = Observations.of(history)
        if history.best is None or history.best.config is None:
            raise ValueError("nothing was measured")
        best = history.best.config
        pool = self._pool(study, history, best, left)
        forecaster = self._forecasters[self._is_estimated(study, history, best)]
        if history.pending:
            sure = np.ones(len(history.pending))
            pending = forecaster.prospects(known, history.pending, sure)
            known = known.with_pending(history.pending, pending.believed.losses)
        chances = self._feasibility.chances(known, [best, *pool])
        prospects = forecaster.prospects(known, [best, *pool], chances)
        learned = learned_constraints(self.space, history, study.revoked)
        doubtful = [any(each.breaks(c) is not None for each in learned) for c in pool]
        return _Options(known, prospects, np.where(doubtful, DOUBTFUL, 1.0))

    def _order(self, options: "_Options") -> Sequence[int]:
        """Return places in the pool by gain; among almost equal ones the nearest to the best."""
        best, *pool = options.prospects.configs
        gains = options.log_gains
        order = np.argsort(-gains, kind="stable").tolist()
        alike = [place for place in order[:POOL] if gains[place] > gains[order[0]] - ALIKE]
        alike.sort(key=lambda place: self.space.distance(best, pool[place]))
        return [*alike, *order[len(alike) :]]

    def _untested(
        self,
        study: Study,
        history: History,
        known: Observations,
        left: Sequence[Config],
        count: int,
    ) -> tuple[Choice, ...]:
        """Take what is sure to run, while nothing is measured: of that the fastest by estimate."""
        chances = self._feasibility.chances(known, left)
        parts = [self.estimates(config) for config in left]
        if None in parts:
            return self._spread(study, history, left, known, count)
        seconds = np.array([sum(each.values()) if each else 1.0 for each in parts])
        risky = chances < SAFE * chances.max()
        order = np.lexsort((seconds, -chances * risky, risky))[:count]
        why = "nothing was measured yet: likely to run, and fast by the estimate"
        return tuple(Choice(config=left[place], why=why) for place in order)

    def _spread(
        self,
        study: Study,
        history: History,
        left: Sequence[Config],
        known: Observations,
        count: int,
    ) -> tuple[Choice, ...]:
        """Order by how seldom settings were tried, among what is likely to run."""
        decided = [*(t.config for t in history if t.config is not None), *history.pending]
        uses = Counter(setting for config in decided for setting in config.values.items())
        chances = self._feasibility.chances(known, left)
        safe = [
            c for c, chance in zip(left, chances, strict=True) if chance >= SAFE * chances.max()
        ]
        draw = Random(f"{study.random_seed}/{len(decided)}")
        draw.shuffle(safe)

        def familiar(config: Config) -> float:
            return -fmean(1 / (1 + uses[setting]) for setting in config.values.items())

        why = "settings that were seldom tried, before there is enough to expect anything by"
        if not known.measured:
            why = "nothing was measured yet: likely to run, and settings that were seldom tried"
        return tuple(Choice(config=each, why=why) for each in sorted(safe, key=familiar)[:count])

    def _pool(
        self, study: Study, history: History, best: Config, left: Sequence[Config]
    ) -> Sequence[Config]:
        """Return all that are left; of very many, a random part and half of it near the best."""
        if len(left) <= POOL:
            return left
        draw = Random(f"{study.random_seed}/{len(history)}")
        apart = (self._distances.between([best], left)[0] > 0).sum(axis=-1)
        near = [left[place] for place in np.flatnonzero(apart <= NEAR_KNOBS).tolist()]
        pool = dict.fromkeys(draw.sample(near, min(len(near), POOL // 2)))
        return [*(pool | dict.fromkeys(draw.sample(left, POOL // 2)))]


@dataclass(frozen=True, slots=True, eq=False)
class _Options:
    """What is expected of the best and of a pool, by what is known, and how far it is trusted."""

    known: Observations
    prospects: Prospects
    trust: Floats

    @property
    def log_gains(self) -> Floats:
        """Logarithms of the improvements that are expected of the pool."""
        return self.prospects.log_gains(0)[1:] + np.log(self.trust)

    @property
    def largest_gain(self) -> float:
        """The largest of them, as a share of the best."""
        return math.expm1(min(math.exp(self.log_gains.max()), 700.0))

    def without_estimate(self) -> "_Options":
        """Return what is expected by measured trials alone."""
        return replace(self, prospects=self.prospects.without_estimate())


def _choice(
    prospects: Prospects, known: Observations, best: Config, place: int, note: str
) -> Choice:
    """Return a configuration with its changes from the best and its expected result."""
    config = prospects.configs[place]
    expected = _expected(prospects, known, place)
    change = f"from the best so far, change {change_words(best, config)}"
    why = "; ".join(filter(None, (change, expected, note)))
    return Choice(config=config, why=why, expected=expected, changes_best=True)


def _expected(prospects: Prospects, known: Observations, place: int) -> str:
    """Return the speedup over the best, with its interval of 95 %, and a chance to run below 1."""
    forecast = prospects.believed
    ahead = float(forecast.losses[0] - forecast.losses[place])
    margin = 2 * float(forecast.deviations[place])
    gain, risk = "", ""
    if known.sign:
        low, high = math.exp(ahead - margin), math.exp(ahead + margin)
        gain = f"expected {math.exp(ahead):.2f}x ({low:.2f} to {high:.2f})"
    chance = float(prospects.chances[place])
    if chance <= SURE:
        risk = f"runs with a chance of {chance:.0%}"
    return ", ".join(filter(None, (gain, risk)))


class RandomChooser(Chooser):
    """Draws uniformly from the untried configurations; the same history gives the same draw."""

    name = "random"

    def choice(self, study: Study, history: History, left: list[Config]) -> Choice:
        """Return a random untried configuration."""
        draw = Random(f"{study.random_seed}/{len(history) + len(history.pending)}")
        why = f"random draw among {len(left)} untried configurations"
        return Choice(config=draw.choice(left), why=why)


class GridChooser(Chooser):
    """Tries every configuration in the order of the space."""

    name = "grid"

    def choice(self, study: Study, history: History, left: list[Config]) -> Choice:  # noqa: ARG002 - the port
        """Return the first untried configuration."""
        return Choice(config=left[0], why=f"the first of {len(left)} untried configurations")


class RankedChooser(Chooser):
    """Tries configurations in the order of the estimate, calibrated on measured trials."""

    name = "ranked"

    def choice(self, study: Study, history: History, left: list[Config]) -> Choice:  # noqa: ARG002 - the port
        """Return the untried configuration with the best estimate."""
        known = Observations.of(history)
        if known.measured:
            losses = Forecaster(Distances(self.space), self.estimates).expected(known, left)
        else:
            each = [self.estimates(config) for config in left]
            losses = np.array([sum(parts.values()) if parts else 0.0 for parts in each])
        why = f"the best estimate among {len(left)} untried configurations"
        return Choice(config=left[int(np.argmin(losses))], why=why)


class CoordinateChooser(Chooser):
    """Moves from the best configuration to the nearest untried one.

    Nearest means: fewest knobs differ, then fewest neighbours that ran out of memory, then the knob
    that was varied longest ago, then the smallest step. Where constraints tie knobs together, a
    move changes two of them.
    """

    name = "coordinate"

    def choice(self, study: Study, history: History, left: list[Config]) -> Choice:  # noqa: ARG002 - the port
        """Return the next move."""
        return self.move(left, history)

    def move(self, left: Sequence[Config], history: History) -> Choice:
        """Return the next move among `left`, which must not be empty."""
        decided = [trial.config for trial in history if trial.config is not None]
        best = history.best.config if history.best is not None else None
        centre = best or (decided[-1] if decided else None)
        if centre is None:
            return Choice(config=left[0], why="first feasible configuration")
        choice = self._nearest(left, centre, history)
        why = f"from the best so far, change {change_words(centre, choice)}"
        return Choice(config=choice, why=why, changes_best=history.best is not None)

    def _nearest(self, left: Sequence[Config], centre: Config, history: History) -> Config:
        last_varied: dict[str, int] = {}
        out_of_memory: list[Config] = []
        for trial in history:
            if trial.config is not None:
                varied = differing_knobs(centre, trial.config)
                last_varied |= dict.fromkeys(varied, trial.ordinal + 1)
                outcome = trial.outcome
                if isinstance(outcome, Failed) and outcome.kind is FailureKind.OUT_OF_MEMORY:
                    out_of_memory.append(trial.config)

        def order(config: Config) -> tuple[int, int, int, int]:
            knob_count, steps = self.space.distance(centre, config)
            risk = sum(self.space.distance(config, bad)[0] <= 1 for bad in out_of_memory)
            ages = (last_varied.get(knob, 0) for knob in differing_knobs(centre, config))
            return knob_count, risk, max(ages, default=0), steps

        return min(left, key=order)
