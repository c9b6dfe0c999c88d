"""Estimated step time of training, inference and user scripts, by what takes it.

Nothing counts as hidden behind anything else: weights of the parts, fitted to measured steps,
express how much of each shows. A script is estimated as the built-in trainer would do it, as far
as its knobs have usual names.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from evaluator.estimate import communication as sent
from evaluator.estimate.communication import groups
from evaluator.estimate.hardware import (
    BACKWARD,
    EDGE_OPERATORS,
    Machine,
    Traffic,
    all_reduce,
    forward_flops,
    forward_operators,
    gather_or_scatter,
    head_flops,
    layer_flops,
    machine_of,
    operators,
    recomputed_flops,
    sliced_operators,
)
from evaluator.estimate.memory import (
    Share,
    Weights,
    decoder_of,
    kv_size,
    layer_weights,
    micro_batch_count,
    shares,
)
from evaluator.rank.job import (
    FOLDED,
    LOOPED_STAGES,
    ONE_STAGE,
    SPLIT_BACKWARD,
    Checkpointing,
    ComputePrecision,
    Config,
    OptimizerLoop,
    Schedule,
    Workload,
)
from records.study import Environment, Value
from records.workload import Workload as Asked
from records.workload import model_named

UPDATE_TOUCHES = 7
"""Reads and writes of an update for each parameter: of itself, its gradient and its moments."""
UPDATE_OPERATORS = 12
LAYER_TENSORS = 9
STEP_OPERATORS = 500
"""What comes once in a step: to draw a batch, to forget gradients, to begin and to end."""
SPLIT_BUBBLE = 1 / 3
"""What is left of a bubble that the gradients of weights may fill."""

Counted: TypeAlias = Callable[[Share], float]
Exchanged: TypeAlias = tuple[Callable[[Share], Traffic], str]
"""What is sent, and the name of the group that sends it."""

_EXCHANGED: Mapping[str, Exchanged] = {
    "tensor_communication": (sent.tensor_traffic, "tensor"),
    "context_communication": (sent.context_traffic, "context"),
    "expert_communication": (sent.expert_traffic, "expert"),
    "pipeline_transfers": (sent.pipeline_traffic, "pipeline"),
}
_EXCHANGED_ONCE: Sequence[Exchanged] = (
    (sent.gathered_traffic, "shard"),
    (sent.reduced_traffic, "shard"),
    (sent.replicated_traffic, "replica"),
    (sent.routed_traffic, "same_experts"),
)


def estimate_training(
    work: Workload, config: Config, machine: Machine, *, distributed_tensors: bool = True
) -> Mapping[str, float]:
    """Seconds of a step, by what takes them, on the rank that is busiest with each.

    `distributed_tensors` are how the built-in trainer slices matrices, at a cost in Python.
    """
    places = tuple(shares(work, config))
    count = micro_batch_count(work, config)
    passes = {
        "compute": _computing(places, machine, lambda share: (1 + BACKWARD) * forward_flops(share)),
        "recompute": _computing(places, machine, recomputed_flops),
        "launch_overhead": _starting(places, machine, operators),
        **{name: _exchanging(places, machine, [each]) for name, each in _EXCHANGED.items()},
        "between_nodes": _exchanging(places, machine, _EXCHANGED.values(), between_nodes=True),
    }
    if distributed_tensors:
        passes["slicing_overhead"] = _starting(places, machine, sliced_operators)
    once = _exchanging(places, machine, _EXCHANGED_ONCE, between_nodes=True)
    return {
        **{name: seconds * count for name, seconds in passes.items()},
        "between_nodes": passes["between_nodes"] * count + once,
        "bubble": sum(passes.values()) * _idle_micro_batches(config, machine),
        "data_communication": _exchanging(places, machine, _EXCHANGED_ONCE),
        "optimizer": _updating(places, machine),
        "step_overhead": machine.together([STEP_OPERATORS * machine.dispatch_s]),
    }


def _computing(places: Sequence[Share], machine: Machine, flops: Counted) -> float:
    return machine.together([flops(share) / machine.flops_per_s for share in places])


def _starting(places: Sequence[Share], machine: Machine, operator_count: Counted) -> float:
    return machine.together([operator_count(share) * machine.dispatch_s for share in places])


def _exchanging(
    places: Sequence[Share],
    machine: Machine,
    exchanged: Iterable[Exchanged],
    *,
    between_nodes: bool = False,
) -> float:
    """Of groups that are each on one node, or of those that are on several."""
    by_name = groups(places[0].config)
    return sum(
        max(machine.exchange(traffic(share), by_name[group]) for share in places)
        for traffic, group in exchanged
        if machine.leaves_node(by_name[group]) is between_nodes
    )


def _idle_micro_batches(config: Config, machine: Machine) -> float:
    """How long a rank waits for others of its pipeline, in times of one micro-batch.

    While a rank waits, another that shares its core continues.
    """
    idle = max(0.0, config.pp / machine.crowding - 1) / config.stages_per_rank
    return idle * SPLIT_BUBBLE if config.pipeline_schedule in SPLIT_BACKWARD else idle


def _updating(places: Sequence[Share], machine: Machine) -> float:
    loop = places[0].config.optimizer_loop
    steps = 1 if loop is OptimizerLoop.FUSED else UPDATE_OPERATORS
    joins = loop is not OptimizerLoop.FOR_LOOP and machine.joins_tensors
    seconds = []
    for share in places:
        touched_bytes = share.held * share.number_bytes * UPDATE_TOUCHES
        started = steps * (1 if joins else LAYER_TENSORS * share.layer_count)
        seconds.append(touched_bytes / machine.memory_bytes_per_s + started * machine.dispatch_s)
    return machine.together(seconds)


GATHERS = 2  # the vectors of tokens, and the logits


def estimate_inference(work: Workload, config: Config, machine: Machine) -> Mapping[str, float]:
    """Seconds in which a batch is answered, by what takes them; every rank does the same."""
    (share,) = shares(work, config)
    rounds = micro_batch_count(work, config)
    reads = work.output_length  # the prompt, then every token of an answer but the last
    started = (forward_operators(share) + EDGE_OPERATORS) * reads * machine.dispatch_s
    prefill = config.micro_batch * work.sequence_length
    traffic = _traffic(share, prefill) + _traffic(share, config.micro_batch) * (reads - 1)
    compute = _answer_flops(share) / machine.flops_per_s
    read = _read_bytes(share) / machine.memory_bytes_per_s
    return {
        "compute": rounds * machine.together([compute]),
        "memory_reads": rounds * machine.together([read]),
        "launch_overhead": rounds * machine.together([started]),
        "tensor_communication": rounds * machine.exchange(traffic, groups(config)["tensor"]),
    }


def _answer_flops(share: Share) -> float:
    """Of one round; only the last token of a prompt is asked what comes next."""
    work = share.work
    decoded = work.output_length - 1
    prompt = work.sequence_length * layer_flops(share, work.sequence_length)
    # A single query sees every key: all the scores of a length are half of those of twice as many.
    answer = decoded * layer_flops(share, 2 * _mean_length(work))
    return share.config.micro_batch * (prompt + answer + work.output_length * head_flops(share))


def _read_bytes(share: Share) -> float:
    """Of one round while it decodes: weights and the cache, once for every token."""
    work, config = share.work, share.config
    weights = Weights(work.vocab_size * work.hidden_size / config.tp)
    for layer in range(work.layer_count):
        weights += layer_weights(work, layer, tp=config.tp)
    rows = config.micro_batch * work.experts_per_token
    met = min(1.0, rows / work.expert_count) if work.expert_count else 0
    keys = 2 * work.layer_count * kv_size(work) / config.tp
    cache = config.micro_batch * _mean_length(work) * keys
    numbers = weights.plain + weights.routed * met + cache
    return share.number_bytes * (work.output_length - 1) * numbers


def _traffic(share: Share, tokens: int) -> Traffic:
    """Of one pass: attention and feed-forward added up in every layer, columns joined at the edges.

    Logits are only those of the last place.
    """
    work, config = share.work, share.config
    size = share.number_bytes
    hidden = all_reduce(size * tokens * work.hidden_size, config.tp) * (2 * work.layer_count)
    if config.tp == 1:
        return hidden
    edges = tokens * work.hidden_size + config.micro_batch * work.vocab_size
    return hidden + gather_or_scatter(size * edges, config.tp, calls=GATHERS)


def _mean_length(work: Workload) -> float:
    return work.sequence_length + work.output_length / 2


def estimate_step(
    work: Workload, config: Config, environment: Environment, *, distributed_tensors: bool = True
) -> Mapping[str, float]:
    """Seconds of a step, by what takes them, of a configuration that breaks no rule.

    `distributed_tensors` are how the built-in trainer slices matrices, at a cost in Python.
    """
    threads = config.threads_per_rank
    asked = config.compute_precision
    precision = work.precision if asked is ComputePrecision.PARAMETER else asked
    machine = machine_of(environment, precision, config.world_size, threads)
    if work.output_length:
        return estimate_inference(work, config, machine)
    return estimate_training(work, config, machine, distributed_tensors=distributed_tensors)


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


def estimate_script(
    asked: Asked, environment: Environment, settings: Mapping[str, Value], rank_count: int
) -> Mapping[str, float] | None:
    """Seconds of a step, by what takes them; None where sizes or knobs are missing."""
    read = script_as_builtin(asked, settings, rank_count)
    return read and estimate_step(*read, environment, distributed_tensors=False)


def script_as_builtin(
    asked: Asked, settings: Mapping[str, Value], rank_count: int
) -> tuple[Workload, Config] | None:
    """Return a script's work and knobs as the built-in trainer has them; None where some lack."""
    model = model_named(asked.model) if asked.model else None
    work = decoder_of(asked, model.sizes if model else None)
    config = _config({name.lower(): value for name, value in settings.items()}, rank_count)
    if isinstance(work, tuple) or config is None or asked.phase == "communication":
        return None
    sequences = work.global_batch // config.dp
    too_many_stages = config.stage_count > work.layer_count
    if sequences < 1 or too_many_stages or (work.output_length and config.pp > 1):
        return None
    # One that is larger than what a replica gets, or not given, is all that it gets.
    return work, replace(config, micro_batch=min(config.micro_batch or sequences, sequences))


def _config(settings: Mapping[str, Value], rank_count: int) -> Config | None:
    """The knobs as the built-in trainer has them; None where none of them is known.

    Ranks that no degree covers see other sequences; a micro-batch of 0 is one that is not given.
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
    has_degree = "dp" in counts or "dp_replicate" in counts or "dp_shard" in counts
    replicas = counts.get("dp", 1) * counts.get("dp_replicate", 1)
    return replace(
        config, dp_replicate=replicas if has_degree else rank_count // config.world_size or 1
    )


def _stages(schedule: Schedule, counts: Mapping[str, int]) -> int:
    if counts.get("pp", 1) == 1 or schedule in ONE_STAGE:
        return 1
    return LOOPED_STAGES if schedule in FOLDED else counts.get("stages_per_rank", LOOPED_STAGES)


def _schedule(value: Value) -> Schedule:
    """The schedule of this name in any usual spelling (Interleaved1F1B); else one after another."""
    plain = _word(value).replace("_", "")
    named = {schedule.value.replace("_", ""): schedule for schedule in Schedule}
    return named.get(plain, Schedule.ONE_F_ONE_B)


def _checkpointing(value: Value) -> Checkpointing:
    word = _word(value)
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
