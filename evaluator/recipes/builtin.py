"""The built-in trainer as a recipe: a configuration becomes its job file."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from evaluator.job import Job
from records.errors import StudyError
from records.study import Study, Value, Workload
from records.trial import Config

ENTRY_MODULE = "evaluator.workloads.training"
MODEL_FIELDS = (
    "layer_count",
    "hidden_size",
    "head_count",
    "kv_head_count",
    "ffn_size",
    "vocab_size",
)
DEFAULTS: Mapping[str, Value] = {
    "dp_replicate": 1,
    "dp_shard": 1,
    "tp": 1,
    "pp": 1,
    "micro_batch": 1,
    "activation_checkpointing": "none",
}


class BuiltinRecipe:
    """Trains a Llama-style decoder with torch's own parallelism."""

    def job(self, study: Study, config: Config) -> Job:
        """Give the job of one configuration; knobs that the space leaves out take `DEFAULTS`."""
        _check_training(study.workload)
        settings = {**DEFAULTS, **_known_knobs(config)}
        world_size = _ranks(settings)
        document = {
            "entry": f"{ENTRY_MODULE}:train",
            "world_size": world_size,
            "device": study.environment.device,
            "init_method": "env://",
            "workload": {
                **_model(study.workload),
                "sequence_length": study.workload.sequence_length,
                "global_batch": study.workload.global_batch,
                "precision": study.workload.precision,
                "seed": study.workload.seed,
            },
            "config": settings,
            "measure": {
                "warmup_steps": study.measure.warmup_steps,
                "timed_steps": study.measure.timed_steps,
                "profiled_steps": study.measure.profiled_steps,
            },
            "memory_budget_bytes": study.launch.memory_budget_bytes,
            "threads_per_rank": study.launch.threads_per_rank,
        }
        return Job(
            argv=_cold_start(world_size),
            world_size=world_size,
            files={"job.json": json.dumps(document, indent=1)},
            module=ENTRY_MODULE,
            timeout_s=study.measure.timeout_s,
        )


def _known_knobs(config: Config) -> dict[str, Value]:
    unknown = [knob for knob in config if knob not in DEFAULTS]
    if unknown:
        raise StudyError(
            f"[space] {unknown[0]!r} is not a knob of the builtin recipe; "
            f"it has {', '.join(DEFAULTS)}"
        )
    return dict(config.values)


def _ranks(settings: dict[str, Value]) -> int:
    world_size = 1
    for knob in ("dp_replicate", "dp_shard", "tp", "pp"):
        world_size *= int(settings[knob])
    return world_size


def _check_training(workload: Workload) -> None:
    if workload.phase != "training":
        raise StudyError(f"[workload] phase {workload.phase!r}: the builtin recipe only trains")


def _model(workload: Workload) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name in MODEL_FIELDS:
        size = getattr(workload, name)
        if size is None:
            raise StudyError(f"[workload] {name} is missing; the builtin recipe needs it")
        sizes[name] = size
    return sizes


def _cold_start(world_size: int) -> tuple[str, ...]:
    python = Path(sys.executable).name
    return (
        *(python, "-P", "-m", "torch.distributed.run", "--standalone"),
        f"--nproc-per-node={world_size}",
        *("--no-python", python, "-P", "-m", "evaluator.rank.main", "job.json"),
    )
