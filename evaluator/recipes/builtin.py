"""The built-in trainer as a recipe: a configuration becomes its job file.

Its knobs and rules are in `builtin.toml`. Rules about validity also hold for every configuration
that becomes a job. Those about the study (use of ranks, memory, nodes) only bind the search.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, asdict, fields, replace
from enum import StrEnum
from functools import cache, partial
from math import isqrt
from typing import get_type_hints

import msgspec

from evaluator.estimate.memory import PARTS, MemoryEstimate, estimate_memory
from evaluator.estimate.step_time import estimate_step
from evaluator.job_python import check_torch, torch_release
from evaluator.machine import check_local, torchrun_command
from evaluator.metrics.registry import ALIASES
from evaluator.ports import Job, JobResult, Reading
from evaluator.rank.job import (
    FOLDED,
    LOOPED_STAGES,
    ComputePrecision,
    DeviceKind,
    JobError,
    Schedule,
)
from evaluator.rank.job import Config as RankConfig
from evaluator.rank.job import Job as RankJob
from evaluator.rank.job import Workload as RankWorkload
from evaluator.rank.job import parse as parse_job
from evaluator.rank.protocol import JOB_FILE
from evaluator.recipes.knobs import (
    Knob,
    KnobTable,
    Rules,
    new_rule,
    new_rules,
    rank_device,
    rank_program,
    rank_python,
    read_table,
)
from evaluator.samples import rank_measure, read_ranks
from records.errors import StudyError
from records.expression import Rule, parse
from records.study import Study, Value
from records.trial import Config, Failed
from records.workload import Workload

ENTRIES = {
    "training": ("evaluator.workloads.training", "train"),
    "inference": ("evaluator.workloads.inference", "serve"),
}
DEGREES = ("dp_replicate", "dp_shard", "tp", "cp", "pp", "ep")
LOOPED = (Schedule.INTERLEAVED, Schedule.LOOPED_BFS, Schedule.INTERLEAVED_ZERO_BUBBLE)
FOLDED_STAGES = 2
ROTARY_PAIR = 2
COST_WORDS = ("rank_count", "rank_seconds", "device_seconds", "per_rank", "per_device", "cost_per")
FITS = {
    "cpu": "estimated_memory_bytes <= memory_bytes",
    "cuda": "estimated_memory_bytes <= 1.3 * memory_bytes",
}
"""What may fit. On CPU ranks nothing that was estimated above the memory ever ran
(`benchmarks/landscape.py`); elsewhere the estimate must exceed it by more before it is believed: a
configuration that is refused wrongly is never found, one that runs out of memory costs seconds."""
STAGES_FIT = "(1.7 if pp > 1 else 1) * estimated_memory_bytes <= memory_bytes"
"""What may fit on CPU ranks of torch before 2.9, whose stages take about so much more (measured
with 2.6: 31 and 44 MiB where 18 and 27 were estimated)."""
COMPILER_MODULES = ("torch._dynamo", "torch._inductor.compile_fx")
"""What takes seconds to import, and would be imported by every rank of a trial that compiles."""


class BuiltinRecipe:
    """Trains a Llama-style decoder with torch's own parallelism, or answers requests with it."""

    def complete(self, study: Study) -> Study:
        """Give every knob its condition and description, and add defaults and rules.

        Raises `StudyError` for a workload or a knob that the recipe does not know.
        """
        rank_device(study.environment)
        rank_workload(study.workload)
        ranks = ranks_rule(study).constraint
        given = {constraint.name: constraint for constraint in study.space.constraints}
        # Where all ranks are used, or fewer, there are not more of them.
        implied = ("world",) if given.get(ranks.name, ranks) == ranks else ()
        wishes = tuple(_search_rules(study))
        return replace(
            study, space=knobs(study).complete(rules(study), wishes=wishes, implied=implied)
        )

    def derived(self, study: Study) -> Mapping[str, Callable[[Mapping[str, Value]], Value]]:
        """Return the estimate of memory, of the rank that needs most, and its parts."""
        work, device = rank_workload(study.workload), rank_device(study.environment)
        unset = defaults(study)

        def estimate(settings: Mapping[str, Value]) -> MemoryEstimate:
            return estimate_memory(work, rank_config({**unset, **settings}), device)

        def size(part: str, settings: Mapping[str, Value]) -> int:
            return estimate(settings).parts[part]

        parts = {f"estimated_{part}_bytes": partial(size, part) for part in PARTS}
        return {"estimated_memory_bytes": lambda each: estimate(each).total_bytes, **parts}

    def estimate(self, study: Study, config: Config) -> Mapping[str, float] | None:
        """Return the seconds of a step of one configuration, by what takes them."""
        asked = rank_config({**defaults(study), **config.values})
        return estimate_step(rank_workload(study.workload), asked, study.environment)

    def check(self, study: Study) -> None:
        """Raise `EnvironmentFault` when this machine is to hold the ranks, and cannot."""
        if study.is_local:
            check_local(study.environment)
            check_torch(rank_python(study))

    def inherited(self, study: Study, ours: Mapping[str, str]) -> Mapping[str, str]:  # noqa: ARG002 - the port
        """Show ranks, which are ours, all of it."""
        return ours

    def job(self, study: Study, config: Config) -> Job:
        """Return the job of one configuration; knobs that it leaves out take their defaults.

        Raises `StudyError` when the configuration breaks a rule of the recipe.
        """
        work = rank_workload(study.workload)
        module, function = ENTRIES[study.workload.phase]
        asked = rank_config(knobs(study).settings(config, rules(study)))
        job = RankJob(
            entry=f"{module}:{function}",
            world_size=asked.world_size,
            device=rank_device(study.environment),
            init_method="env://",
            workload=work,
            config=asked,
            measure=rank_measure(study.measure),
            memory_budget_bytes=study.launch.memory_budget_bytes,
        )
        imported = (module, *(COMPILER_MODULES if asked.compile else ()))
        return Job(
            argv=torchrun_command(
                job.world_size, rank_program(study), study.node_count(job.world_size)
            ),
            world_size=job.world_size,
            files={JOB_FILE: json.dumps(asdict(job), indent=1)},
            modules=imported if study.launch.start == "warm" else (),
            python=rank_python(study),
            timeout_s=study.measure.timeout_s,
            hang_after_s=study.measure.hang_after_s,
            traces=("rank*_trace.json",),
            maps_freely=job.device is DeviceKind.CUDA,
            threads_per_rank=asked.threads_per_rank,
        )

    def read(
        self,
        study: Study,
        job: Job,
        result: JobResult,
        launched_ns: int,  # noqa: ARG002 - the port
    ) -> Reading | Failed:
        """Read the samples of all ranks, and their traces if steps were to be profiled."""
        reading = read_ranks(result, study, study.measure.profiled_steps)
        if isinstance(reading, Failed):
            return reading
        asked = parse_job(RankJob, job.files[JOB_FILE]).config.compute_precision
        if asked is ComputePrecision.PARAMETER:
            return reading
        measurement = replace(reading.measurement, compute_precision=asked.value)
        return replace(reading, measurement=measurement)


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `builtin.toml` holds: knobs, groups of rules, and rules about torch before a version."""

    knobs: dict[str, Knob]
    rules: dict[str, Rules]
    before: dict[str, Rules]


_FIELDS = {field.name: field for field in fields(RankConfig)}
_KINDS: Mapping[str, type] = get_type_hints(RankConfig)
_DEFAULTS: Mapping[str, Value] = {
    **{name: str(v) if isinstance(v, StrEnum) else v for name, v in asdict(RankConfig()).items()},
    # Only schedules with several stages ask; the others have what `rank_config` gives them.
    "stages_per_rank": LOOPED_STAGES,
}


def knobs(study: Study) -> KnobTable:
    """Return the knobs, with every choice that could make sense in this study."""
    rows, values = _table().knobs, defaults(study)
    degrees = _divisors(study.environment.world_size)
    choices = dict.fromkeys(DEGREES, degrees)
    choices["micro_batch"] = _divisors(study.workload.global_batch)
    serving = study.workload.phase == "inference"
    found = {}
    for name, row in rows.items():
        default = values[name]
        knob = msgspec.structs.replace(
            row,
            default=default,
            choices=row.choices or choices.get(name, ()),
            when="phase == 'training'" if serving and not row.serves else row.when,
        )
        kind = _KINDS[name]
        if issubclass(kind, StrEnum):
            members = tuple(member.value for member in kind)
            knob = msgspec.structs.replace(knob, choices=members, more=members)
        elif isinstance(default, bool):
            knob = msgspec.structs.replace(knob, choices=(default, not default))
        else:
            knob = msgspec.structs.replace(knob, least=_FIELDS[name].metadata.get("least", 1))
        found[name] = knob.for_device(study.environment.device)
    return KnobTable(study, found)


def defaults(study: Study) -> Mapping[str, Value]:
    """What every knob is where a configuration leaves it out."""
    return {**_DEFAULTS, "threads_per_rank": study.launch.threads_per_rank}


def rank_config(settings: Mapping[str, Value]) -> RankConfig:
    """Return what a rank is given, from a checked value of every knob."""
    values = {name: _KINDS[name](value) for name, value in settings.items()}
    if settings["pp"] != 1 and settings["pipeline_schedule"] in FOLDED:
        values["stages_per_rank"] = FOLDED_STAGES
    elif settings["pp"] == 1 or settings["pipeline_schedule"] not in LOOPED:
        values["stages_per_rank"] = 1
    return RankConfig(**values)


def rank_workload(workload: Workload) -> RankWorkload:
    """Return what the ranks are given; raises `StudyError` for work that they cannot do."""
    if workload.phase == "communication":
        raise StudyError(
            "[workload] phase 'communication' trains nothing; give recipe = \"collectives\" "
            "under [launch]"
        )
    given = {field.name: getattr(workload, field.name) for field in fields(RankWorkload)}
    for field in fields(RankWorkload):
        if field.default is MISSING and given[field.name] is None:
            raise StudyError(
                f"[workload] {field.name} is missing; the builtin recipe needs it: give it, or "
                'a known model, as in model = "llama-3.1-8b"'
            )
    if workload.requests_per_s is not None:
        raise StudyError(
            f"[workload] requests_per_s is {workload.requests_per_s:g}: the builtin recipe answers "
            "all requests of a batch together; start a server of your own with --command"
        )
    if workload.phase == "training":
        given["output_length"] = None
    elif not workload.output_length:
        raise StudyError(
            "[workload] output_length is missing; the builtin recipe needs it, the tokens of an "
            "answer: give it under [workload] of a study file (-c)"
        )
    known = {name: value for name, value in given.items() if value is not None}
    try:
        work = parse_job(RankWorkload, json.dumps(known))
    except JobError as error:
        raise StudyError(f"[workload] {str(error).removeprefix('job: ')}") from error
    for broken, fault in _workload_faults(work):
        if broken:
            raise StudyError(f"[workload] {fault}")
    return work


def _workload_faults(work: RankWorkload) -> Iterator[tuple[object, str]]:
    """What may not hold of a model, and how to say it."""
    hidden, heads = f"hidden_size {work.hidden_size}", f"head_count {work.head_count}"
    yield (
        not work.head_size and work.hidden_size % work.head_count,
        f"{hidden} does not divide by {heads}; change one of them, or give head_size",
    )
    yield (
        work.head_count % work.kv_head_count,
        f"{heads} does not divide by kv_head_count {work.kv_head_count}",
    )
    yield (
        work.head_width % ROTARY_PAIR,
        f"heads of size {work.head_width} do not divide into the pairs that rotary positions turn; "
        "change hidden_size, head_count or head_size",
    )
    if not work.expert_count:
        return
    for name in ("experts_per_token", "expert_ffn_size"):
        yield not getattr(work, name), f"a model with experts needs {name}, at least 1"
    for part, whole in (
        ("experts_per_token", "expert_count"),
        ("dense_layer_count", "layer_count"),
    ):
        most = getattr(work, whole)
        yield (getattr(work, part) > most, f"{part} {getattr(work, part)} is above {whole} {most}")


def rules(study: Study) -> tuple[Rule, ...]:
    """Every rule without which a configuration of this study cannot run, or would be wrong."""
    experts = "experts" if study.workload.expert_count else "dense"
    groups = _rules()
    known = groups["any"] + groups[study.workload.phase] + groups["kernels"] + groups[experts]
    if study.workload.phase == "training":
        known += rules_of_torch(torch_release(rank_python(study)))
    return known


@cache
def rules_of_torch(release: tuple[int, int] | None) -> tuple[Rule, ...]:
    """What a version of torch lacks; none where it is not known, or there is no torch."""
    if release is None:
        return ()
    found: list[Rule] = []
    for version, rows in _table().before.items():
        major, minor = map(int, version.split("."))
        if release < (major, minor):
            own = f"it takes torch {version}, and the ranks have {release[0]}.{release[1]}"
            found += (new_rule(name, text, f"{why}: {own}") for name, (text, why) in rows.items())
    return tuple(found)


def ranks_rule(study: Study) -> Rule:
    """How many ranks a configuration must use."""
    sign, reason = "==", "the objective does not count ranks, so none is left idle"
    if counts_ranks(study):
        sign, reason = "<=", "the objective counts ranks, so fewer than there are may be better"
    return new_rule("ranks", f"dp_replicate * dp_shard * tp * cp * pp {sign} world_size", reason)


def counts_ranks(study: Study) -> bool:
    """Whether an objective is about cost, so that fewer ranks can be better."""
    asked = (study.objective, *study.more_objectives)
    typed = set().union(*(parse(objective.expression).names for objective in asked))
    names = [ALIASES.get(name, name) for name in typed]
    return any(word in name for name in names for word in COST_WORDS)


def _search_rules(study: Study) -> Iterator[Rule]:
    """Rules that make a search of this study worth its launches."""
    yield ranks_rule(study)
    yield from _rules()["search"]
    environment = study.usable_environment
    if environment.memory_bytes is not None:
        release = torch_release(rank_python(study))
        is_older = environment.device == "cpu" and release is not None and release < (2, 9)
        fits = STAGES_FIT if is_older else FITS[environment.device]
        yield new_rule("memory", fits, "a larger estimate than this surely does not fit")


@cache
def _rules() -> Mapping[str, tuple[Rule, ...]]:
    return {name: new_rules(rows) for name, rows in _table().rules.items()}


@cache
def _table() -> _Table:
    return read_table("builtin.toml", _Table)


def _divisors(whole: int) -> tuple[Value, ...]:
    small = [part for part in range(1, isqrt(whole) + 1) if whole % part == 0]
    return *small, *(whole // part for part in reversed(small) if part * part != whole)
