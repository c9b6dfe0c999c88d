"""The best of earlier studies of a store as first candidates of a new one.

A study counts that searched the same knobs of the same program, on the same kind of machine, for
the same objective, and showed its best to be better than its seed. The most alike work comes first.
"""

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

from evaluator.timing.decision import Verdict
from policies.space import Space
from records.store.rows import StudyRow
from records.store.store import Store
from records.study import EarlierBest, Study
from records.trial import Config, History
from records.workload import Workload
from search.loop.leader import SEED
from search.loop.study_result import final_result

NEWEST = 200
"""Studies that are looked at."""
MOST = 3
FAR = 10.0
"""Distance of texts that differ, as if a number differed a thousandfold."""


def with_earlier(study: Study, store: Store) -> Study:
    """Return the study with first candidates; unchanged where several are optimized together."""
    if study.replay_of is not None or study.more_objectives or study.contexts:
        return study
    found: dict[Config, tuple[float, EarlierBest]] = {}
    for row in store.studies(NEWEST):
        if row.study.origin is not None or _kind(row.study) != _kind(study):
            continue
        best = _best_of(row, study, store)
        if best is not None:
            distance = workload_distance(row.study.workload, study.workload)
            config = Config(best.settings)
            if config not in found or distance < found[config][0]:
                found[config] = distance, best
    nearest = sorted(found.values(), key=lambda each: each[0])[:MOST]
    return replace(study, earlier=tuple(best for _, best in nearest))


def next_earlier(study: Study, history: History, space: Space) -> tuple[Config, EarlierBest] | None:
    """Return the next candidate of an earlier study; None where there is none left.

    There is none after one that failed or was no better than the seed here: what held for other
    work does not hold for this.
    """
    seed = history.find(SEED)
    launched = {trial.config: trial for trial in history if trial.config is not None}
    for best in study.earlier:
        config = space.check(best.settings)
        if not isinstance(config, Config) or config in history.pending:
            continue
        trial = launched.get(config)
        if trial is None:
            return config, best
        if trial.ordinal == SEED or seed is None or seed.score is None:
            continue
        if trial.score is None or history.cost(trial) >= history.cost(seed):
            return None
    return None


def _kind(study: Study) -> tuple[object, ...]:
    """Return what two studies must share for one to teach the other."""
    machine, command = study.environment, study.command
    scripts = sorted(Path(path).name for path in command.file_digests) if command else []
    return (
        study.launch.recipe,
        scripts,
        study.workload.phase,
        study.objective,
        {dimension.name for dimension in study.space.dimensions},
        (machine.device, machine.accelerator, machine.world_size, machine.ranks_per_node),
    )


def _best_of(row: StudyRow, study: Study, store: Store) -> EarlierBest | None:
    """Return the best of a finished study that was shown to be better than its seed."""
    found = final_result(row)
    if found is None or found.winner in (None, SEED) or found.against_seed is None:
        return None
    trial = store.trial(row.id, found.winner)
    ratio = found.against_seed.ratio
    if found.against_seed.verdict is not Verdict.FAST or not ratio or not trial or not trial.config:
        return None
    return EarlierBest(
        study=row.id,
        settings=dict(trial.config.values),
        speedup=1 / ratio,
        differs=", ".join(_differences(row.study.workload, study.workload)),
    )


def workload_distance(one: Workload, other: Workload) -> float:
    """Return how far apart two workloads are: the sum of the binary logarithms of their ratios."""
    total = 0.0
    for name in _SIZES:
        here, there = getattr(one, name), getattr(other, name)
        if here != there:
            is_numbers = all(isinstance(each, int | float) and each > 0 for each in (here, there))
            total += abs(math.log2(here / there)) if is_numbers else FAR
    return total


_SIZES = tuple(
    field.name for field in fields(Workload) if field.name not in {"name", "seed", "text_file"}
)


def _differences(then: Workload, now: Workload) -> Iterator[str]:
    for name in _SIZES:
        here, there = getattr(then, name), getattr(now, name)
        if here != there:
            yield f"{name} {here} not {there}"
