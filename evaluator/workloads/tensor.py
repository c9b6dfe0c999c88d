"""Tensor parallelism: every matrix cut along the tp axis, and the sequence too between them."""

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
from evaluator.workloads.decoder import Decoder
from evaluator.workloads.expert_parallel import expert_plan
from evaluator.workloads.experts import ExpertLayer

Plan = dict[str, ParallelStyle]


def slice_tensors(model: Decoder, config: Config, tp: DeviceMesh) -> None:
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
