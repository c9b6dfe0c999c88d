"""A mix of collective messages as a recipe: knobs, what this machine has of them, and the job.

`collectives.toml` lists the knobs, with rules about what NCCL and Open MPI cannot do.
"""

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from functools import cache

import msgspec

from evaluator.estimate.communication import Ways, estimate_exchange
from evaluator.estimate.hardware import machine_of
from evaluator.job_python import check_torch
from evaluator.machine import (
    check_local,
    mpi_library,
    mpirun_command,
    mpirun_environment,
    require_mpi,
    torchrun_command,
)
from evaluator.ports import Job, JobResult, Reading
from evaluator.rank import start
from evaluator.rank.job import parse as parse_job
from evaluator.rank.protocol import JOB_FILE
from evaluator.recipes.knobs import (
    LIBRARY,
    Knob,
    KnobTable,
    Rules,
    list_literal,
    new_rule,
    new_rules,
    rank_device,
    rank_program,
    rank_python,
    read_table,
)
from evaluator.samples import rank_measure, read_ranks
from evaluator.workloads.collectives.operations import (
    ABSENCE,
    Collective,
    DType,
    Operation,
    ReduceOp,
    Setup,
)
from records.errors import EnvironmentFault, StudyError
from records.expression import Rule
from records.study import Study, Value, choices_of
from records.trial import Config, Failed
from records.workload import Message

TORCHCOMMS = ("torchcomms", "c10d_torchcomms")
HALVES = ("float16", "bfloat16")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")


def knobs(study: Study) -> KnobTable:
    """Return the knobs with the conditions that they have for this mix."""
    mix, device = _mix(study), study.environment.device
    found = {}
    for name, knob in library_knobs().items():
        when = knob.when
        if knob.of and not mix & set(knob.of):
            when = f"{knob.of[0]!r} in {list_literal(sorted(mix))}"
        found[name] = msgspec.structs.replace(knob.for_device(device), when=when)
    return KnobTable(study, found)


def rules(study: Study) -> Iterator[Rule]:
    """Every rule without which a setup cannot run, or would be another one."""
    yield from new_rules(table().rules)
    mix, messages = _mix(study), study.workload.messages
    if any(m.dtype in HALVES and _kind(m) in REDUCING for m in messages):
        yield new_rule(
            "mpi_half",
            "comm_adapter != 'mpi'",
            "the mix adds up half-precision numbers, which MPI does not have",
        )
    if ringed := " and ".join(sorted(mix & {"broadcast", "reduce"})):
        yield new_rule(
            "nccl_ring",
            "nccl_algo in ['default', 'Ring']",
            f"the mix has {ringed}, which NCCL does in rings only",
        )
    if gathering := " and ".join(sorted(mix & {"all_gather", "reduce_scatter"})):
        yield new_rule(
            "nccl_gathering",
            "nccl_algo not in ['Tree', 'NVLSTree', 'CollnetChain']",
            f"the mix has {gathering}, and NCCL has these for all-reduces only",
        )
    if reduced := [m.size_bytes for m in messages if m.collective == "all_reduce"]:
        yield new_rule(
            "ompi_segments",
            "ompi_allreduce_algorithm != 'segmented_ring' or 0 < ompi_allreduce_segment_bytes"
            f" * world_size <= max(fusion_bytes, {max(reduced)})",
            "without several segments for each rank it is the ring",
        )


def setup_document(settings: Mapping[str, Value]) -> dict[str, Value | None]:
    """The setup as ranks read it, from a live value of every knob."""
    document: dict[str, Value | None] = {name: settings[name] for name in table().setup}
    if settings["comm_adapter"] == "mpi":
        document["backend"] = "mpi"
    if settings["gloo_interfaces"] == LIBRARY:
        document["gloo_interfaces"] = None
    return document


def _mix(study: Study) -> frozenset[str]:
    return frozenset(map(_kind, study.workload.messages))


