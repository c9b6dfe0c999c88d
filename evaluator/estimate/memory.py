"""Estimated peak memory of the rank that needs most, from sizes alone.

Counts follow the operations in `evaluator.workloads`, one by one, in the manner of Korthikanti et
al., "Reducing Activation Recomputation in Large Transformer Models" (2022): an operation keeps
the inputs that its derivative needs. `tp`, `ep` and the like divide what each rank holds of them.
The estimate separates configurations that cannot fit from those that may; it is not a result.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal

from evaluator.rank.job import (
    AttentionBackend,
    Checkpointing,
    Config,
    ContextMethod,
    DeviceKind,
    OptimizerLoop,
    Precision,
    Reduction,
    Schedule,
    Workload,
)
from records.workload import Workload as Asked

EXPERT_MATRICES = 3  # gate, up, down
NORM_KEPT = {DeviceKind.CPU: 2, DeviceKind.CUDA: 1}
"""Its input, and where its kernel is not fused also the normalized input before it is scaled."""
SIZES = ("layer_count", "hidden_size", "head_count", "ffn_size", "vocab_size")
EXPERT_SIZES = ("experts_per_token", "expert_ffn_size")
OPTIONAL_SIZES = ("expert_count", "shared_expert_count", "dense_layer_count", "head_size")
HALF = ("bf16", "fp16", "fp8")
FEED_FORWARD_KEPT = 4  # the gate's and the up layer's outputs, silu of the gate, their product


@dataclass(frozen=True, slots=True)
class Weights:
    """Numbers of parameters: those of routed experts are spread in their own way."""

    plain: float
    routed: float = 0

    def __add__(self, other: "Weights") -> "Weights":
        """Both together."""
        return Weights(self.plain + other.plain, self.routed + other.routed)

    @property
    def total(self) -> float:
        """All of them."""
        return self.plain + self.routed


def layer_weights(work: Workload, layer: int, *, tp: int = 1, ep: int = 1) -> Weights:
    """Parameters of one decoder layer on one rank, before sharding over data-parallel ranks."""
    hidden = work.hidden_size
    attention = 2 * hidden * work.attention_width + 2 * hidden * kv_size(work)
    norms = 2 * hidden
    if not has_experts(work, layer):
        return Weights((attention + EXPERT_MATRICES * hidden * work.ffn_size) / tp + norms)
    expert = EXPERT_MATRICES * hidden * work.expert_ffn_size
    shared = expert * work.shared_expert_count
    router = hidden * work.expert_count
    return Weights(
        (attention + shared) / tp + norms + router, expert * work.expert_count / (tp * ep)
    )


def edge_weights(work: Workload, *, first: bool, last: bool, tp: int = 1) -> Weights:
    """Parameters of the embedding and of the head with its norm, where a rank holds them."""
    table = work.vocab_size * work.hidden_size / tp
    return Weights(table * (first + last) + (work.hidden_size if last else 0))


def layer_kept(work: Workload, layer: int, config: Config, device: DeviceKind) -> float:
    """Numbers kept per token of a rank's part of the sequence, from one layer's forward pass."""
    match config.activation_checkpointing:
        case Checkpointing.FULL:
            return _input(work, config)
        case Checkpointing.SELECTIVE:
            return _input(work, config) + _selected(work, layer, config)
        case Checkpointing.NONE:
            return layer_whole(work, layer, config, device)


def layer_whole(work: Workload, layer: int, config: Config, device: DeviceKind) -> float:
    """Numbers kept per token if nothing is computed again.

    Inputs of the two norms, their outputs gathered for the sliced matrices, rotated queries and
    keys, values, what attention gives, and the feed-forward layer's inner results.
    """
    norms = 2 * NORM_KEPT[device] * _input(work, config)
    gathered = 2 * work.hidden_size
    queries = 2 * work.attention_width
    gathers_keys = config.cp > 1 and config.context_method is ContextMethod.ALL_GATHER
    keys = 2 * kv_size(work) * (config.cp if gathers_keys else 1)
    weights = work.head_count * work.sequence_length  # which only the unfused kernel keeps
    scores = weights if config.attention_backend is AttentionBackend.MATH else 0
    attention = (queries + keys + scores) / config.tp
    return norms + gathered + attention + _inner(work, layer, config)


def decoder_of(
    asked: Asked, known: Mapping[str, int | str | None] | None = None
) -> Workload | tuple[str, ...]:
    """The decoder of a workload's sizes, or the names of the sizes that are missing.

    What the workload does not say is taken from the `known` sizes of its model.
    """

    def size(name: str) -> int:
        return int(getattr(asked, name) or (known or {}).get(name) or 0)

    needed = SIZES + (EXPERT_SIZES if size("expert_count") else ())
    missing = tuple(name for name in needed if not size(name))
    return missing or Workload(
        **{name: size(name) for name in (*SIZES, *EXPERT_SIZES, *OPTIONAL_SIZES)},  # type: ignore[arg-type]  # all of them are counts
        kv_head_count=size("kv_head_count") or size("head_count"),
        sequence_length=asked.sequence_length,
        global_batch=asked.global_batch,
        precision=Precision.BF16 if asked.precision.lower() in HALF else Precision.FP32,
        seed=asked.seed,
        output_length=size("output_length") if asked.phase == "inference" else 0,
    )


def has_experts(work: Workload, layer: int) -> bool:
    """Whether a layer has experts; the first ones may be dense."""
    return work.expert_count > 0 and layer >= work.dense_layer_count


def kv_size(work: Workload) -> int:
    """Numbers of one token's keys, or values."""
    return work.head_width * work.kv_head_count


