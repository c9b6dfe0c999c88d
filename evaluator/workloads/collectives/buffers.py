"""The tensors of a call, and whether what came out of it is right.

Values are small whole numbers, which every number format holds exactly.
"""

from typing import Final

import torch
from torch import Tensor

from evaluator.workloads.collectives.adapters.adapter import Tensors
from evaluator.workloads.collectives.operations import Collective, Operation, ReduceOp

_ROOT: Final = 0
_IN_PLACE: Final = (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE)
_SINGLE: Final = (
    Collective.ALL_GATHER_SINGLE,
    Collective.REDUCE_SCATTER_SINGLE,
    Collective.ALL_TO_ALL_SINGLE,
)
_SUMMANDS: Final = 5
_FACTORS: Final = 8
"""So many ranks multiply by 2 or 4: the product of more would not fit into float16."""
_MOVED: Final = 251
"""A prime, so that parts of a power of two of elements differ; bfloat16 ends counting at 256."""
_PERIOD: Final = 2 * _SUMMANDS * _MOVED
"""After so many elements all values repeat."""


def tensors_for(operation: Operation, rank: int, world_size: int, device: torch.device) -> Tensors:
    """Make what this rank passes, filled so that calls in a row change nothing.

    The tensors of a list are the parts, side by side, of one tensor.
    """
    # A sum of zeros is zero, a product of ones is one: no format drifts, however many calls follow.
    adds = operation.reduces and operation.reduce_op in (ReduceOp.SUM, ReduceOp.AVG)
    count, dtype = operation.element_count, operation.dtype.torch

    def made(part_count: int) -> tuple[Tensor, ...]:
        if not part_count:
            return ()
        # Written to, unlike zeros from the system, which would all be one page of memory.
        whole = torch.full((part_count * count,), 0 if adds else 1, dtype=dtype, device=device)
        single = operation.collective in _SINGLE
        return (whole,) if single else whole.view(part_count, count).unbind()

    sent, received = _part_counts(operation.collective, rank, world_size)
    inputs = made(sent)
    outputs = inputs if operation.collective in _IN_PLACE else made(received)
    return Tensors(inputs=inputs, outputs=outputs)


def refill(operation: Operation, tensors: Tensors, rank: int) -> None:
    """Give the inputs values that tell ranks and places apart, and clear the outputs.

    Enough for `mismatch` after one call; another call in place would work on the outcome.
    """
    if operation.collective not in _IN_PLACE:
        for output in tensors.outputs:
            output.zero_()
    values = _sent(operation, rank)
    for place, part in enumerate(_parts(operation, tensors.inputs)):
        part.copy_(_repeated(values, part, start=place * operation.element_count))


def mismatch(operation: Operation, tensors: Tensors, rank: int, world_size: int) -> str | None:
    """What is wrong with the outputs of one call after `refill`, in one line; None if nothing.

    Of a reduce only the root's tensor counts.
    """
    if operation.collective is Collective.REDUCE and rank != _ROOT:
        return None
    tolerance = _tolerance(operation, world_size)
    for place, part in enumerate(_parts(operation, tensors.outputs)):
        values, start = _received(operation, place, rank, world_size)
        right = _repeated(values, part, start=start)
        wrong = torch.isclose(part, right, rtol=tolerance, atol=0.0).logical_not_()
        if bool(wrong.any()):
            first = int(wrong.nonzero()[0])
            return (
                f"{operation}: rank {rank} got {part[first].item()} instead of "
                f"{right[first].item()} at element {first} of part {place}; "
                f"{int(wrong.sum())} of its {len(part)} elements are wrong"
            )
    return None


def _part_counts(collective: Collective, rank: int, world_size: int) -> tuple[int, int]:
    """How many messages this rank passes in, and how many come out."""
    match collective:
        case Collective.ALL_GATHER | Collective.ALL_GATHER_SINGLE:
            return 1, world_size
        case Collective.REDUCE_SCATTER | Collective.REDUCE_SCATTER_SINGLE:
            return world_size, 1
        case Collective.ALL_TO_ALL | Collective.ALL_TO_ALL_SINGLE:
            return world_size, world_size
        case Collective.SCATTER:
            return world_size if rank == _ROOT else 0, 1
        case Collective.GATHER:
            return 1, world_size if rank == _ROOT else 0
        case Collective.SEND_RECV:
            paired = int(rank ^ 1 < world_size)
            return paired, paired
        case Collective.BARRIER:
            return 0, 0
        case _:
            return 1, 1


def _parts(operation: Operation, tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """One tensor a message, also of those that are the parts of a single one."""
    count = operation.element_count
    return [part for tensor in tensors for part in tensor.view(-1, count).unbind()]


def _sent(operation: Operation, rank: int) -> Tensor:
    """What a rank sends, element for element until it repeats."""
    places = torch.arange(_PERIOD, dtype=torch.float64)
    if not operation.reduces:
        return 1 + (31 * rank + places) % _MOVED
    if operation.reduce_op is not ReduceOp.PRODUCT:
        return 1 + (rank + places) % _SUMMANDS
    odd = (rank + places) % 2
    return 2 ** (1 + odd) if rank < _FACTORS else 1 - 2 * odd


def _received(operation: Operation, place: int, rank: int, world_size: int) -> tuple[Tensor, int]:
    """What comes out as the message at `place`, and with which element of it that starts."""
    own_part = rank * operation.element_count
    match operation.collective:
        case Collective.ALL_REDUCE | Collective.REDUCE:
            return _reduced(operation, world_size), 0
        case Collective.REDUCE_SCATTER | Collective.REDUCE_SCATTER_SINGLE:
            return _reduced(operation, world_size), own_part
        case Collective.ALL_TO_ALL | Collective.ALL_TO_ALL_SINGLE:
            return _sent(operation, place), own_part
        case Collective.SCATTER:
            return _sent(operation, _ROOT), own_part
        case Collective.BROADCAST:
            return _sent(operation, _ROOT), 0
        case Collective.SEND_RECV:
            return _sent(operation, rank ^ 1), 0
        case _:
            return _sent(operation, place), 0


def _reduced(operation: Operation, world_size: int) -> Tensor:
    """What all ranks' values become."""
    values = torch.stack([_sent(operation, rank) for rank in range(world_size)])
    match operation.reduce_op:
        case ReduceOp.SUM:
            return values.sum(dim=0)
        case ReduceOp.AVG:
            return values.mean(dim=0)
        case ReduceOp.MIN:
            return values.amin(dim=0)
        case ReduceOp.MAX:
            return values.amax(dim=0)
        case ReduceOp.PRODUCT:
            return values.prod(dim=0)


def _repeated(values: Tensor, part: Tensor, *, start: int) -> Tensor:
    """These values from one of them on, as many as `part` has and in its format."""
    turned = values.roll(-(start % _PERIOD)).to(device=part.device, dtype=part.dtype)
    return turned.repeat(-(-len(part) // _PERIOD))[: len(part)]


def _tolerance(operation: Operation, world_size: int) -> float:
    """How far, relatively, rounding may take a correct outcome from the right one."""
    if operation.dtype.is_integer or not operation.reduces:
        return 0.0
    epsilon = torch.finfo(operation.dtype.torch).eps
    match operation.reduce_op:
        case ReduceOp.AVG:
            return world_size * epsilon
        case ReduceOp.SUM:
            exact = _SUMMANDS * world_size <= 2 / epsilon
            return 0.0 if exact else world_size * epsilon
        case _:
            return 0.0
