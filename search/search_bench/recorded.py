"""Landscapes out of recorded searches of others, read where they lie and kept nowhere.

What was served from a cache, failed by its surroundings, or may be another configuration's result
is left out, and so are knobs that did nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from evaluator.recipes.catalog import recipe_of
from policies.space import Space
from records.codec import from_document
from records.models import known_model
from records.study import (
    Command,
    Constraint,
    Dimension,
    Environment,
    Launch,
    Link,
    SearchSpace,
    Value,
)
from records.trial import Config, FailureKind
from records.workload import Workload
from search.importing.files import BadRows, json_rows
from search.importing.search_rows import SearchRow
from search.search_bench.ground import estimated, rounded, study_of
from search.search_bench.landscape import Entry, Fault, Landscape
from search.search_bench.recorded_sources import (
    RANKS,
    SOURCES,
    STEP_TIME,
    Simulation,
    Source,
)

TRIALS: Final = ("ccl_search_histories.jsonl", "ccl_search_card_trials.jsonl")
SIMULATIONS: Final = "astra_sim_llama8b_landscape.jsonl"
LEAST_MEASURED: Final = 15
"""Simulated workloads of which less is known are no landscape."""
DEAD_KNOB: Final = "activation_checkpointing"
SURROUNDINGS: Final = ("infra", "policy")
OUT_OF_MEMORY: Final = ("oom", "oom_likely")
HEAD: Final = "HEAD"
"""The simulation that contradicts an earlier one of the same configuration."""
A100: Final = Environment(
    name="recorded",
    device="cuda",
    accelerator="NVIDIA A100-SXM4-40GB",
    world_size=16,
    ranks_per_node=4,
    memory_bytes=40 * 2**30,
    scale_up=Link(bandwidth_bytes_per_s=300e9),
    scale_out=Link(bandwidth_bytes_per_s=25e9),
)
SCRIPT: Final = Command(run=("recorded",), rank_count=RANKS)
"""Whoever ran these ran a script, which is not here."""
Row = TypeVar("Row", SearchRow, Simulation)


def recorded(folder: Path) -> tuple[Landscape, ...]:
    """Every landscape of a folder; raises `StudyError` where it has not the files."""
    trials = [each for name in TRIALS for each in _rows(folder / name, SearchRow)]
    searches = (_of_trials(source, trials) for source in SOURCES)
    return (*searches, *_of_simulations(_rows(folder / SIMULATIONS, Simulation)))


def _rows(path: Path, kind: type[Row]) -> Sequence[Row]:
    return [row for _, _, row in json_rows(path, kind, BadRows())]


def _of_trials(source: Source, trials: Iterable[SearchRow]) -> Landscape:
    workload = _workload(source.name, source.batch, source.model)
    results: dict[Config, list[float | Fault]] = defaultdict(list)
    for trial in trials:
        if source.takes(trial) and not trial.served_from_cache:
            result = _result(trial, source.value(trial))
            if result is not None:
                results[_live(trial)].append(result)
    entries = [_entry(config, found) for config, found in results.items()]
    space = _space(entries, source.rules)
    bound = Space(space, workload, A100)
    valid = [entry for entry in entries if isinstance(bound.check(entry.config), Config)]
    landscape = Landscape(
        version=1,
        name=source.name,
        about=source.about,
        objective=source.objective,
        unit=source.unit,
        workload=workload,
        environment=A100,
        launch=Launch(recipe="command"),
        command=SCRIPT,
        space=_space(valid, source.rules),
        seed=source.seed,
        entries=tuple(valid),
    )
    return _estimated(landscape, source)


def _estimated(landscape: Landscape, source: Source) -> Landscape:
    """With estimates for equal work: of another batch they are scaled to the landscape's."""
    return replace(
        landscape,
        entries=tuple(
            replace(entry, estimate=_of_equal_work(landscape, source, Config(entry.config)))
            for entry in landscape.entries
        ),
    )