def _input(work: Workload, config: Config) -> float:
    """A hidden state between layers, of which sequence parallelism leaves each rank a part."""
    return work.hidden_size / (config.tp if config.sequence_parallel else 1)


def _inner(work: Workload, layer: int, config: Config) -> float:
    """What the feed-forward layer keeps; routed rows are copied on their way to the experts."""
    if not has_experts(work, layer):
        return FEED_FORWARD_KEPT * work.ffn_size / config.tp
    size, rows = work.expert_ffn_size, work.experts_per_token
    copies = 2 if config.ep == 1 else 4
    routed = rows * (copies * work.hidden_size + FEED_FORWARD_KEPT * size / config.tp)
    shared = FEED_FORWARD_KEPT * size * work.shared_expert_count / config.tp
    return routed + shared + work.expert_count


def _selected(work: Workload, layer: int, config: Config) -> float:
    """Outputs of matrix products and of attention, which selective checkpointing keeps."""
    hidden = work.hidden_size
    queries = 2 * work.attention_width
    products = (queries + hidden + 2 * kv_size(work)) / config.tp + hidden
    if has_experts(work, layer):
        shared = work.shared_expert_count * work.expert_ffn_size
        return products + 2 * shared / config.tp
    return products + 2 * work.ffn_size / config.tp


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShare:
    """One stage: its layers, its parameters whole, and those that this rank holds of them."""

    layers: range
    whole: float
    held: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What the rank at one place of the pipeline holds.

    `held` parameters are its own for good; `unsharded` are those that it computes with. `edge` are
    the parameters of embedding and head among these, `largest_layer` those of its largest layer.
    """

    work: Workload
    config: Config
    place: int
    stages: tuple[StageShare, ...]
    held: float
    unsharded: float
    edge: float
    largest_layer: float
    gives_loss: bool

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers of all its stages."""
        return tuple(layer for stage in self.stages for layer in stage.layers)

    @property
    def layer_count(self) -> int:
        """Layers in all its stages."""
        return sum(len(stage.layers) for stage in self.stages)

    @property
    def expert_layer_count(self) -> int:
        """Those of them that have experts."""
        return sum(has_experts(self.work, layer) for layer in self.layers)

    @property
    def number_bytes(self) -> int:
        """Bytes of a parameter, a gradient or an activation."""
        return NUMBER_BYTES[self.work.precision]

    @property
    def activation_bytes(self) -> int:
        """Bytes of a number that is kept for the backward pass, as most are."""
        return NUMBER_BYTES[Precision.BF16] if self.config.autocasts else self.number_bytes

    @property
    def tokens(self) -> float:
        """Tokens of one micro-batch that this rank sees."""
        return self.config.micro_batch * self.work.sequence_length / self.config.cp


