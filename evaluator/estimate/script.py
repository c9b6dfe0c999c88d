"""A user's script as the built-in trainer would do it: knobs of usual names, sizes of the model.

What a script really does is not known: this ranks its configurations as far as names tell.
"""

from collections.abc import Mapping
from dataclasses import replace

from evaluator.estimate.step import estimated_step
from evaluator.memory.shares import FOLDED
from evaluator.rank.job import Checkpointing, Config, Precision, Schedule, Workload
from records.models import model_named
from records.study import Environment, Value
from records.workload import Workload as Asked

COUNTS: Mapping[str, tuple[str, ...]] = {
    "dp": ("dp", "dp_size", "data_parallel_size"),
    "dp_replicate": ("dp_replicate", "data_parallel_replicate_degree"),
    "dp_shard": ("dp_shard", "data_parallel_shard_degree"),
    "tp": ("tp", "tp_size", "tensor_parallel_size", "tensor_model_parallel_size"),
    "pp": ("pp", "pp_size", "pipeline_parallel_size", "pipeline_model_parallel_size"),
    "cp": ("cp", "cp_size", "context_parallel_size"),
    "ep": ("ep", "ep_size", "expert_parallel_size", "expert_model_parallel_size"),
    "micro_batch": ("micro_batch", "micro_batch_size", "mbs"),
    "stages_per_rank": ("stages_per_rank", "virtual_stages"),
}
"""What scripts call the counts among the knobs of the built-in trainer, in lower case."""
CHECKPOINTING = ("activation_checkpointing", "activation_checkpoint", "recompute")
SCHEDULE = ("pipeline_schedule", "schedule")
COMPILE = ("compile", "compile_mode")
NOTHING = ("", "none", "eager", "no", "off", "false", "0")
HALF = ("bf16", "fp16", "fp8")
LOOPED_STAGES = 2
ONE_STAGE = (Schedule.GPIPE, Schedule.ONE_F_ONE_B)

_SIZES = ("layer_count", "hidden_size", "head_count", "ffn_size", "vocab_size")
_EXPERT_SIZES = ("experts_per_token", "expert_ffn_size")
_MORE_SIZES = ("expert_count", "shared_expert_count", "dense_layer_count", "head_size")


def estimated_script(
    asked: Asked, environment: Environment, settings: Mapping[str, Value], rank_count: int
) -> Mapping[str, float] | None:
    """Seconds of a step, by what takes them; None where sizes or knobs do not tell enough."""
    read = _as_builtin(asked, settings, rank_count)
    return read and estimated_step(*read, environment, distributed_tensors=False)


def _as_builtin(
    asked: Asked, settings: Mapping[str, Value], rank_count: int
) -> tuple[Workload, Config] | None:
    work = _decoder(asked)
    config = _config({name.lower(): value for name, value in settings.items()}, rank_count)
    if work is None or config is None:
        return None
    sequences = work.global_batch // config.dp
    too_many_stages = config.pp * config.stages_per_rank > work.layer_count
    if sequences < 1 or too_many_stages or (work.output_length and config.pp > 1):
        return None
    # One that is larger than what a replica gets, or not told, is all that it gets.
    return work, replace(config, micro_batch=min(config.micro_batch or sequences, sequences))


def _decoder(asked: Asked) -> Workload | None:
    """The model's sizes, from the workload or by its name; None where one is missing."""
    model = model_named(asked.model) if asked.model else None
    known = model.sizes if model else {}

    def size(name: str) -> int:
        return int(getattr(asked, name) or known.get(name) or 0)

    needed = _SIZES + (_EXPERT_SIZES if size("expert_count") else ())
    if asked.phase == "communication" or not all(size(name) for name in needed):
        return None
    sizes = {name: size(name) for name in (*_SIZES, *_EXPERT_SIZES, *_MORE_SIZES)}
    return Workload(
        **sizes,  # type: ignore[arg-type]  # all of them are counts
        kv_head_count=size("kv_head_count") or size("head_count"),
        sequence_length=asked.sequence_length,
        global_batch=asked.global_batch,
        precision=Precision.BF16 if asked.precision.lower() in HALF else Precision.FP32,
        seed=asked.seed,
        output_length=size("output_length") if asked.phase == "inference" else 0,
    )


def _config(settings: Mapping[str, Value], rank_count: int) -> Config | None:
    """The knobs as the built-in trainer has them; None where none of them is known.

    Ranks that no degree tells of see other sequences; a micro-batch of 0 is one that is not told.
    """
    counts = {name: count for name in COUNTS if (count := _count(settings, COUNTS[name]))}
    if not counts:
        return None
    schedule = _schedule(_first(settings, SCHEDULE))
    config = Config(
        dp_shard=counts.get("dp_shard", 1),
        tp=counts.get("tp", 1),
        pp=counts.get("pp", 1),
        cp=counts.get("cp", 1),
        ep=counts.get("ep", 1),
        micro_batch=counts.get("micro_batch", 0),
        activation_checkpointing=_checkpointing(_first(settings, CHECKPOINTING)),
        pipeline_schedule=schedule,
        stages_per_rank=_stages(schedule, counts),
        compile=_word(_first(settings, COMPILE)) not in NOTHING,
    )
    told = "dp" in counts or "dp_replicate" in counts or "dp_shard" in counts
    replicas = counts.get("dp", 1) * counts.get("dp_replicate", 1)
    return replace(config, dp_replicate=replicas if told else rank_count // config.world_size or 1)


def _stages(schedule: Schedule, counts: Mapping[str, int]) -> int:
    if counts.get("pp", 1) == 1 or schedule in ONE_STAGE:
        return 1
    return LOOPED_STAGES if schedule in FOLDED else counts.get("stages_per_rank", LOOPED_STAGES)


def _schedule(told: Value) -> Schedule:
    """The schedule of this name in any usual spelling (Interleaved1F1B); else one after another."""
    plain = _word(told).replace("_", "")
    named = {schedule.value.replace("_", ""): schedule for schedule in Schedule}
    return named.get(plain, Schedule.ONE_F_ONE_B)


def _checkpointing(told: Value) -> Checkpointing:
    word = _word(told)
    if word in NOTHING:
        return Checkpointing.NONE
    return Checkpointing.SELECTIVE if word == "selective" else Checkpointing.FULL


def _count(settings: Mapping[str, Value], spellings: tuple[str, ...]) -> int | None:
    value = _first(settings, spellings)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _first(settings: Mapping[str, Value], spellings: tuple[str, ...]) -> Value:
    return next((settings[name] for name in spellings if name in settings), "")


def _word(value: Value) -> str:
    return str(value).lower()
