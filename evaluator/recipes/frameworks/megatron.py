"""Megatron-LM: what its flags do together, and what its log says of a step.

All ranks take part: data-parallel ranks are those that no degree covers.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from evaluator.ports import Job, JobResult, Reading
from evaluator.rank.protocol import COMMAND_LOG
from evaluator.recipes.command import TRACE_FOLDER
from evaluator.recipes.frameworks.flags import Flags
from evaluator.recipes.frameworks.framework import FrameworkKnob, FrameworkRecipe
from evaluator.recipes.frameworks.launch_line import LaunchLine
from evaluator.recipes.frameworks.parser import Answer
from records.errors import StudyError
from records.study import Study, Value
from records.trial import Config, Failed, FailureKind, Stage
from records.workload import Workload

_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_OWN_SPLIT = re.compile(
    r"--(decoder-(first|last)-pipeline-num-layers|pipeline-model-parallel-layout"
    r"|account-for-(embedding|loss)-in-pipeline-split|hybrid-layer-pattern"
    r"|no-overlap-p2p-communication)(=.*)?"
)
"""Flags that split a model into stages by hand: these stages are kept as they are."""
_SHARDED = {2: "optim_grads", 3: "optim_grads_params"}
_LOSS = re.compile(r"\| lm loss: ([-+.\dE]+) \|")
_GRAD_NORM = re.compile(r"\| grad norm: ([-+.\dE]+) \|")
_ARGUMENT = re.compile(r"^(?:\S*: ?)?\s+(\w+) \.+ (.+)$", re.MULTILINE)
"""An argument as Megatron prints all of them at its start, as its checks left them."""


class Megatron(FrameworkRecipe):
    """Starts `pretrain_gpt.py` and its siblings under torchrun."""

    name = "megatron"

    def workload(self, base: Workload, line: LaunchLine, answer: Answer | None) -> Workload:
        """Return the work of a step and the sizes of the model."""
        if any(word.startswith("--use-checkpoint-args") for word in line.arguments):
            raise StudyError(
                "--use-checkpoint-args takes the model from a checkpoint; write its sizes on the "
                "launch line"
            )
        work = super().workload(base, line, answer)
        return replace(work, expert_count=work.expert_count or 0)

    def knobs(self, study: Study) -> Mapping[str, FrameworkKnob]:
        """Return the knobs; those of experts, or of stages split by hand, have no choice."""
        found = dict(super().knobs(study))
        batch = study.workload.global_batch
        sizes = tuple(2**n for n in range(6) if batch % 2**n == 0)
        fixed = set() if study.workload.expert_count else {"ep", "etp", "moe_dispatcher"}
        words = study.command.run if study.command else ()
        if any(_OWN_SPLIT.fullmatch(word) for word in words):
            fixed |= {"pp", "stages_per_rank"}
        if "local" in words and "--transformer-impl" in words:
            fixed |= {"cp"}  # only Transformer Engine has it (dot_product_attention.py:58)
        micro = found["micro_batch"]
        choices = {"micro_batch": tuple(dict.fromkeys((micro.default, *sizes)))}
        choices |= {name: (found[name].default,) for name in fixed}
        for name, listed in choices.items():
            found[name] = msgspec.structs.replace(found[name], choices=listed)
        return found

    def meaning(self, study: Study, settings: Mapping[str, Value]) -> Mapping[str, Value]:
        """Return settings with the data-parallel ranks; those of a sharded optimizer shard all.

        That needs less memory than it does, so no configuration is left out that fits.
        """
        degrees = [int(settings[name]) for name in ("tp", "pp", "cp")]
        ranks = max(1, study.environment.world_size // (degrees[0] * degrees[1] * degrees[2]))
        shards = bool(settings["zero_stage"])
        interleaved = degrees[1] > 1 and settings["stages_per_rank"] != 1
        return {
            **settings,
            "dp_replicate": 1 if shards else ranks,
            "dp_shard": ranks if shards else 1,
            "pipeline_schedule": "interleaved_1f1b" if interleaved else "1f1b",
        }

    def knob_words(self, study: Study, name: str, settings: Mapping[str, Value]) -> Sequence[str]:
        """Return the arguments of one knob; sharding by Megatron-FSDP takes several flags."""
        if name != "zero_stage":
            return super().knob_words(study, name, settings)
        sharded = _SHARDED.get(int(settings[name]))
        if sharded is None:
            return (self.table.knobs[name].flag,) if settings[name] else ()
        return (
            self.table.knobs[name].flag,
            "--use-megatron-fsdp",
            f"--data-parallel-sharding-strategy={sharded}",
            "--ckpt-format=fsdp_dtensor",
        )

    def work_words(self, study: Study, settings: Mapping[str, Value]) -> tuple[str, ...]:
        """Return the arguments that hold the work equal, and those that profile the last steps."""
        measure = study.measure
        words = super().work_words(study, settings)
        if not measure.profiled_steps:
            return words
        # The step before the first profiled one starts the profiler, so it is not timed.
        first = measure.warmup_steps + measure.timed_steps + 1
        return (
            *words,
            "--profile",
            "--use-pytorch-profiler",
            f"--profile-step-start={first}",
            f"--profile-step-end={first + measure.profiled_steps}",
            "--profile-ranks",
            *map(str, range(study.environment.world_size)),
            f"--tensorboard-dir={TRACE_FOLDER}/tensorboard",
        )

    def counts(self, study: Study) -> dict[str, int]:
        """Return the numbers that `work` may name."""
        measure = study.measure
        profiled = measure.profiled_steps and measure.profiled_steps + 1
        last = measure.warmup_steps + measure.timed_steps + profiled
        return {**super().counts(study), "last_step": last}

    def job(self, study: Study, config: Config) -> Job:
        """Return the job of one configuration.

        Megatron wants one connection to the GPU with tensor or context parallelism, so that
        kernels start in order (arguments.py:1437), and more with FSDP (arguments.py:1143).
        """
        job = super().job(study, config)
        shards = {**study.space.defaults, **config.values}["zero_stage"] in _SHARDED
        given = job.environment.get(_CONNECTIONS, "1")
        connections = "8" if shards and given == "1" else given
        return replace(job, environment={**job.environment, _CONNECTIONS: connections})

    def read(self, study: Study, job: Job, result: JobResult, launched_ns: int) -> Reading | Failed:
        """Read the log for times, losses and gradient norms, and the traces of profiled steps."""
        reading = super().read(study, job, result, launched_ns)
        if isinstance(reading, Failed):
            return reading
        log = (result.workdir / COMMAND_LOG).read_text("utf-8", "replace")
        fault = next(self._changed(job, log), None)
        if fault is not None:
            return Failed(stage=Stage.READ, kind=FailureKind.INVALID_CONFIG, message=fault)
        # Those after the timed ones run with the profiler.
        timed = tuple(
            times[: study.measure.timed_steps] for times in reading.measurement.step_times_s
        )
        measured = replace(
            reading.measurement,
            step_times_s=timed,
            losses=_printed(_LOSS, log),
            grad_norms=_printed(_GRAD_NORM, log),
        )
        return replace(reading, measurement=measured)

    def _changed(self, job: Job, log: str) -> Iterator[str]:
        """Yield each flag of the job that Megatron has set to something else at its start."""
        printed = dict(_ARGUMENT.findall(log))
        flags, _ = Flags.of(self.name, None)
        knobs = {knob.flag for knob in self.table.knobs.values()}
        for flag, value, _ in flags.split(job.argv):
            took = printed.get(flag.removeprefix("--").replace("-", "_"))
            if took is None or flag not in knobs or flags.flags[flag].takes == "many":
                continue
            if took.strip().lower() != value:
                yield f"{flag}={value} did not take hold: Megatron made it {took.strip()}"


def _printed(pattern: re.Pattern[str], log: str) -> tuple[float, ...]:
    """Return the numbers of a kind in a log, one of each step."""
    return tuple(float(number) for number in pattern.findall(log))