def _kind(message: Message) -> str:
    """A collective with a single tensor counts as the one with lists."""
    return message.collective.removesuffix("_single")


_ASKING_TIMEOUT_S = 60.0
SWEEP = "evaluator.workloads.collectives.sweep"


def check_available(study: Study) -> None:
    """Raise `EnvironmentFault` for adapters that cannot be used here, all of them together.

    Raises `StudyError` for interfaces that this machine lacks, and for parameters of a library that
    no configuration uses.
    """
    searched = {d.name: choices_of(d) for d in study.space.dimensions}
    adapters = searched.get("comm_adapter", (study.space.defaults["comm_adapter"],))
    python = rank_python(study)
    absent = [
        f"{name}: {reason}"
        for name in adapters
        if (reason := absence(str(name), python)) is not None
    ]
    if "mpi" in adapters and not study.is_local:
        raise StudyError(
            '[space] comm_adapter: mpirun starts ranks on this machine alone; leave "mpi" out of '
            "its choices"
        )
    if absent:
        raise EnvironmentFault(
            f"[space] comm_adapter: {'; '.join(absent)}; or leave them out of its choices"
        )
    _check_interfaces(searched.get("gloo_interfaces", ()))
    _check_open_mpi([name for name in searched if name.startswith("ompi_")], adapters)
    of_nccl = [name for name in searched if name.startswith("nccl_")]
    if of_nccl and study.environment.device == "cpu":
        raise StudyError(f"[space] {', '.join(of_nccl)}: NCCL is for GPUs; leave them out")


def absence(adapter: str, python: str | None = None) -> str | None:
    """Why ranks cannot use an adapter and what to do about it; None if they can.

    They run in our Python, or in the one that is named.
    """
    if adapter == "mpi":
        if python is not None:
            return "ranks under MPI run in the Python of cclsearch; name no other"
        try:
            require_mpi()
        except EnvironmentFault as fault:
            return str(fault)
    return _reported_absence(adapter, python) if adapter in TORCHCOMMS else None


