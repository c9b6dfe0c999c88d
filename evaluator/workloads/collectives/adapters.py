"""What all adapters share: membership of a group, refusals, the ping-pong, and the buffers.

Buffers hold small whole numbers, which every number format represents exactly.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from evaluator.workloads.collectives.operations import (
    AdapterName,
    Call,
    Collective,
    Operation,
    Pending,
    ReduceOp,
    Start,
    Tensors,
    UnsupportedError,
)

ROOT: Final = 0
_IN_PLACE: Final = (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE)
_ROOTED: Final = (Collective.BROADCAST, Collective.REDUCE, Collective.SCATTER, Collective.GATHER)
_LISTED_INPUTS: Final = (Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL, Collective.SCATTER)
_LISTED_OUTPUTS: Final = (Collective.ALL_GATHER, Collective.ALL_TO_ALL, Collective.GATHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The place of this process in the group, and what carries its bytes: gloo, Open MPI..."""

    rank: int
    size: int
    backend: str


class CommAdapter(ABC):
    """A library and the group of all ranks. Rank 0 is the root of calls that have one.

    Everything but `init` raises `RuntimeError` before `init`. A subclass sets `_membership` in
    `init` and takes it away in `finalize`.
    """

    def __init__(self, name: AdapterName) -> None:
        self.name = name
        self._membership: Membership | None = None

    @abstractmethod
    def init(self, backend: str, device: torch.device, rank: int, world_size: int) -> None:
        """Join the group of all ranks, on a device that is already bound to this process.

        Raises `UnavailableError` if the library, or its backend, cannot be used here.
        """

    @abstractmethod
    def finalize(self) -> None:
        """Leave the group; the second time nothing happens."""

    @property
    def membership(self) -> Membership:
        """Where this process is in the group."""
        if self._membership is None:
            raise RuntimeError(f"{self.name} is in no group: call init first")
        return self._membership

    @abstractmethod
    def get_backend_version(self) -> str | None:
        """Its version, None where it reports none."""

    def get_reduce_op(self, name: str) -> object:
        """Return the library's own value; raises `ValueError`, listing all, for an unknown name."""
        _ = self.membership
        ops = self._reduce_ops()
        if name not in ops:
            raise ValueError(f"{self.name} has no reduction {name!r}, only {', '.join(ops)}")
        return ops[ReduceOp(name)]

    def check(self, operation: Operation) -> None:
        """Raise `UnsupportedError`, naming adapter and operation, for a call that it lacks.

        Decides from the operation and the group alone, so that all ranks decide the same.
        """
        _ = self.membership
        reason = self._lack(operation)
        if reason is not None:
            raise UnsupportedError(f"{self.name} has no {operation}: {reason}")

    def resolve_collective(self, operation: Operation, tensors: Tensors) -> Call:
        """Return the blocking call on these tensors; it ends when the library says it is done."""
        self.check(operation)
        if operation.collective is not Collective.SEND_RECV:
            return self._bind(operation, tensors, async_op=False)
        if not tensors.inputs:
            return lambda: None
        send, receive = self._bind_both_ways(tensors, async_op=False)
        first, second = (receive, send) if self.membership.rank % 2 else (send, receive)

        def there_and_back() -> None:
            first()
            second()

        return there_and_back

    def resolve_start(self, operation: Operation, tensors: Tensors) -> Start:
        """Return what starts the call without waiting; tensors are busy until it was waited for.

        Raises `UnsupportedError` where the library only blocks.
        """
        self.check(operation)
        if operation.collective is not Collective.SEND_RECV:
            return self._bind(operation, tensors, async_op=True)
        if not tensors.inputs:
            return _Done
        send, receive = self._bind_both_ways(tensors, async_op=True)
        if self.membership.rank % 2:  # it sends its answer when the call is waited for
            return lambda: Then(receive(), lambda: send().wait())

        def start() -> Pending:
            sent, answer = send(), receive()
            return Then(sent, answer.wait)

        return start

    def run_collective(
        self, operation: Operation, tensors: Tensors, *, async_op: bool = False
    ) -> None:
        """Resolve and run once, and wait for it."""
        if async_op:
            self.resolve_start(operation, tensors)().wait()
        else:
            self.resolve_collective(operation, tensors)()

    def _bind_both_ways(self, tensors: Tensors, *, async_op: bool) -> tuple[Start, Start]:
        """To send to the other rank of the pair, and to receive from it."""
        peer = self.membership.rank ^ 1
        return (
            self._bind_message("send", tensors.inputs[0], peer, async_op=async_op),
            self._bind_message("recv", tensors.outputs[0], peer, async_op=async_op),
        )

    @abstractmethod
    def _reduce_ops(self) -> Mapping[ReduceOp, object]:
        """The library's own values."""

    @abstractmethod
    def _lack(self, operation: Operation) -> str | None:
        """Why the library lacks this call, in a few words, decided alike on all ranks."""

    @abstractmethod
    def _bind(self, operation: Operation, tensors: Tensors, *, async_op: bool) -> Start:
        """The library's call; only one that is asynchronous returns what can be waited for."""

    @abstractmethod
    def _bind_message(
        self, way: Literal["send", "recv"], tensor: Tensor, peer: int, *, async_op: bool
    ) -> Start:
        """The same for a message to or from one rank."""