def shares(work: Workload, config: Config) -> Iterator[Share]:
    """What the rank at each place of the pipeline holds; without one there is one place."""
    count = config.stage_count
    for place in range(config.pp):
        numbers = config.stages_at(place)
        stages = tuple(_stage(work, config, number) for number in numbers)
        edge = edge_weights(work, first=0 in numbers, last=count - 1 in numbers, tp=config.tp).total
        layers = [
            layer_weights(work, layer, tp=config.tp, ep=config.ep).total
            for stage in stages
            for layer in stage.layers
        ]
        yield Share(
            work=work,
            config=config,
            place=place,
            stages=stages,
            held=sum(stage.held for stage in stages),
            unsharded=edge + sum(layers),
            edge=edge,
            largest_layer=max(layers),
            gives_loss=count - 1 in numbers,
        )


def micro_batch_count(work: Workload, config: Config) -> int:
    """Forward passes per rank and step."""
    return work.global_batch // (config.dp * config.micro_batch)


def in_buckets(config: Config) -> bool:
    """Whether gradients live in buckets of DistributedDataParallel, for good."""
    return (
        config.dp_replicate > 1
        and config.dp_shard == config.tp == config.cp == config.stages_per_rank == 1
    )


def in_flight(config: Config, count: int, place: int) -> int:
    """Passes through single stages whose backward pass has yet to come, at most, of `count` each.

    1F1B starts its first backward pass when the first micro-batch is back from the stages after
    it; looped schedules warm up two steps for each rank after this one and a round for each
    further stage; folded ones never hold more than 1F1B does on its first rank. Zero-bubble
    schedules keep what the split-off part of a backward pass needs for about as long.
    """
    stages = config.stages_per_rank
    match config.pipeline_schedule:
        case _ if config.pp == 1:
            return 1
        case Schedule.GPIPE | Schedule.LOOPED_BFS:
            return count * stages
        case Schedule.ONE_F_ONE_B:
            return min(count, config.pp - place)
        case Schedule.INTERLEAVED | Schedule.INTERLEAVED_ZERO_BUBBLE:
            each_round = count // max(1, count // config.pp)
            warm_up = (stages - 1) * each_round + 2 * (config.pp - 1 - place)
            return min(count * stages, warm_up + 1)
        case _:
            return min(count * stages, stages * config.pp + 1)


def _stage(work: Workload, config: Config, number: int) -> StageShare:
    count = config.stage_count
    size = work.layer_count // count
    layers = range(number * size, (number + 1) * size)
    ends = {"first": number == 0, "last": number == count - 1}
    whole = edge_weights(work, **ends)
    own = edge_weights(work, **ends, tp=config.tp)
    for layer in layers:
        whole += layer_weights(work, layer)
        own += layer_weights(work, layer, tp=config.tp, ep=config.ep)
    shards, expert_shards = 1, 1.0
    if config.dp_shard > 1:  # experts over fewer ranks
        shards = config.dp_shard * config.cp
        expert_shards = shards / config.ep
    held = own.plain / shards + own.routed / expert_shards
    return StageShare(layers=layers, whole=whole.total, held=held)


FP32_BYTES = 4
NUMBER_BYTES = {Precision.FP32: 4, Precision.BF16: 2}
REDUCTION_BYTES = {Reduction.FP32: 4, Reduction.BF16: 2}
MOMENTS = 2  # AdamW keeps two numbers for each parameter, in the parameter's format
GATHERED_LAYERS = 2  # the layer at work and the next one
RUNTIME_BYTES = {DeviceKind.CPU: 8 << 20, DeviceKind.CUDA: 64 << 20}
"""What a rank takes without any model: process groups with their buffers and threads, and the
interpreter's own growth; on a GPU the libraries' workspaces."""
SHARDING_BYTES = 12 << 20
"""What the code and the tables of distributed tensors take on the host."""
GRID_BYTES = 8 << 20
"""What a second axis of sharded data parallelism adds on the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes on the rank that needs most, at the moment at which it needs most."""

    moment: Literal["setup", "passes", "update", "serving"]
    parameters_bytes: float
    gradients_bytes: float = 0
    optimizer_bytes: float = 0
    activations_bytes: float = 0
    loss_bytes: float = 0
    buffers_bytes: float = 0
    cache_bytes: float = 0
    runtime_bytes: float = 0

    @property
    def parts(self) -> Mapping[str, int]:
        """Bytes of every part, by its name."""
        return {name: round(getattr(self, f"{name}_bytes")) for name in PARTS}

    @property
    def total_bytes(self) -> int:
        """All parts together."""
        return sum(self.parts.values())


PARTS = tuple(
    field.name.removesuffix("_bytes")
    for field in fields(MemoryEstimate)
    if field.name.endswith("_bytes")
)
"""Names of the parts of an estimate."""