def _of_equal_work(
    landscape: Landscape, source: Source, config: Config
) -> Mapping[str, float] | None:
    batch = source.real_batch(config)
    study = study_of(replace(landscape, workload=replace(landscape.workload, global_batch=batch)))
    parts = recipe_of(study).estimate(study, config)
    if parts is None:
        return None
    return rounded({part: seconds * source.batch / batch for part, seconds in parts.items()})


def _of_simulations(rows: Iterable[Simulation]) -> Iterator[Landscape]:
    by_work: dict[tuple[int, int], list[Entry]] = defaultdict(list)
    for row in rows:
        entry = _simulated(row)
        if entry is not None:
            by_work[row.workload.batch_size or 1, row.workload.seq_len].append(entry)
    for (batch, length), entries in by_work.items():
        if sum(bool(entry.samples) for entry in entries) >= LEAST_MEASURED:
            yield _of_simulation(batch, length, entries)


def _of_simulation(batch: int, length: int, entries: Sequence[Entry]) -> Landscape:
    name = f"astra-sim-llama-8b-{batch}x{length}"
    workload = replace(_workload(name, batch, "llama-3.1-8b"), sequence_length=length)
    measured = sorted((e for e in entries if e.samples), key=lambda e: e.samples[0])
    landscape = Landscape(
        version=1,
        name=name,
        about=f"Recorded simulations of Llama-8B, {batch} sequences of {length}, in cycles.",
        objective=STEP_TIME,
        unit="cycles",
        workload=workload,
        environment=replace(A100, world_size=128),
        launch=Launch(recipe="command"),
        command=SCRIPT,
        space=_space(entries, (Constraint(name="ranks", expression=f"{RANKS} <= world_size"),)),
        seed=measured[-1].config,
        entries=tuple(entries),
    )
    return estimated(landscape)


def _result(trial: SearchRow, value: float | None) -> float | Fault | None:
    """What a launch says of its configuration; None where it was not its doing."""
    if trial.status == "success":
        return value
    causes = (trial.error_class or "", trial.inferred_cause or "")
    if any(cause.startswith(SURROUNDINGS) for cause in causes):
        return None
    exhausted = trial.inferred_cause in OUT_OF_MEMORY
    return Fault(
        kind=FailureKind.OUT_OF_MEMORY if exhausted else FailureKind.CRASH,
        message=trial.inferred_why or "it crashed",
    )


def _simulated(row: Simulation) -> Entry | None:
    if row.snapshot == HEAD or row.stale_suspect is not None:
        return None
    if row.status == "success" and row.wall_time_cycles:
        return Entry(config=row.config, samples=(row.wall_time_cycles,))
    if row.error_class == "oom":
        fault = Fault(kind=FailureKind.OUT_OF_MEMORY, message="out of memory in the simulation")
        return Entry(config=row.config, failure=fault)
    return None


def _live(trial: SearchRow) -> Config:
    """The configuration without the knob that did nothing."""
    dead = () if trial.activation_checkpointing_effective else (DEAD_KNOB,)
    return Config({knob: value for knob, value in trial.config.items() if knob not in dead})


def _entry(config: Config, results: Sequence[float | Fault]) -> Entry:
    samples = tuple(result for result in results if not isinstance(result, Fault))
    faults = [result for result in results if isinstance(result, Fault)]
    if len(faults) > len(samples):
        return Entry(config=config.values, failure=faults[0])
    return Entry(config=config.values, samples=samples)


def _space(entries: Sequence[Entry], rules: tuple[Constraint, ...]) -> SearchSpace:
    choices: dict[str, set[Value]] = defaultdict(set)
    for entry in entries:
        for knob, value in entry.config.items():
            choices[knob].add(value)
    return SearchSpace(
        dimensions=tuple(
            Dimension(name=knob, choices=tuple(sorted(values, key=_rank)))
            for knob, values in choices.items()
        ),
        constraints=rules,
    )


def _rank(value: Value) -> tuple[bool, float | str]:
    return isinstance(value, str), value


def _workload(name: str, batch: int, model: str) -> Workload:
    fixed = {"name": name, "global_batch": batch, "sequence_length": 1024, "precision": "bf16"}
    return from_document(Workload, {**known_model(model).sizes, **fixed, "model": model})