def arguments(operation: Operation, tensors: Tensors, op: object) -> tuple[object, ...]:
    """Arguments in the order of torch's collectives: output, input, root and reduction.

    Each call has those that it knows; a list that only the root passes is empty elsewhere.
    """
    collective = operation.collective
    if collective is Collective.BARRIER:
        return ()
    given: list[object] = [_argument(tensors.outputs, listed=collective in _LISTED_OUTPUTS)]
    if collective not in _IN_PLACE:
        given.append(_argument(tensors.inputs, listed=collective in _LISTED_INPUTS))
    if collective in _ROOTED:
        given.append(ROOT)
    if operation.reduces:
        given.append(op)
    return tuple(given)


def lack_of(library: object, operation: Operation) -> str | None:
    """Return whether the library has no function of the collective's name."""
    needed = "send" if operation.collective is Collective.SEND_RECV else operation.collective
    return None if hasattr(library, needed) else "the installed version lacks it"


def one_line(error: Exception) -> str:
    """Return what an exception says, without line breaks; its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def _argument(tensors: tuple[Tensor, ...], *, listed: bool) -> object:
    return list(tensors) if listed else tensors[0]


class _Done:
    """A call that is over as soon as it was started."""

    def wait(self) -> None:
        """Return immediately."""


class Then:
    """A started call, and what is done once it is over."""

    def __init__(self, first: Pending, then: Call) -> None:
        self._first = first
        self._then = then

    def wait(self) -> None:
        """Wait for the call and do the rest."""
        self._first.wait()
        self._then()


_SINGLE: Final = (
    Collective.ALL_GATHER_SINGLE,
    Collective.REDUCE_SCATTER_SINGLE,
    Collective.ALL_TO_ALL_SINGLE,
)
_SUMMANDS: Final = 5
_FACTORS: Final = 8
"""This many ranks multiply by 2 or 4: the product of more would not fit into float16."""
_MOVED: Final = 251
"""A prime, so that parts of a power of two of elements differ; bfloat16 ends counting at 256."""
_PERIOD: Final = 2 * _SUMMANDS * _MOVED
"""After this many elements all values repeat."""


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
    """Give the inputs values that differ between ranks and places, and clear the outputs.

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
    if operation.collective is Collective.REDUCE and rank != ROOT:
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
    at_root = world_size if rank == ROOT else 0
    paired = int(rank ^ 1 < world_size)
    counts = {
        "all_gather": (1, world_size),
        "reduce_scatter": (world_size, 1),
        "all_to_all": (world_size, world_size),
        "scatter": (at_root, 1),
        "gather": (1, at_root),
        "send_recv": (paired, paired),
        "barrier": (0, 0),
    }
    return counts.get(collective.removesuffix("_single"), (1, 1))


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
            return _sent(operation, ROOT), own_part
        case Collective.BROADCAST:
            return _sent(operation, ROOT), 0
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
    rounds = world_size * epsilon
    if operation.reduce_op is ReduceOp.SUM:
        return 0.0 if _SUMMANDS * world_size <= 2 / epsilon else rounds
    return rounds if operation.reduce_op is ReduceOp.AVG else 0.0
