"""One search over a landscape: what was tried, who leads after each trial, and what it took."""

import statistics
from collections import defaultdict
from dataclasses import dataclass, field, replace
from time import perf_counter

from records.history import History
from records.study import Study
from records.trial import Config, Failed, Measured, Measurement, MetricValue, Policy, Score, Trial
from search.choosers.chooser import Chooser
from search.search_bench.ground import Ground

RACE_SAMPLES = 2
"""Further launches of the challenger and of the incumbent that a race takes each."""
FINALISTS, FINAL_SAMPLES = 4, 4
"""As many of the best as a search launches again before it announces one, so many times each."""
FIRST_FINAL = 1_000_000
"""Launches of finals are numbered from here: they are none of the search's own."""
WHEN = "2026-01-01T00:00:00.000+00:00"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The state of a search after one trial.

    `excess` is how much worse than the best the one truly is that a search would announce if it
    ended here, None while nothing was measured; `launch_count` is that of all launches so far,
    those of races too, but not those of the final.
    """

    config: Config
    failed: bool
    excess: float | None
    launch_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One search of one strategy from one random seed."""

    strategy: str
    seed: int
    steps: tuple[Step, ...]
    thinking_s: float
    """Seconds of choosing, over all proposals."""


@dataclass(slots=True, kw_only=True)
class _Search:
    """A search under way: the samples of each trial, and the history as choosers see it."""

    ground: Ground
    study: Study
    seed: int
    samples: dict[int, list[float]] = field(default_factory=dict)
    launches: dict[Config, int] = field(default_factory=lambda: defaultdict(int))
    history: History = field(default_factory=History)

    def launch(self, config: Config) -> float | Failed:
        number = self.launches[config]
        self.launches[config] += 1
        return self.ground.launch(config, number, self.seed)

    def try_out(self, config: Config) -> Step:
        ordinal = len(self.history)
        outcome = self.launch(config)
        incumbent = self.history.best
        self.history = self.history.append(trial(self.ground, ordinal, config, outcome))
        if not isinstance(outcome, Failed):
            self.samples[ordinal] = [outcome]
            if incumbent is None:
                self.history = replace(self.history, incumbent=ordinal)
            elif self.cost(ordinal) < self.cost(incumbent.ordinal):
                self.race(ordinal, incumbent.ordinal)
        winner = self.winner()
        return Step(
            config=config,
            failed=isinstance(outcome, Failed),
            excess=None if winner is None else self.ground.excess(winner),
            launch_count=sum(self.launches.values()),
        )

    def race(self, challenger: int, incumbent: int) -> None:
        """Launch both again; the lower mean of all samples leads."""
        for ordinal in (challenger, incumbent):
            config = config_of(self.history.trials[ordinal])
            more = [self.launch(config) for _ in range(RACE_SAMPLES)]
            self.samples[ordinal] += [value for value in more if not isinstance(value, Failed)]
        leads = min(incumbent, challenger, key=self.cost)
        costs = {ordinal: self.cost(ordinal) for ordinal in (challenger, incumbent)}
        self.history = replace(self.history, costs={**self.history.costs, **costs}, incumbent=leads)

    def winner(self) -> Config | None:
        """Who would be announced now: the best of a few, by launches of their own."""
        finalists = [config_of(each) for each in self.history.ranked[:FINALISTS]]
        return min(finalists, key=self.final_cost, default=None)

    def final_cost(self, config: Config) -> float:
        numbers = range(FIRST_FINAL, FIRST_FINAL + FINAL_SAMPLES)
        values = [self.ground.launch(config, number, self.seed) for number in numbers]
        return self.ground.cost(statistics.fmean(v for v in values if not isinstance(v, Failed)))

    def cost(self, ordinal: int) -> float:
        return self.ground.cost(statistics.fmean(self.samples[ordinal]))


def search(
    ground: Ground, chooser: Chooser, seed: int, trial_count: int, start: Config | None = None
) -> Run:
    """Search from `start`, else the landscape's seed, until all is tried or for so many trials."""
    study = replace(
        ground.study, random_seed=seed, budget=replace(ground.study.budget, trials=trial_count)
    )
    state = _Search(ground=ground, study=study, seed=seed)
    steps = [state.try_out(start or ground.seed)]
    thinking_s = 0.0
    while len(steps) < trial_count:
        began = perf_counter()
        choice = chooser.choose(study, state.history)
        thinking_s += perf_counter() - began
        if choice is None:
            break
        if choice.config in state.launches or choice.config not in ground.space.recorded:
            raise ValueError(f"{chooser.name} chose {choice.config}, which it may not")
        steps.append(state.try_out(choice.config))
    return Run(strategy=chooser.name, seed=seed, steps=tuple(steps), thinking_s=thinking_s)


def trial(ground: Ground, ordinal: int, config: Config, outcome: float | Failed) -> Trial:
    """A trial as choosers see it: of a measured one the objective is known, and no breakdown."""
    score = None
    if not isinstance(outcome, Failed):
        unit = ground.landscape.unit
        score = Score(cost=ground.cost(outcome), value=outcome, unit=unit)
    return Trial(
        ordinal=ordinal,
        policy=Policy(source="", author="benchmark"),
        config=config,
        outcome=outcome if isinstance(outcome, Failed) else _measured(ground, outcome),
        score=score,
        started_at=WHEN,
        ended_at=WHEN,
    )


def config_of(trial: Trial) -> Config:
    """The configuration of a trial, which all trials on a landscape have."""
    if trial.config is None:
        raise ValueError(f"trial {trial.ordinal} has no configuration")
    return trial.config


def _measured(ground: Ground, value: float) -> Measured:
    objective = ground.landscape.objective
    in_seconds = ground.landscape.unit == "s"
    return Measured(
        measurement=Measurement(
            step_times_s=((value,),) if in_seconds else (),
            warmup_times_s=(),
            losses=(),
            tokens_per_step=ground.landscape.workload.tokens_per_step,
            peak_memory_bytes=(),
            wall_s=0.0,
            device=ground.landscape.environment.device,
            torch_version=None,
        ),
        metrics=(
            MetricValue(
                name=objective.expression,
                value=value,
                unit=ground.landscape.unit,
                better="lower" if ground.lower_is_better else "higher",
                version=1,
            ),
        ),
        breakdown=None,
    )
