"""What all adapters share: being in a group or in none, refusals, and the ping-pong."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from evaluator.workloads.collectives.adapters.adapter import (
    AdapterName,
    Call,
    Pending,
    Start,
    Tensors,
    UnsupportedError,
)
from evaluator.workloads.collectives.operations import Collective, Operation, ReduceOp

ROOT: Final = 0
_IN_PLACE: Final = (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE)
_ROOTED: Final = (Collective.BROADCAST, Collective.REDUCE, Collective.SCATTER, Collective.GATHER)
_LISTED_INPUTS: Final = (Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL, Collective.SCATTER)
_LISTED_OUTPUTS: Final = (Collective.ALL_GATHER, Collective.ALL_TO_ALL, Collective.GATHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The place of this process in the group, and what carries the bytes of the group."""

    rank: int
    size: int
    backend: str


class BaseAdapter(ABC):
    """An adapter without its library: a subclass joins a group and binds calls to it.

    It sets `_membership` in `init` and takes it away in `finalize`.
    """

    def __init__(self, name: AdapterName) -> None:
        self.name = name
        self._membership: Membership | None = None

    @property
    def membership(self) -> Membership:
        """Where this process is in the group; raises `RuntimeError` outside of one."""
        if self._membership is None:
            raise RuntimeError(f"{self.name} is in no group: call init first")
        return self._membership

    def get_rank(self) -> int:
        """Number of this rank."""
        return self.membership.rank

    def get_size(self) -> int:
        """How many ranks there are."""
        return self.membership.size

    def get_backend(self) -> str:
        """What carries the bytes."""
        return self.membership.backend

    @abstractmethod
    def get_backend_version(self) -> str | None:
        """Its version, None where it does not tell."""

    def get_reduce_op(self, name: str) -> object:
        """The library's own value for a reduction; raises `ValueError` for an unknown one."""
        _ = self.membership
        ops = self._reduce_ops()
        if name not in ops:
            raise ValueError(f"{self.name} has no reduction {name!r}, only {', '.join(ops)}")
        return ops[ReduceOp(name)]

    def check(self, operation: Operation) -> None:
        """Raise `UnsupportedError`, naming adapter and operation, for a call that it lacks."""
        _ = self.membership
        reason = self._lack(operation)
        if reason is not None:
            raise UnsupportedError(f"{self.name} has no {operation}: {reason}")

    def resolve_collective(self, operation: Operation, tensors: Tensors) -> Call:
        """Give the blocking call on these tensors."""
        self.check(operation)
        if operation.collective is not Collective.SEND_RECV:
            return self._bind(operation, tensors, async_op=False)
        if not tensors.inputs:
            return _nothing
        return _ping_pong(self.membership.rank, *self._bind_both_ways(tensors, async_op=False))

    def resolve_start(self, operation: Operation, tensors: Tensors) -> Start:
        """Give what starts the call and returns at once."""
        self.check(operation)
        if operation.collective is not Collective.SEND_RECV:
            return self._bind(operation, tensors, async_op=True)
        if not tensors.inputs:
            return _Done
        return _start_of_ping_pong(
            self.membership.rank, *self._bind_both_ways(tensors, async_op=True)
        )

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
            self._bind_send(tensors.inputs[0], peer, async_op=async_op),
            self._bind_receive(tensors.outputs[0], peer, async_op=async_op),
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
    def _bind_send(self, tensor: Tensor, peer: int, *, async_op: bool) -> Start:
        """The same for a message to one rank."""

    @abstractmethod
    def _bind_receive(self, tensor: Tensor, peer: int, *, async_op: bool) -> Start:
        """The same for a message from one rank."""


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
    """Tell if the library has no function of the collective's name."""
    needed = "send" if operation.collective is Collective.SEND_RECV else operation.collective
    return None if hasattr(library, needed) else "the installed version lacks it"


def _argument(tensors: tuple[Tensor, ...], *, listed: bool) -> object:
    return list(tensors) if listed else tensors[0]


def _ping_pong(rank: int, send: Call, receive: Call) -> Call:
    """The even rank of a pair sends and awaits the answer, the odd one answers."""
    first, second = (receive, send) if rank % 2 else (send, receive)

    def there_and_back() -> None:
        first()
        second()

    return there_and_back


def _start_of_ping_pong(rank: int, send: Start, receive: Start) -> Start:
    """The same, where the odd rank sends its answer when the call is waited for."""
    if rank % 2:
        return lambda: _InTurn(receive(), send)

    def start() -> Pending:
        sent, answer = send(), receive()
        return _InTurn(sent, lambda: answer)

    return start


def _nothing() -> None:
    """The call of a rank that takes no part."""


class _Done:
    """A call that is over as soon as it was started."""

    def wait(self) -> None:
        """Return at once."""


class _InTurn:
    """A started call, and another that is started, or only waited for, once it is over."""

    def __init__(self, first: Pending, second: Start) -> None:
        self._first = first
        self._second = second

    def wait(self) -> None:
        """Wait for both."""
        self._first.wait()
        self._second().wait()
