"""The model spread over the ranks: tensor slices, recomputation, shards and replicas."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import create_selective_checkpoint_contexts, noop_context_fn

from evaluator.rank.job import Checkpointing, Config
from evaluator.workloads.decoder import Decoder

_AXES = ("pp", "dp_replicate", "dp_shard", "tp")
"""Outermost first: neighbours in rank share the axis that talks most."""

_aten = torch.ops.aten
_EXPENSIVE_OPERATORS = [
    _aten.mm.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
]


@dataclass(frozen=True, slots=True)
class Layout:
    """The ranks as a grid with one axis per kind of parallelism that is in use."""

    mesh: DeviceMesh | None
    """`None` on a single rank. An axis of one rank is left out: it would cost a group."""

    def axis(self, *names: str) -> DeviceMesh | None:
        """The ranks along the named axes through this rank; `None` if no such axis is in use."""
        if self.mesh is None:
            return None
        used = tuple(name for name in names if name in (self.mesh.mesh_dim_names or ()))
        return self.mesh[used] if used else None

    def place(self, name: str) -> int:
        """Give this rank's number along an axis."""
        axis = self.axis(name)
        return 0 if axis is None else axis.get_local_rank()


def open_layout(config: Config, device: torch.device) -> Layout:
    """Connect the ranks along every axis in use; every rank must call it."""
    sizes = {name: getattr(config, name) for name in _AXES}
    used = [name for name in _AXES if sizes[name] > 1]
    if not used:
        return Layout(None)
    mesh = init_device_mesh(
        device.type, tuple(sizes[name] for name in used), mesh_dim_names=tuple(used)
    )
    return Layout(mesh)


def spread(model: Decoder, config: Config, layout: Layout) -> nn.Module:
    """Turn this rank's stage of the model, on its device, into its share of the work."""
    tp = layout.axis("tp")
    if tp is not None:
        _slice_tensors(model, tp)
    _recompute(model, config.activation_checkpointing)
    replicas = layout.axis("dp_replicate", "dp_shard")
    if replicas is None:
        return model
    if config.dp_shard > 1:
        return _shard(model, replicas, reshard_after_forward=config.pp == 1)
    if tp is not None:
        return _replicate(model, replicas)
    return DistributedDataParallel(
        model,
        process_group=replicas.get_group(),
        forward_sync_buffers=False,
        gradient_as_bucket_view=True,
    )


def _slice_tensors(model: Decoder, tp: DeviceMesh) -> None:
    """Tensor parallelism with sequence parallelism between the sliced layers.

    Every parameter becomes a DTensor, so that the optimizer can update all of them together.
    """
    outer: dict[str, ParallelStyle] = {}
    if model.embedding is not None:
        outer["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    if model.head is not None:
        outer["norm"] = SequenceParallel()
        outer["head"] = ColwiseParallel(input_layouts=Shard(1))
    parallelize_module(model, tp, outer)
    for block in model.blocks:
        parallelize_module(block, tp, _block_plan())


def _block_plan() -> dict[str, ParallelStyle]:
    return {
        "attention_norm": SequenceParallel(),
        "attention": _gather_sequence(),
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.output": RowwiseParallel(output_layouts=Shard(1)),
        "feed_forward_norm": SequenceParallel(),
        "feed_forward": _gather_sequence(),
        "feed_forward.gate": ColwiseParallel(),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(output_layouts=Shard(1)),
    }


def _gather_sequence() -> PrepareModuleInput:
    return PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))


def _recompute(model: Decoder, checkpointing: Checkpointing) -> None:
    if checkpointing is Checkpointing.NONE:
        return
    kept = _EXPENSIVE_OPERATORS if checkpointing is Checkpointing.SELECTIVE else []
    for i, block in enumerate(model.blocks):
        model.blocks[i] = checkpoint_wrapper(
            block,
            preserve_rng_state=False,  # nothing here draws random numbers
            context_fn=partial(create_selective_checkpoint_contexts, kept)
            if kept
            else noop_context_fn,
        )


def _shard(model: Decoder, replicas: DeviceMesh, *, reshard_after_forward: bool) -> nn.Module:
    """Shard over the last axis, replicate over the one before it if there is one.

    In a pipeline the caller keeps parameters whole between micro-batches: to gather them for
    every one would cost more than the memory is worth.
    """
    for block in model.blocks:
        fully_shard(block, mesh=replicas, reshard_after_forward=reshard_after_forward)
    # What only the root holds is needed again at once, by the backward pass.
    fully_shard(model, mesh=replicas, reshard_after_forward=False)
    return _sum_only(model, replicas)


def _replicate(model: Decoder, replicas: DeviceMesh) -> nn.Module:
    """Replicas of a sliced model: DistributedDataParallel does not take DTensors."""
    for block in model.blocks:
        replicate(block, mesh=replicas)
    replicate(model, mesh=replicas)
    return _sum_only(model, replicas)


def _sum_only(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Keep to reductions that gloo has: it cannot scale while it adds."""
    if mesh.device_type == "cpu":
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
    return model
