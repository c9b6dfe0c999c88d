"""Tensor parallelism: every matrix cut along the tp axis.

Training uses distributed tensors, and may cut the sequence too between the matrices. Inference
uses plain slices joined by collectives: decoding is many small operations, for which distributed
tensors would take longer than the operations themselves.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from evaluator.rank.job import Config
from evaluator.workloads.expert_parallel import expert_plan
from evaluator.workloads.model import Attention, Block, Decoder, ExpertLayer, Experts, FeedForward

Plan = dict[str, ParallelStyle]


def apply_tensor_parallel(model: Decoder, config: Config, tp: DeviceMesh) -> None:
    """Cut a stage's parameters, so that each rank computes with some heads and some columns.

    With sequence parallelism each rank holds a part of the sequence between the cut layers;
    with loss parallelism the logits stay cut along the vocabulary.
    """
    between = Shard(1) if config.sequence_parallel else Replicate()
    outer: Plan = {}
    if model.embedding is not None:
        outer["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
    if model.head is not None:
        logits = Shard(-1) if config.loss_parallel else Replicate()
        outer["head"] = ColwiseParallel(input_layouts=between, output_layouts=logits)
        if config.sequence_parallel:
            outer["norm"] = SequenceParallel()
    parallelize_module(model, tp, outer)
    for block in model.blocks:
        layer = block.feed_forward
        feed_forward = (
            expert_plan(layer, between) if isinstance(layer, ExpertLayer) else _dense_plan(between)
        )
        parallelize_module(block, tp, _block_plan(between, config.sequence_parallel) | feed_forward)


def _block_plan(between: Shard | Replicate, sequence_parallel: bool) -> Plan:
    plan: Plan = {
        "attention": _gather(between),
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.output": RowwiseParallel(output_layouts=between),
    }
    if sequence_parallel:
        plan |= {"attention_norm": SequenceParallel(), "feed_forward_norm": SequenceParallel()}
    return plan


def _dense_plan(between: Shard | Replicate) -> Plan:
    return {
        "feed_forward": _gather(between),
        "feed_forward.gate": ColwiseParallel(),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(output_layouts=between),
    }


def _gather(between: Shard | Replicate) -> PrepareModuleInput:
    return PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),))


_OUTPUTS, _INPUTS = -2, -1
"""Dimensions of a linear layer's matrix, and of those of experts on a stack."""


def apply_inference_tensor_parallel(model: Decoder, tp: DeviceMesh) -> None:
    """Cut a whole model, so that each rank computes with some heads and some columns."""
    if model.embedding is not None:
        _cut(model.embedding.weight, -1, tp)  # a token's vector, not the vocabulary
        model.embedding.register_forward_hook(partial(_slices_gather, tp))
    if model.head is not None:
        _cut(model.head.weight, _OUTPUTS, tp)
        model.head.register_forward_hook(partial(_slices_gather, tp))
    for part in model.modules():
        match part:
            case Attention(query=query, key=key, value=value, output=output):
                _cut_pair((query.weight, key.weight, value.weight), output.weight, tp)
            case FeedForward(gate=gate, up=up, down=down):
                _cut_pair((gate.weight, up.weight), down.weight, tp)
            case Experts(gate=gate, up=up, down=down):
                _cut_pair((gate, up), down, tp)
            case Block(attention=attention, feed_forward=feed_forward):
                attention.register_forward_hook(partial(_add_up, tp))
                feed_forward.register_forward_hook(partial(_add_up, tp))


def _cut_pair(inner: Sequence[Tensor], outer: Tensor, tp: DeviceMesh) -> None:
    """Cut matrices that follow each other, so that no rank needs another's part in between."""
    for matrix in inner:
        _cut(matrix, _OUTPUTS, tp)
    _cut(outer, _INPUTS, tp)


def _cut(matrix: Tensor, dimension: int, tp: DeviceMesh) -> None:
    """Keep this rank's even part, in separate memory so that the whole can go."""
    matrix.data = matrix.data.chunk(tp.size(), dimension)[tp.get_local_rank()].clone()


def _add_up(tp: DeviceMesh, module: nn.Module, inputs: object, output: Tensor) -> Tensor:  # noqa: ARG001 - a hook
    """Turn what this rank's heads or columns contribute into the whole."""
    dist.all_reduce(output, group=tp.get_group())
    return output


def _slices_gather(tp: DeviceMesh, module: nn.Module, inputs: object, output: Tensor) -> Tensor:  # noqa: ARG001 - a hook
    """Turn some columns of the output into all of them."""
    parts = [torch.empty_like(output) for _ in range(tp.size())]
    dist.all_gather(parts, output, group=tp.get_group())
    return torch.cat(parts, dim=-1)
