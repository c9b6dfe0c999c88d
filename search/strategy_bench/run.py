"""Run every strategy on every landscape from every seed, in parallel processes."""

import os
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
from records.study import Budget
from records.trial import Config, Failed
from search import settings
from search.compose import MODEL_TURNS
from search.loop.budget import cost_usd
from search.strategies.base import Chooser
from search.strategy_bench.answers import Asker, Model, client_of
from search.strategy_bench.landscape import Ground, Landscape, read_landscape, study_landscape
from search.strategy_bench.simulated import simulate, simulated_study, winners


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The state of a search after one trial and its race.

    `excess` is how much worse than the best the one truly is that a final would announce now, None
    while nothing was measured; `launch_count` is that of all launches so far, those of the
    self-test and of races too, but not of that final.
    """

    config: Config | None
    failed: bool
    excess: float | None
    launch_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """What `cclsearch run` announces within its default budget, and what it took.

    `excess` is how much worse than the best it truly is, None where nothing was measured. `tokens`
    and `usd` are those of a model, None where none was asked or its price is unknown.
    """

    excess: float | None
    trial_count: int
    launch_count: int
    failure_count: int
    stop_reason: str
    tokens: int | None = None
    usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Two searches of one strategy from one random seed.

    The `steps` are those of one that no stop rule ends; `announced` is the result of one with the
    default budget. Both are the same where a model is asked.
    """

    strategy: str
    seed: int
    steps: tuple[Step, ...]
    announced: Announced
    own_s: float
    """Seconds of the longer search itself, without launches."""


def search(
    ground: Ground,
    strategy: str,
    seed: int,
    trial_count: int,
    *,
    start: Config | None = None,
    chooser: Chooser | None = None,
    asked: Model | None = None,
) -> Run:
    """Search from `start`, else the landscape's seed, for `trial_count` trials and by default.

    A `chooser` is not among the strategies of cclsearch. Where a model is `asked`, the search is
    made once, with the default budget.
    """
    study = simulated_study(ground, strategy if chooser is None else OTHER, seed)
    start = start or ground.seed
    began = perf_counter()
    if asked is None:
        whole = replace(study, budget=Budget(trials=trial_count, max_failures=trial_count))
        found = simulate(ground, whole, start, chooser, for_all_trials=True)
        own_s = perf_counter() - began
        ended = simulate(ground, study, start, chooser)
    else:
        asker = Asker(landscape=ground.name, strategy=strategy, seed=seed)
        study = replace(study, llm=asked.llm)
        ended = simulate(ground, study, start, client=client_of(asked, asker))
        found, own_s = ended, perf_counter() - began
    used = [exchange.usage for exchange in ended.exchanges]
    usd = [cost_usd(each, study.llm.model, study.llm) for each in used]
    steps = tuple(
        Step(
            config=trial.config,
            failed=isinstance(trial.outcome, Failed),
            excess=None if winner is None else ground.excess(winner),
            launch_count=launch_count,
        )
        for trial, (winner, launch_count) in zip(
            found.trials, winners(found, study, ground), strict=True
        )
    )
    return Run(
        strategy=strategy,
        seed=seed,
        steps=steps,
        announced=Announced(
            excess=None if ended.winner is None else ground.excess(ended.winner),
            trial_count=len(ended.trials),
            launch_count=ended.launch_count,
            failure_count=sum(isinstance(trial.outcome, Failed) for trial in ended.trials),
            stop_reason=ended.result.stop_reason,
            tokens=sum(each.tokens for each in used) if used else None,
            usd=sum(filter(None, usd)) if used and None not in usd else None,
        ),
        own_s=own_s,
    )


OTHER: Final = "grid"
"""Recorded as the strategy of a search whose chooser is none of cclsearch."""
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
"""Where searches begin: at the landscape's seed, or at a random configuration that runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is the same for all strategies."""

    seeds: tuple[int, ...]
    trial_count: int
    start: Start = "seed"
    others: Mapping[str, type[Chooser]] = field(default_factory=dict)
    """Choosers in addition to the strategies of cclsearch, by name."""
    model: Model = field(default_factory=Model)
    """Asked by the strategies that ask one."""


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
    other = terms.others.get(strategy)
    chooser = other(ground.space, ground.estimate) if other is not None else None
    return tuple(
        search(
            ground,
            strategy,
            seed,
            terms.trial_count,
            start=_start(ground, seed, terms.start),
            chooser=chooser,
            asked=terms.model if strategy in MODEL_TURNS else None,
        )
        for seed in terms.seeds
    )


def _start(ground: Ground, seed: int, start: Start) -> Config:
    if start == "seed":
        return ground.seed
    return Random(f"start/{seed}").choice([*ground.truths])
