"""Landscapes from searches and simulations that others recorded, as JSON lines in a folder.

Left out are results that came from a cache, failed for reasons of the infrastructure or may belong
to another configuration, and knobs without an effect.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from recorded_searches import DEAD_KNOB, LOOSE, RecordedWork, SearchRow, rows_of

from evaluator.recipes.catalog import recipe_of
from policies.space import Space
from records.codec import from_document
from records.study import (
    Command,
    Constraint,
    Dimension,
    Environment,
    Launch,
    Link,
    Objective,
    SearchSpace,
    Study,
    Value,
)
from records.trial import Config, FailureKind
from records.workload import Workload, known_model
from search.strategy_bench.landscape import (
    Entry,
    Fault,
    Landscape,
    Result,
    entry_of,
    study_of,
    with_estimates,
    without,
)

BEST_TITAN_SCRIPT: Final = "20260429_093910_titan_best"
"""Earlier TorchTitan searches ran another script: their times are not comparable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """One line of the simulated landscape."""

    __pydantic_config__ = LOOSE

    workload: RecordedWork
    snapshot: str
    config: Mapping[str, Value]
    status: str
    error_class: str | None
    wall_time_cycles: float | None
    stale_suspect: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """How one landscape is taken from the recorded trials."""

    name: str
    about: str
    objective: Objective
    unit: str
    batch: int
    model: str
    seed: Mapping[str, Value]
    rules: tuple[Constraint, ...]
    takes: Callable[[SearchRow], bool]
    value: Callable[[SearchRow], float | None]
    real_batch: Callable[[Config], int]
    """Sequences of a step of a configuration, of which `batch` is the equal work."""


STEP_TIME: Final = Objective(expression="step_time", direction="minimize")
RANKS: Final = "tp * dp * pp"
ALL_RANKS: Final = Constraint(name="ranks", expression=f"{RANKS} == world_size")
SOURCES: Final = (
    Source(
        name="ccl-megatron-llama-8b",
        about="Recorded launches of Llama-3.1-8B in Megatron on 16 A100. The batch of a step is "
        "dp * micro_batch_size, so tokens per second are compared.",
        objective=Objective(expression="tokens_per_s", direction="maximize"),
        unit="tokens/s",
        batch=16,
        model="llama-3.1-8b",
        seed={"tp": 4, "dp": 4, "pp": 1, "micro_batch_size": 2},
        rules=(ALL_RANKS,),
        takes=lambda trial: (
            trial.framework == "megatron-lm"
            and trial.workload.model == "llama-3.1-8b"
            and trial.gpus_used == 16
        ),
        value=lambda trial: trial.tokens_per_second,
        real_batch=lambda config: int(config["dp"]) * int(config["micro_batch_size"]),
    ),
    Source(
        name="ccl-megatron-deepseek-v2-lite",
        about="Recorded launches of DeepSeek-V2-Lite in Megatron on up to 16 A100.",
        objective=STEP_TIME,
        unit="s",
        batch=8,
        model="deepseek-v2-lite",
        seed={
            "tp": 4,
            "dp": 4,
            "pp": 1,
            "ep": 4,
            "micro_batch_size": 1,
            "activation_checkpointing": True,
        },
        rules=(
            Constraint(name="ranks", expression=f"{RANKS} <= world_size"),
            Constraint(name="experts", expression="dp % ep == 0"),
            Constraint(name="batch", expression="global_batch % (dp * micro_batch_size) == 0"),
        ),
        takes=lambda trial: trial.workload.model == "deepseek-v2-lite",
        value=lambda trial: trial.step_seconds,
        real_batch=lambda _: 8,
    ),
    Source(
        name="ccl-torchtitan-llama-8b",
        about="Recorded launches of Llama-3.1-8B in TorchTitan on 16 A100, of one script.",
        objective=STEP_TIME,
        unit="s",
        batch=32,
        model="llama-3.1-8b",
        seed={"tp": 4, "dp": 4, "pp": 1, "micro_batch_size": 4},
        rules=(ALL_RANKS,),
        takes=lambda trial: (
            trial.search_id == BEST_TITAN_SCRIPT and "micro_batch_size" in trial.config
        ),
        value=lambda trial: trial.step_seconds,
        real_batch=lambda _: 32,
    ),
)


TRIALS: Final = ("ccl_search_histories.jsonl", "ccl_search_card_trials.jsonl")
SIMULATIONS: Final = "astra_sim_llama8b_landscape.jsonl"
LEAST_MEASURED: Final = 15
"""Simulated workloads of which less is known are no landscape."""
SURROUNDINGS: Final = ("infra", "policy")
OUT_OF_MEMORY: Final = ("oom", "oom_likely")
HEAD: Final = "HEAD"
"""The simulation that contradicts an earlier one of the same configuration."""
A100: Final = Environment(
    name="recorded_landscapes",
    device="cuda",
    accelerator="NVIDIA A100-SXM4-40GB",
    world_size=16,
    ranks_per_node=4,
    memory_bytes=40 * 2**30,
    scale_up=Link(bandwidth_bytes_per_s=300e9),
    scale_out=Link(bandwidth_bytes_per_s=25e9),
)
SCRIPT: Final = Command(run=("recorded_landscapes",), rank_count=RANKS)
"""The searches ran a script, which is not here."""


def recorded_landscapes(folder: Path) -> tuple[Landscape, ...]:
    """Every landscape of a folder; raises `StudyError` where it lacks the files."""
    trials = [each for name in TRIALS for each in rows_of(folder / name, SearchRow)]
    searches = (_of_trials(source, trials) for source in SOURCES)
    return (*searches, *_of_simulations(rows_of(folder / SIMULATIONS, Simulation)))


def _of_trials(source: Source, trials: Iterable[SearchRow]) -> Landscape:
    workload = _workload(source.name, source.batch, source.model)
    results: dict[Config, list[Result]] = defaultdict(list)
    for trial in trials:
        if source.takes(trial) and not trial.served_from_cache:
            result = _result(trial, source.value(trial))
            if result is not None:
                dead = () if trial.activation_checkpointing_effective else (DEAD_KNOB,)
                results[without(Config(trial.config), dead)].append(result)
    entries = [entry_of(config, found) for config, found in results.items()]
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
    return with_estimates_of_equal_work(landscape, source.real_batch)


def with_estimates_of_equal_work(
    landscape: Landscape, batch_of: Callable[[Config], int]
) -> Landscape:
    """The landscape with estimates for the sequences of a real step, scaled to its own batch."""
    own = landscape.workload.global_batch

    @cache
    def study_at(batch: int) -> Study:
        workload = replace(landscape.workload, global_batch=batch)
        return study_of(replace(landscape, workload=workload))

    def estimate(config: Config) -> Mapping[str, float] | None:
        batch = batch_of(config)
        study = study_at(batch)
        parts = recipe_of(study).estimate(study, config) or {}
        return {part: float(f"{s * own / batch:.4g}") for part, s in parts.items()} or None

    entries = (replace(each, estimate=estimate(Config(each.config))) for each in landscape.entries)
    return replace(landscape, entries=tuple(entries))


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
    return with_estimates(landscape)


def _result(trial: SearchRow, value: float | None) -> Result | None:
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
