"""Runs every strategy on every landscape from every seed, over processes, on equal terms."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from random import Random
from typing import Literal, TypeAlias

from records.trial import Config
from search.choosers.catalog import chooser_named
from search.compose import MODEL_TURNS
from search.search_bench.asking import Asking
from search.search_bench.ground import Ground
from search.search_bench.landscape import Landscape
from search.search_bench.race import Run, search

SEEDS_A_TASK = 5
TASKS_A_PROCESS = 4
"""Fewer are not worth the seconds that a process takes to begin."""
Done: TypeAlias = Callable[[str, str, int, int], None]
"""Is told a landscape and a strategy, and how many of all tasks are done."""
Start: TypeAlias = Literal["seed", "random"]
"""Where searches begin: at the landscape's seed, or at a point that the random seed draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is the same for all strategies."""

    seeds: tuple[int, ...]
    trial_count: int
    start: Start = "seed"
    asking: Asking | None = None
    """How a model is asked, for strategies that ask one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    landscape: Landscape
    strategy: str
    terms: Terms


def runs_of(
    landscapes: Sequence[Landscape],
    strategies: Sequence[str],
    terms: Terms,
    *,
    done: Done = lambda *_: None,
    process_count: int | None = None,
) -> Mapping[str, Mapping[str, tuple[Run, ...]]]:
    """Every run by landscape and strategy, in the order of the seeds."""
    tasks = list(_tasks(landscapes, strategies, terms))
    found: dict[tuple[str, str], list[Run]] = {}
    for count, (task, runs) in enumerate(_ended(tasks, process_count), start=1):
        found.setdefault((task.landscape.name, task.strategy), []).extend(runs)
        done(task.landscape.name, task.strategy, count, len(tasks))
    return {
        each.name: {
            strategy: tuple(sorted(found[each.name, strategy], key=lambda run: run.seed))
            for strategy in strategies
        }
        for each in landscapes
    }


def searched(landscape: Landscape, strategy: str, terms: Terms) -> tuple[Run, ...]:
    """One run of a strategy on a landscape from each seed."""
    ground = Ground(landscape)
    chooser = (
        terms.asking.chooser(strategy, ground)
        if terms.asking is not None and strategy in MODEL_TURNS
        else chooser_named(strategy, ground.space, ground.estimate)
    )
    return tuple(
        search(ground, chooser, seed, terms.trial_count, _start(ground, seed, terms.start))
        for seed in terms.seeds
    )


def _start(ground: Ground, seed: int, start: Start) -> Config:
    if start == "seed":
        return ground.seed
    return Random(f"start/{seed}").choice(ground.space.feasible)


def _tasks(
    landscapes: Sequence[Landscape], strategies: Sequence[str], terms: Terms
) -> Iterator[_Task]:
    for landscape in landscapes:
        for strategy in strategies:
            for first in range(0, len(terms.seeds), SEEDS_A_TASK):
                seeds = terms.seeds[first : first + SEEDS_A_TASK]
                some = replace(terms, seeds=seeds)
                yield _Task(landscape=landscape, strategy=strategy, terms=some)


def _ended(
    tasks: Sequence[_Task], process_count: int | None
) -> Iterator[tuple[_Task, tuple[Run, ...]]]:
    """Each task with its runs, in the order in which they end."""
    count = min(process_count or os.cpu_count() or 1, len(tasks) // TASKS_A_PROCESS)
    if count <= 1:
        yield from ((task, _work(task)) for task in tasks)
        return
    # Spawned: a process that was forked beside the thread of a progress bar may hang.
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        tasks_of = {pool.submit(_work, task): task for task in tasks}
        for future in as_completed(tasks_of):
            yield tasks_of[future], future.result()


def _work(task: _Task) -> tuple[Run, ...]:
    return searched(task.landscape, task.strategy, task.terms)
