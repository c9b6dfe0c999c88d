"""How much memory a configuration of the built-in recipe takes, from sizes alone.

The estimate is for the rank that needs most. It tells configurations that cannot fit from those
that may; it is no result.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal

from evaluator.memory.layer_sizes import head_kept, kv_size, layer_flow, layer_kept, layer_whole
from evaluator.memory.shares import (
    SPLIT_BACKWARD,
    Share,
    in_buckets,
    in_flight,
    micro_batch_count,
    shares,
)
from evaluator.rank.job import (
    Checkpointing,
    Config,
    DeviceKind,
    OptimizerLoop,
    Precision,
    Reduction,
    Reshard,
    Workload,
)

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


def estimated_memory(work: Workload, config: Config, device: DeviceKind) -> MemoryEstimate:
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
    size = NUMBER_BYTES[share.work.precision]
    most = held = 0.0
    for stage in share.stages:
        most = max(most, held + FP32_BYTES * stage.whole, held + size * (stage.whole + stage.held))
        held += size * stage.held
    return MemoryEstimate(
        moment="setup", parameters_bytes=most, runtime_bytes=_runtime_bytes(share.config, device)
    )


def _passes(share: Share, device: DeviceKind) -> MemoryEstimate:
    """The start of a backward pass with every other micro-batch in flight that there can be."""
    size = NUMBER_BYTES[share.work.precision]
    held = size * share.held
    activations = size * share.tokens * _kept_per_token(share, device)
    loss = share.tokens * _loss_bytes_per_token(share)
    flow = size * share.tokens * _flow_per_token(share, device)
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
        buffers_bytes=_gathered_bytes(share),
        runtime_bytes=_runtime_bytes(share.config, device),
    )


def _update(share: Share, device: DeviceKind) -> MemoryEstimate:
    """To go over all parameters at once takes one more number for each of them."""
    config = share.config
    held = NUMBER_BYTES[share.work.precision] * share.held
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
    if config.pp > 1 and config.pipeline_schedule in SPLIT_BACKWARD:
        config = replace(config, activation_checkpointing=Checkpointing.NONE)
    chunks = in_flight(config, micro_batch_count(work, config), share.place)
    stage_count = len(share.stages)
    layers = [layer for stage in share.stages for layer in stage.layers]
    kept = sum(layer_kept(work, layer, config, device) for layer in layers) / stage_count * chunks
    if share.gives_loss:
        kept += head_kept(work, config, device)
    return kept


def _flow_per_token(share: Share, device: DeviceKind) -> float:
    """Numbers of one layer on its way back: its gradients, and what it had to compute again."""
    work, config = share.work, share.config
    again = config.activation_checkpointing is not Checkpointing.NONE
    return max(
        layer_flow(work, layer, config) + (layer_whole(work, layer, config, device) if again else 0)
        for stage in share.stages
        for layer in stage.layers
    )


def _loss_bytes_per_token(share: Share) -> float:
    """Logits of one micro-batch: in fp32 their logarithms, and twice their gradient.

    Sliced logits take a third temporary. A pipeline keeps logits and logarithms of every
    micro-batch that is not yet on its way back.
    """
    work, config = share.work, share.config
    if not share.gives_loss:
        return 0
    size = NUMBER_BYTES[work.precision]
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
    size = NUMBER_BYTES[share.work.precision]
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
    size = NUMBER_BYTES[share.work.precision]
    drops = config.fsdp_reshard is Reshard.ALWAYS or (
        config.fsdp_reshard is Reshard.AUTO and config.pp == 1
    )
    if not drops:
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
    """Numbers per token at once in the layer that needs most: on its way, opened, and between."""
    widths = []
    if not work.expert_count or work.dense_layer_count:
        widths.append(3 * work.ffn_size / config.tp)
    if work.expert_count:
        opened = 3 * work.expert_ffn_size / config.tp
        widths.append(work.experts_per_token * (2 * work.hidden_size + opened))
    return 3 * work.hidden_size + max(widths)
