"""A training step from sizes alone: what computes, what communicates, and what waits.

Nothing is taken to be hidden behind anything else: weights of the parts, fitted to measured steps,
tell how much of each shows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from evaluator.estimate import communication as sent
from evaluator.estimate.compute import (
    BACKWARD,
    forward_flops,
    operators,
    recomputed_flops,
    sliced_operators,
)
from evaluator.estimate.machine import Group, Machine
from evaluator.estimate.traffic import Traffic
from evaluator.memory.estimate import NUMBER_BYTES
from evaluator.memory.shares import SPLIT_BACKWARD, Share, micro_batch_count, shares
from evaluator.rank.job import Config, OptimizerLoop, Workload

UPDATE_TOUCHES = 7
"""Reads and writes of an update for each parameter: of itself, its gradient and its moments."""
UPDATE_OPERATORS = 12
LAYER_TENSORS = 9
STEP_OPERATORS = 500
"""What comes once in a step: to draw a batch, to forget gradients, to begin and to end."""
SPLIT_BUBBLE = 1 / 3
"""What is left of a bubble that the gradients of weights may fill."""

Counted: TypeAlias = Callable[[Share], float]
Exchanged: TypeAlias = tuple[Callable[[Share], Traffic], Callable[[Config], Group]]

_EXCHANGED: Mapping[str, Exchanged] = {
    "tensor_communication": (sent.tensor_traffic, sent.tensor_group),
    "context_communication": (sent.context_traffic, sent.context_group),
    "expert_communication": (sent.expert_traffic, sent.expert_group),
    "pipeline_transfers": (sent.pipeline_traffic, sent.pipeline_group),
}
_EXCHANGED_ONCE: Sequence[Exchanged] = (
    (sent.gathered_traffic, sent.shard_group),
    (sent.reduced_traffic, sent.shard_group),
    (sent.replicated_traffic, sent.replica_group),
    (sent.routed_traffic, sent.copies_group),
)


def estimated_training(
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
    config = places[0].config
    return sum(
        max(machine.exchange(traffic(share), group(config)) for share in places)
        for traffic, group in exchanged
        if machine.leaves_node(group(config)) is between_nodes
    )


def _idle_micro_batches(config: Config, machine: Machine) -> float:
    """How long a rank waits for others of its pipeline, in times of one micro-batch.

    While a rank waits, another that shares its core goes on.
    """
    idle = max(0.0, config.pp / machine.crowding - 1) / config.stages_per_rank
    return idle * SPLIT_BUBBLE if config.pipeline_schedule in SPLIT_BACKWARD else idle


def _updating(places: Sequence[Share], machine: Machine) -> float:
    number_bytes = NUMBER_BYTES[places[0].work.precision]
    seconds = [
        share.held * number_bytes * UPDATE_TOUCHES / machine.memory_bytes_per_s
        + _update_operators(share, machine) * machine.dispatch_s
        for share in places
    ]
    return machine.together(seconds)


def _update_operators(share: Share, machine: Machine) -> int:
    tensors = LAYER_TENSORS * share.layer_count
    loop = share.config.optimizer_loop
    steps = 1 if loop is OptimizerLoop.FUSED else UPDATE_OPERATORS
    at_once = loop is not OptimizerLoop.FOR_LOOP and machine.joins_tensors
    return steps * (1 if at_once else tensors)
