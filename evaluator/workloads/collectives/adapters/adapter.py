"""What the benchmark asks of a communication library."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias

from evaluator.workloads.collectives.operations import Operation

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class AdapterName(StrEnum):
    """The libraries, in the order in which a sweep over all of them takes them."""

    TORCHCOMMS = "torchcomms"
    C10D = "c10d"
    C10D_TORCHCOMMS = "c10d_torchcomms"
    MPI = "mpi"


class UnsupportedError(AttributeError):
    """The library, or its backend, lacks this collective, operation or number format."""


class UnavailableError(RuntimeError):
    """The library cannot be used here; says what to install or do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """What one rank passes to a call: its inputs and outputs.

    The same tensor is both where the call works in place (all_reduce, broadcast, reduce). Lists of
    n tensors, one for each rank, go with all_gather (outputs), reduce_scatter (inputs), all_to_all
    (both), scatter (inputs, on the root only) and gather (outputs, on the root only); the `single`
    variants have one tensor of n parts instead. An unpaired rank of a send_recv, and a barrier,
    have none.
    """

    inputs: "tuple[Tensor, ...]" = ()
    outputs: "tuple[Tensor, ...]" = ()


class Pending(Protocol):
    """A call that was started."""

    def wait(self) -> object:
        """Return once the outputs can be used, on the device's stream if it has one."""
        ...


Call: TypeAlias = Callable[[], object]
"""One collective call with everything looked up: what a timed loop runs."""
Start: TypeAlias = Callable[[], Pending]


class CommAdapter(Protocol):
    """A library and the group of all ranks. Rank 0 is the root of calls that have one.

    Everything but `init` raises `RuntimeError` before `init`.
    """

    name: AdapterName

    def init(self, backend: str, device: "torch.device", rank: int, world_size: int) -> None:
        """Join the group of all ranks, on a device that is already bound to this process.

        Raises `UnavailableError` if the library, or its backend, cannot be used here.
        """
        ...

    def get_rank(self) -> int:
        """Number of this rank."""
        ...

    def get_size(self) -> int:
        """How many ranks there are."""
        ...

    def get_backend(self) -> str:
        """What carries the bytes: gloo, nccl, Open MPI..."""
        ...

    def get_backend_version(self) -> str | None:
        """Its version, None where it does not tell."""
        ...

    def get_reduce_op(self, name: str) -> object:
        """Give the library's own value; raises `ValueError`, listing all, for an unknown name."""
        ...

    def check(self, operation: Operation) -> None:
        """Raise `UnsupportedError`, naming adapter and operation, for a call that it lacks.

        Decides from the operation and the group alone, so that all ranks decide the same.
        """
        ...

    def resolve_collective(self, operation: Operation, tensors: Tensors) -> Call:
        """Give the blocking call on these tensors; it returns when the library says it is done."""
        ...

    def resolve_start(self, operation: Operation, tensors: Tensors) -> Start:
        """Give what starts the call and returns at once; tensors are busy until it was waited for.

        Raises `UnsupportedError` where the library only blocks.
        """
        ...

    def run_collective(
        self, operation: Operation, tensors: Tensors, *, async_op: bool = False
    ) -> None:
        """Resolve and run once, and wait for it."""
        ...

    def finalize(self) -> None:
        """Leave the group; the second time nothing happens."""
        ...
