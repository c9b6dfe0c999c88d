"""The built-in trainer as a recipe: a configuration becomes its job file."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial

from evaluator.estimate.memory import PARTS, MemoryEstimate, estimate_memory
from evaluator.estimate.step_time import estimate_step
from evaluator.job import Job, JobResult, Reading
from evaluator.machine import check_local, torchrun_command
from evaluator.rank.job import Config as RankConfig
from evaluator.rank.job import DeviceKind
from evaluator.rank.job import Job as RankJob
from evaluator.recipes.knobs import (
    JOB_FILE,
    broken_rules,
    check_setting,
    defaults,
    live,
    rank_config,
    rank_device,
    rank_program,
    rank_workload,
)
from evaluator.recipes.rules import complete_space, rules
from evaluator.samples import rank_measure, read_measurement, read_profiles
from records.errors import StudyError
from records.expression import facts
from records.study import Study, Value
from records.trial import Config, Failed

ENTRIES = {
    "training": ("evaluator.workloads.training", "train"),
    "inference": ("evaluator.workloads.inference", "serve"),
}
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
        return replace(study, space=complete_space(study))

    def derived(self, study: Study) -> Mapping[str, Callable[[Mapping[str, Value]], Value]]:
        """Give the estimate of memory, of the rank that needs most, and its parts."""
        work, device = rank_workload(study.workload), rank_device(study.environment)
        unset = defaults(study)

        def estimate(settings: Mapping[str, Value]) -> MemoryEstimate:
            return estimate_memory(work, rank_config({**unset, **settings}), device)

        def size(part: str, settings: Mapping[str, Value]) -> int:
            return estimate(settings).parts[part]

        parts = {f"estimated_{part}_bytes": partial(size, part) for part in PARTS}
        return {"estimated_memory_bytes": lambda each: estimate(each).total_bytes, **parts}

    def estimate(self, study: Study, config: Config) -> Mapping[str, float] | None:
        """Give what computes, communicates and waits in a step of a configuration of the space."""
        asked = rank_config({**defaults(study), **config.values})
        return estimate_step(rank_workload(study.workload), asked, study.environment)

    def check(self, study: Study) -> None:
        """Raise `EnvironmentFault` when this machine cannot hold the ranks."""
        check_local(study.environment)

    def inherited(self, study: Study, ours: Mapping[str, str]) -> Mapping[str, str]:  # noqa: ARG002 - the port
        """Show ranks, which are ours, all of it."""
        return ours

    def job(self, study: Study, config: Config) -> Job:
        """Give the job of one configuration; knobs that it leaves out take their defaults.

        Raises `StudyError` when the configuration breaks a rule of the recipe.
        """
        work = rank_workload(study.workload)
        module, function = ENTRIES[study.workload.phase]
        asked = _checked(study, config)
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
            argv=torchrun_command(job.world_size, rank_program()),
            world_size=job.world_size,
            files={JOB_FILE: json.dumps(asdict(job), indent=1)},
            modules=imported if study.launch.start == "warm" else (),
            timeout_s=study.measure.timeout_s,
            hang_after_s=study.measure.hang_after_s,
            maps_freely=job.device is DeviceKind.CUDA,
            threads_per_rank=asked.threads_per_rank,
        )

    def read(
        self,
        study: Study,
        job: Job,  # noqa: ARG002 - the port
        result: JobResult,
        launched_ns: int,  # noqa: ARG002 - the port
    ) -> Reading | Failed:
        """Read the samples of all ranks, and their traces if steps were to be profiled.

        Of a configuration that was stopped for being slower there are none.
        """
        measurement = read_measurement(result, study)
        if isinstance(measurement, Failed):
            return measurement
        step_count = study.measure.profiled_steps if measurement.stopped != "slower" else 0
        traces = read_profiles(result, step_count) if step_count else None
        return Reading(measurement=measurement, traces=traces)


def _checked(study: Study, config: Config) -> RankConfig:
    """Return what a rank is given, if it can be run."""
    for name, value in config.values.items():
        check_setting(name, value)
    settings = live({**defaults(study), **config.values}, study)
    faults = broken_rules(rules(study), {**facts(study.workload, study.environment), **settings})
    if faults:
        raise StudyError(f"[space] {config}: {'; '.join(faults)}")
    return rank_config(settings)