def estimate_memory(work: Workload, config: Config, device: DeviceKind) -> MemoryEstimate:
    """The estimate of a configuration that breaks no rule."""
    if work.output_length:
        return _serving(work, config, device)
    moments = (
        moment
        for share in shares(work, config)
        for moment in (
            _setup(share, device),
            _passes(share, device),
            _update(share, device),
        )
    )
    return max(moments, key=lambda estimate: estimate.total_bytes)


def _runtime_bytes(config: Config, device: DeviceKind) -> int:
    """What a rank takes without any model; on a CPU fitted to the study of `landscape.py`."""
    if device is DeviceKind.CUDA:
        return RUNTIME_BYTES[device]
    spread = SHARDING_BYTES if config.tp > 1 or config.dp_shard > 1 else 0
    grid = GRID_BYTES if config.dp_shard > 1 and config.dp_replicate > 1 else 0
    return RUNTIME_BYTES[device] + spread + grid


def _setup(share: Share, device: DeviceKind) -> MemoryEstimate:
    """Stages are built whole and in fp32, one after the other, then converted and cut."""
    size = share.number_bytes
    most = held = 0.0
    for stage in share.stages:
        most = max(most, held + FP32_BYTES * stage.whole, held + size * (stage.whole + stage.held))
        held += size * stage.held
    return MemoryEstimate(
        moment="setup", parameters_bytes=most, runtime_bytes=_runtime_bytes(share.config, device)
    )


def _passes(share: Share, device: DeviceKind) -> MemoryEstimate:
    """The start of a backward pass with every other micro-batch in flight that there can be."""
    held = share.number_bytes * share.held
    activations = share.activation_bytes * share.tokens * _kept_per_token(share, device)
    loss = share.tokens * _loss_bytes_per_token(share)
    flow = share.activation_bytes * share.tokens * _flow_per_token(share, device)
    if share.config.autocasts:
        activations += share.tokens * _autocast_bytes_per_token(share)
    gradients = _gradient_bytes(share)
    if micro_batch_count(share.work, share.config) == 1 and not in_buckets(share.config):
        # They come as activations go.
        gradients = max(0.0, gradients - activations - loss)
    return MemoryEstimate(
        moment="passes",
        parameters_bytes=held,
        gradients_bytes=gradients,
        optimizer_bytes=MOMENTS * held,
        # The loss is done when the first layer goes back.
        activations_bytes=activations + max(0.0, flow - loss),
        loss_bytes=loss,
        buffers_bytes=_gathered_bytes(share) + _cast_bytes(share),
        runtime_bytes=_runtime_bytes(share.config, device),
    )


def _update(share: Share, device: DeviceKind) -> MemoryEstimate:
    """Going over all parameters in one operation takes one more number for each of them."""
    config = share.config
    held = share.number_bytes * share.held
    copies = 2 if in_buckets(config) and not config.ddp_bucket_view else 1
    more = 1 if config.optimizer_loop is OptimizerLoop.FOREACH else 0
    return MemoryEstimate(
        moment="update",
        parameters_bytes=held,
        gradients_bytes=copies * held,
        optimizer_bytes=(MOMENTS + more) * held,
        runtime_bytes=_runtime_bytes(share.config, device),
    )


def _kept_per_token(share: Share, device: DeviceKind) -> float:
    """Numbers that all micro-batches in flight keep for their backward passes.

    What the first part of a split backward pass computes again, it keeps for the second.
    """
    work, config = share.work, share.config
    if config.splits_backward:
        config = replace(config, activation_checkpointing=Checkpointing.NONE)
    chunks = in_flight(config, micro_batch_count(work, config), share.place)
    stage_count = len(share.stages)
    kept = (
        sum(layer_kept(work, layer, config, device) for layer in share.layers)
        / stage_count
        * chunks
    )
    if share.gives_loss:  # what the last norm and the head keep
        kept += NORM_KEPT[device] * _input(work, config) + work.hidden_size
    return kept


def _autocast_bytes_per_token(share: Share) -> float:
    """What layers keep in addition where autocast makes copies for matrix products.

    Hidden states between layers stay in fp32, and each product has its own copy in bf16 of what
    a norm gives: of the three to queries, keys and values, and the two into the inner space.
    """
    kept = 1 if share.config.activation_checkpointing is Checkpointing.FULL else 5
    copied = NUMBER_BYTES[Precision.BF16] * share.work.hidden_size
    return kept * copied * share.layer_count