def _reported_absence(adapter: str, python: str | None) -> str | None:
    """What the adapter itself says, in a process that may load what it likes."""
    asked = [*start.command(SWEEP, python), ABSENCE, adapter]
    try:
        done = subprocess.run(
            asked, capture_output=True, text=True, timeout=_ASKING_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"it cannot be asked ({type(error).__name__}); run cclsearch doctor"
    return done.stdout.strip() or None


def _check_open_mpi(names: Sequence[str], adapters: Sequence[Value]) -> None:
    if not names:
        return
    if "mpi" not in adapters:
        raise StudyError(
            f"[space] {', '.join(names)}: no configuration uses MPI; give [space.comm_adapter] "
            'the choice "mpi", or leave them out'
        )
    library = mpi_library()
    if library is not None and library.kind != "openmpi":
        raise StudyError(
            f"[space] {', '.join(names)}: the MPI here is {library.kind} {library.version}, and "
            "these are parameters of Open MPI; leave them out, or install Open MPI"
        )


def _check_interfaces(choices: Iterable[Value]) -> None:
    there = [name for _, name in socket.if_nameindex()]
    for choice in choices:
        lacking = [name for name in str(choice).split(",") if name not in there]
        if choice != LIBRARY and lacking:
            raise StudyError(
                f"[space] gloo_interfaces: {', '.join(lacking)} is not a network interface here; "
                f"there are {', '.join(there)}"
            )


MODULE = "evaluator.workloads.collectives.message_step"


class CollectivesRecipe:
    """Exchanges the messages of a workload, in ways that are equal for a training job."""

    def complete(self, study: Study) -> Study:
        """Give every knob its condition and description, and add defaults and rules.

        Raises `StudyError` for a workload without messages, and for an unknown knob.
        """
        rank_device(study.environment)
        _check_mix(study)
        return replace(study, space=knobs(study).complete(tuple(rules(study))))

    def derived(self, study: Study) -> Mapping[str, Callable[[Mapping[str, Value]], Value]]:  # noqa: ARG002 - the port
        """Return nothing: nothing about a setup is worth knowing before it is tried."""
        return {}

    def estimate(self, study: Study, config: Config) -> Mapping[str, float] | None:
        """Return calls, rounds, bytes, sums and copies, as far as the knobs determine them."""
        settings = knobs(study).live(config.values)
        ranks = study.environment.world_size
        return estimate_exchange(
            [
                _operation(message)
                for message in study.workload.messages
                for _ in range(message.count)
            ],
            parse_job(Setup, json.dumps(setup_document(settings))),
            _ways(settings),
            machine_of(study.environment, study.workload.precision, ranks),
            ranks,
        )

    def check(self, study: Study) -> None:
        """Raise `EnvironmentFault` or `StudyError` for ranks and libraries that are not here."""
        if study.is_local:
            check_local(study.environment)
            check_torch(rank_python(study))
        check_available(study)

    def inherited(self, study: Study, ours: Mapping[str, str]) -> Mapping[str, str]:
        """Show ranks all that is ours, except what the knobs that are searched decide about."""
        known = library_knobs()
        decided = [v for each in study.space.dimensions for v in known[each.name].variables]
        return {
            name: value
            for name, value in ours.items()
            if not any(fnmatchcase(name, pattern) for pattern in decided)
        }

    def job(self, study: Study, config: Config) -> Job:
        """Return the job of one configuration; knobs that it leaves out take their defaults.

        Raises `StudyError` when the configuration breaks a rule of the recipe, and
        `EnvironmentFault` where it needs an MPI that is not here.
        """
        settings = knobs(study).settings(config, tuple(rules(study)))
        with_mpi = settings["comm_adapter"] == "mpi"
        world_size = study.environment.world_size
        warm = study.launch.start == "warm" and not with_mpi
        return Job(
            argv=(
                mpirun_command(world_size, rank_program(study, sys.executable))
                if with_mpi
                else torchrun_command(world_size, rank_program(study), study.node_count(world_size))
            ),
            world_size=world_size,
            files={JOB_FILE: json.dumps(_job_document(study, settings), indent=1)},
            modules=(MODULE,) if warm else (),
            python=rank_python(study),
            timeout_s=study.measure.timeout_s,
            hang_after_s=study.measure.hang_after_s,
            maps_freely=study.environment.device == "cuda",
            threads_per_rank=study.launch.threads_per_rank,
            environment=_mpi_variables(settings) if with_mpi else nccl_variables(settings),
        )

    def read(
        self,
        study: Study,
        job: Job,  # noqa: ARG002 - the port
        result: JobResult,
        launched_ns: int,  # noqa: ARG002 - the port
    ) -> Reading | Failed:
        """Read the samples of all ranks; a step that only communicates is not profiled."""
        return read_ranks(result, study, profiled_steps=0)


def _check_mix(study: Study) -> None:
    workload = study.workload
    if workload.phase != "communication":
        raise StudyError(
            f"[workload] phase {workload.phase!r}: the collectives recipe only exchanges messages; "
            "set phase to 'communication' and give a [[message]]"
        )
    ranks = study.environment.world_size
    if ranks % 2 and any(message.collective == "send_recv" for message in workload.messages):
        raise StudyError(
            f"[[message]] send_recv pairs ranks, and world_size {ranks} leaves one alone; "
            "give an even world_size"
        )


def _job_document(study: Study, settings: Mapping[str, Value]) -> Mapping[str, object]:
    """An `ExchangeJob` in plain values, as its file holds them."""
    return {
        "entry": f"{MODULE}:exchange",
        "world_size": study.environment.world_size,
        "device": study.environment.device,
        "init_method": "file://" if settings["comm_adapter"] == "mpi" else "env://",
        "messages": [
            {"operation": asdict(_operation(message)), "count": message.count}
            for message in study.workload.messages
        ],
        "setup": setup_document(settings),
        "measure": asdict(replace(rank_measure(study.measure), profiled_steps=0)),
        "threads_per_rank": study.launch.threads_per_rank,
        "memory_budget_bytes": study.launch.memory_budget_bytes,
    }


def _operation(message: Message) -> Operation:
    return Operation(
        collective=Collective(message.collective),
        size_bytes=message.size_bytes,
        dtype=DType(message.dtype),
        reduce_op=ReduceOp(message.reduce_op),
    )


def _ways(settings: Mapping[str, Value]) -> Ways:
    """Return the settings of the library below, from its own knobs."""
    if settings["comm_adapter"] == "mpi":
        chosen, segments_bytes = dict[Collective, str](), dict[Collective, int]()
        for name, each in table().open_mpi_algorithms.items():
            if (algorithm := str(settings[f"ompi_{name}_algorithm"])) != LIBRARY:
                chosen[Collective(each.collective)] = algorithm
                size_bytes = int(settings.get(f"ompi_{name}_segment_bytes", 0))
                segments_bytes[Collective(each.collective)] = size_bytes
        return Ways(algorithms=chosen, segments_bytes=segments_bytes)
    algorithm = str(settings["nccl_algo"])
    return Ways(
        algorithms=dict.fromkeys(Collective, algorithm) if algorithm != LIBRARY else {},
        protocol=str(settings["nccl_proto"]),
    )


def _mpi_variables(settings: Mapping[str, Value]) -> Mapping[str, str]:
    library = require_mpi()
    major_version = int(library.version.split(".")[0])
    tuned = open_mpi_variables(settings, major_version) if library.kind == "openmpi" else {}
    return {**mpirun_environment(), **tuned}


NCCL = "comm_adapter != 'mpi' and backend in ['nccl', 'ncclx']"
MPI = "comm_adapter == 'mpi'"
TUNED = f"{MPI} and in_flight == 1 and ompi_coll in ['{LIBRARY}', 'tuned']"
"""Calls that do not block are made by another component, which has no choice of algorithms."""
IN_NETWORK = ("CollnetDirect", "CollnetChain")
PREFIX = "OMPI_MCA_"
FIRST = "100"
"""A priority above those that components have by themselves."""


class Algorithms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How Open MPI can do a collective: `choices` in the order of its numbers.

    Those that are `segmented` cut a message into segments.
    """

    collective: str
    choices: tuple[str, ...]
    segmented: tuple[str, ...] = ()


class CollectivesTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `collectives.toml` holds."""

    setup: dict[str, Knob]
    nccl: dict[str, Knob]
    open_mpi: dict[str, Knob]
    open_mpi_algorithms: dict[str, Algorithms]
    rules: Rules


@cache
def table() -> CollectivesTable:
    """Return the table as it is written."""
    return read_table("collectives.toml", CollectivesTable)


@cache
def library_knobs() -> Mapping[str, Knob]:
    """Every knob by name, those first that the conditions of others name."""
    first, *others = table().open_mpi.items()
    return {
        **table().setup,
        **{
            name: _of_library(knob, NCCL, (name.upper(), *knob.variables))
            for name, knob in table().nccl.items()
        },
        **{
            name: _of_library(knob, MPI, tuple(PREFIX + each for each in knob.variables))
            for name, knob in (first, *_algorithm_knobs(), *_segment_knobs(), *others)
        },
    }


def nccl_variables(settings: Mapping[str, Value]) -> dict[str, str]:
    """Return the variables of NCCL for a live value of every knob; none for what is left to it."""
    variables = {
        name.upper(): str(int(value) if isinstance(value, bool) else value)
        for name, knob in table().nccl.items()
        if (value := settings[name]) != knob.default
    }
    if settings["nccl_algo"] in IN_NETWORK:
        variables["NCCL_COLLNET_ENABLE"] = "1"
    return variables


def open_mpi_variables(settings: Mapping[str, Value], major_version: int) -> dict[str, str]:
    """Return variables for a live value of every knob; none for what is left to Open MPI."""
    parameters = {
        **dict(_collective_parameters(settings)),
        **dict(_transport_parameters(settings, is_modern=major_version >= 5)),
    }
    return {PREFIX + name: value for name, value in parameters.items()}


def _of_library(knob: Knob, condition: str, variables: tuple[str, ...]) -> Knob:
    """The knob, with an effect only where its library is used."""
    when = knob.when or condition
    if not when.startswith(condition):
        when = f"{condition} and {when}"
    return msgspec.structs.replace(knob, when=when, variables=variables)


def _algorithm_knobs() -> Iterator[tuple[str, Knob]]:
    for name, algorithms in table().open_mpi_algorithms.items():
        rules = ("coll_tuned_use_dynamic_rules", "coll_tuned_dynamic_rules_filename")
        yield (
            f"ompi_{name}_algorithm",
            Knob(
                description=f"how Open MPI does each {algorithms.collective}",
                default=LIBRARY,
                choices=algorithms.choices,
                when=TUNED,
                of=(algorithms.collective,),
                variables=(f"coll_tuned_{name}_algorithm", *rules, "coll", "coll_*_priority"),
            ),
        )


def _segment_knobs() -> Iterator[tuple[str, Knob]]:
    for name, algorithms in table().open_mpi_algorithms.items():
        segmented = list_literal(algorithms.segmented)
        if algorithms.segmented:
            yield (
                f"ompi_{name}_segment_bytes",
                Knob(
                    description="bytes of the parts that a message is passed on in; 0: it is "
                    "passed on whole",
                    choices=(16 << 10, 64 << 10, 256 << 10, 1 << 20),
                    least=0,
                    when=f"{TUNED} and ompi_{name}_algorithm in {segmented}",
                    of=(algorithms.collective,),
                    variables=(f"coll_tuned_{name}_algorithm_segmentsize",),
                ),
            )


def _collective_parameters(settings: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    first = settings["ompi_coll"]
    chosen = {
        name: algorithms.choices.index(str(settings[f"ompi_{name}_algorithm"]))
        for name, algorithms in table().open_mpi_algorithms.items()
    }
    if any(chosen.values()):
        first = "tuned"
        yield "coll_tuned_use_dynamic_rules", "1"
    if first != LIBRARY:
        yield f"coll_{first}_priority", FIRST
    for name, number in chosen.items():
        if number:
            yield f"coll_tuned_{name}_algorithm", str(number)
    for name in chosen:
        if segment_bytes := settings.get(f"ompi_{name}_segment_bytes"):
            yield f"coll_tuned_{name}_algorithm_segmentsize", str(segment_bytes)


def _transport_parameters(
    settings: Mapping[str, Value], *, is_modern: bool
) -> Iterator[tuple[str, str]]:
    """Of the layer that `pml` ob1 uses, which is therefore asked for where one is set."""
    carrier = "tcp" if settings["ompi_btl"] == "tcp" else "sm" if is_modern else "vader"
    copies, limit = settings["ompi_single_copy"], settings["ompi_eager_limit"]
    if (settings["ompi_btl"], copies, limit) != (LIBRARY, LIBRARY, 0):
        yield "pml", "ob1"
    if settings["ompi_btl"] != LIBRARY:
        yield "btl", f"self,{carrier}"
    if limit:
        yield f"btl_{carrier}_eager_limit", str(limit)
    if copies != LIBRARY and is_modern:
        yield "smsc", "cma" if copies == "cma" else "^cma,knem,xpmem"
    elif copies != LIBRARY:
        yield "btl_vader_single_copy_mechanism", str(copies)
