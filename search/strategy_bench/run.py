"""Run every strategy on every landscape from every seed, in parallel processes."""

import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Final, Literal, TypeAlias

from records.errors import StudyError
from records.study import Study
from records.trial import (
    Config,
    Failed,
    History,
    Measured,
    Measurement,
    MetricValue,
    Policy,
    Score,
    Trial,
)
from search import settings
from search.loop.races import config_of
from search.strategies.base import Choice
from search.strategies.catalog import chooser_named
from search.strategy_bench.landscape import Ground, Landscape, read_landscape, study_landscape

RACE_SAMPLES = 2
"""Further launches of the challenger and of the incumbent that a race takes each."""
FINALISTS, FINAL_SAMPLES = 4, 4
"""Configurations that a search repeats before it announces the best, and launches of each."""
FIRST_FINAL = 1_000_000
"""Launches of finals are numbered from here: they do not count as the search's."""
Choose: TypeAlias = Callable[[Study, History], Choice | None]
"""Returns the next configuration of a search; None when everything was tried."""
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
        """What would be announced now: the best of a few, by separate launches."""
        finalists = [config_of(each) for each in self.history.ranked[:FINALISTS]]
        return min(finalists, key=self.final_cost, default=None)

    def final_cost(self, config: Config) -> float:
        numbers = range(FIRST_FINAL, FIRST_FINAL + FINAL_SAMPLES)
        values = [self.ground.launch(config, number, self.seed) for number in numbers]
        return self.ground.cost(statistics.fmean(v for v in values if not isinstance(v, Failed)))

    def cost(self, ordinal: int) -> float:
        return self.ground.cost(statistics.fmean(self.samples[ordinal]))


def search(
    ground: Ground,
    strategy: str,
    choose: Choose,
    seed: int,
    trial_count: int,
    start: Config | None = None,
) -> Run:
    """Search from `start`, else the landscape's seed, until all or `trial_count` are tried."""
    study = replace(
        ground.study, random_seed=seed, budget=replace(ground.study.budget, trials=trial_count)
    )
    state = _Search(ground=ground, study=study, seed=seed)
    steps = [state.try_out(start or ground.seed)]
    thinking_s = 0.0
    while len(steps) < trial_count:
        began = perf_counter()
        choice = choose(study, state.history)
        thinking_s += perf_counter() - began
        if choice is None:
            break
        if choice.config in state.launches or choice.config not in ground.space.recorded:
            raise ValueError(f"{strategy} chose {choice.config}, which it may not")
        steps.append(state.try_out(choice.config))
    return Run(strategy=strategy, seed=seed, steps=tuple(steps), thinking_s=thinking_s)


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


STORED: Final = "study:"
MEASURED: Final = ("builtin-cpu", "mpi-all-reduce")
"""The landscapes that come with cclsearch."""


def landscapes_of(
    asked: Sequence[str],
    store: Path | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> tuple[Landscape, ...]:
    """The landscapes of these names; raises `StudyError` for one that is missing or named twice.

    A name of `MEASURED` is one that comes with cclsearch, `study:ID` is a study of the store,
    anything else is a file. `report` receives what is left out.
    """
    found = [_landscape(words, store, report) for words in asked]
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise StudyError(f"landscape {name!r} is asked for twice; name it once")
    return tuple(found)


def _landscape(words: str, store: Path | None, report: Callable[[str], None]) -> Landscape:
    if words.startswith(STORED):
        with settings.open_store(store) as records:
            found = study_landscape(records.find(words.removeprefix(STORED)), records)
        if found.words is not None:
            report(found.words)
        return found.landscape
    measured = Path(__file__).with_name("measured") / f"{words}.json"
    return read_landscape(measured if words in MEASURED else Path(words))


SEEDS_A_TASK = 5
TASKS_A_PROCESS = 4
"""Fewer are not worth the seconds that a process takes to begin."""
Done: TypeAlias = Callable[[str, str, int, int], None]
"""Receives a landscape and a strategy, and how many of all tasks are done."""
Start: TypeAlias = Literal["seed", "random"]
"""Where searches begin: at the landscape's seed, or at a point that the random seed draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is the same for all strategies."""

    seeds: tuple[int, ...]
    trial_count: int
    start: Start = "seed"


def run_all(
    landscapes: Sequence[Landscape],
    strategies: Sequence[str],
    terms: Terms,
    *,
    done: Done = lambda *_: None,
    process_count: int | None = None,
) -> Mapping[str, Mapping[str, tuple[Run, ...]]]:
    """Every run by landscape and strategy, in the order of the seeds."""
    tasks = [
        (landscape, strategy, replace(terms, seeds=terms.seeds[first : first + SEEDS_A_TASK]))
        for landscape in landscapes
        for strategy in strategies
        for first in range(0, len(terms.seeds), SEEDS_A_TASK)
    ]
    found: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for count, (landscape, strategy, runs) in enumerate(_ended(tasks, process_count), start=1):
        found[landscape, strategy] += runs
        done(landscape, strategy, count, len(tasks))
    return {
        each.name: {
            strategy: tuple(sorted(found[each.name, strategy], key=lambda run: run.seed))
            for strategy in strategies
        }
        for each in landscapes
    }


def _ended(
    tasks: Sequence[tuple[Landscape, str, Terms]], process_count: int | None
) -> Iterator[tuple[str, str, tuple[Run, ...]]]:
    """Landscape, strategy and runs of each task, in the order in which they end."""
    count = min(process_count or os.cpu_count() or 1, len(tasks) // TASKS_A_PROCESS)
    if count <= 1:
        yield from ((task[0].name, task[1], run_searches(*task)) for task in tasks)
        return
    # Spawned: a process that was forked while the thread of a progress bar runs may hang.
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        tasks_of = {pool.submit(run_searches, *task): task for task in tasks}
        for future in as_completed(tasks_of):
            landscape, strategy, _ = tasks_of[future]
            yield landscape.name, strategy, future.result()


def run_searches(landscape: Landscape, strategy: str, terms: Terms) -> tuple[Run, ...]:
    """One run of a strategy on a landscape from each seed."""
    ground = Ground(landscape)
    choose = chooser_named(strategy, ground.space, ground.estimate).choose
    return tuple(
        search(ground, strategy, choose, seed, terms.trial_count, _start(ground, seed, terms.start))
        for seed in terms.seeds
    )


def _start(ground: Ground, seed: int, start: Start) -> Config:
    if start == "seed":
        return ground.seed
    return Random(f"start/{seed}").choice(ground.space.feasible)