def _cast_bytes(share: Share) -> float:
    """Parameters in bf16, which autocast keeps until the backward pass has used them."""
    return NUMBER_BYTES[Precision.BF16] * share.unsharded if share.config.autocasts else 0


def _flow_per_token(share: Share, device: DeviceKind) -> float:
    """Numbers of one layer on its way back: its gradients, and what it had to compute again."""
    work, config = share.work, share.config
    again = config.activation_checkpointing is not Checkpointing.NONE
    flows = []
    for layer in share.layers:
        inner = work.ffn_size
        if has_experts(work, layer):
            inner = work.experts_per_token * work.expert_ffn_size
        whole = layer_whole(work, layer, config, device) if again else 0
        flows.append(2 * work.hidden_size + 3 * inner / config.tp + whole)
    return max(flows)


def _loss_bytes_per_token(share: Share) -> float:
    """Logits of one micro-batch: in fp32 their logarithms, and twice their gradient.

    Sliced logits take a third temporary. A pipeline keeps logits and logarithms of every
    micro-batch that is not yet on its way back.
    """
    work, config = share.work, share.config
    if not share.gives_loss:
        return 0
    size = share.activation_bytes
    sliced = config.tp > 1 and config.loss_parallel
    vocabulary = work.vocab_size / (config.tp if sliced else 1)
    one = (4 if sliced else 3) * FP32_BYTES + (size if size != FP32_BYTES else 0)
    if config.pp == 1:
        return vocabulary * one
    waiting = in_flight(config, micro_batch_count(work, config), share.place) / len(share.stages)
    return vocabulary * (one + size + max(0.0, waiting - 1) * (size + FP32_BYTES))


def _gradient_bytes(share: Share) -> float:
    """Of sharded parameters they stay whole until a step's last micro-batch goes back."""
    config = share.config
    size = share.number_bytes
    if config.dp_shard == 1:
        copies = 2 if in_buckets(config) and not config.ddp_bucket_view else 1
        return copies * size * share.unsharded
    reduced = REDUCTION_BYTES.get(config.fsdp_reduction, size)
    alone = micro_batch_count(share.work, config) == 1
    whole = 2 * share.largest_layer if alone else share.unsharded + share.largest_layer
    return reduced * whole


def _gathered_bytes(share: Share) -> float:
    """Parameters that are put together from shards for the passes through them."""
    config = share.config
    if config.dp_shard == 1:
        return 0
    size = share.number_bytes
    if not config.reshards:
        return size * (share.unsharded + share.largest_layer)
    layers = min(GATHERED_LAYERS + config.fsdp_prefetch, 1 + share.layer_count)
    return size * (share.edge + layers * share.largest_layer)


def _serving(work: Workload, config: Config, device: DeviceKind) -> MemoryEstimate:
    """While the model is built whole, or while prompts are read into the cache.

    Of logits there are those of one place, in parts, whole and in fp32.
    """
    size = NUMBER_BYTES[work.precision]
    (share,) = shares(work, config)
    length = work.sequence_length + work.output_length
    keys = 2 * work.layer_count * kv_size(work) / config.tp
    prompt = config.micro_batch * work.sequence_length
    setup = MemoryEstimate(
        moment="setup",
        parameters_bytes=FP32_BYTES * share.stages[0].whole,
        runtime_bytes=_runtime_bytes(config, device),
    )
    serving = MemoryEstimate(
        moment="serving",
        parameters_bytes=size * share.held,
        activations_bytes=size * prompt * _read_per_token(work, config),
        loss_bytes=FP32_BYTES * config.micro_batch * work.vocab_size * 3,
        cache_bytes=size * config.micro_batch * length * keys,
        runtime_bytes=_runtime_bytes(config, device),
    )
    return max(setup, serving, key=lambda estimate: estimate.total_bytes)


def _read_per_token(work: Workload, config: Config) -> float:
    """Numbers per token in the layer that needs most: on its way, opened, and between."""
    widths = []
    if not work.expert_count or work.dense_layer_count:
        widths.append(3 * work.ffn_size / config.tp)
    if work.expert_count:
        opened = 3 * work.expert_ffn_size / config.tp
        widths.append(work.experts_per_token * (2 * work.hidden_size + opened))
    return 3 * work.hidden_size + max(widths)
