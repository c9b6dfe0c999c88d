"""Tensor parallelism without gradients: plain slices of the matrices, joined by collectives.

Decoding is many small operations, for which distributed tensors would take longer than the
operations themselves.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from evaluator.workloads.decoder import Attention, Block, Decoder
from evaluator.workloads.experts import Experts
from evaluator.workloads.feed_forward import FeedForward

_OUTPUTS, _INPUTS = -2, -1
"""Dimensions of a linear layer's matrix, and of those of experts on a stack."""


def slice_for_inference(model: Decoder, tp: DeviceMesh) -> None:
    """Cut a whole model, so that each rank computes with some heads and some columns."""
    if model.embedding is not None:
        _cut(model.embedding.weight, -1, tp)  # a token's vector, not the vocabulary
        model.embedding.register_forward_hook(partial(_gather, tp))
    if model.head is not None:
        _cut(model.head.weight, _OUTPUTS, tp)
        model.head.register_forward_hook(partial(_gather, tp))
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
    """Keep this rank's even part, in memory of its own so that the whole can go."""
    matrix.data = matrix.data.chunk(tp.size(), dimension)[tp.get_local_rank()].clone()


def _add_up(tp: DeviceMesh, module: nn.Module, inputs: object, output: Tensor) -> Tensor:  # noqa: ARG001 - a hook
    """Turn what this rank's heads or columns contribute into the whole."""
    dist.all_reduce(output, group=tp.get_group())
    return output


def _gather(tp: DeviceMesh, module: nn.Module, inputs: object, output: Tensor) -> Tensor:  # noqa: ARG001 - a hook
    """Turn some columns of the output into all of them."""
    parts = [torch.empty_like(output) for _ in range(tp.size())]
    dist.all_gather(parts, output, group=tp.get_group())
    return torch.cat(parts, dim=-1)
