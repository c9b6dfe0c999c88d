"""Every adapter by its name: whether it can be used here, and what it does if nobody chooses."""

from typing import assert_never

from evaluator.rank.job import DeviceKind
from evaluator.workloads.collectives.adapters.adapter import AdapterName, CommAdapter
from evaluator.workloads.collectives.adapters.c10d import C10dAdapter, Tuning, c10d_absence
from evaluator.workloads.collectives.adapters.mpi import BACKEND, MpiAdapter, mpi_absence
from evaluator.workloads.collectives.adapters.torchcomms import (
    TorchcommsAdapter,
    torchcomms_absence,
)

_UNTUNED = Tuning()


def new_adapter(name: AdapterName, tuning: Tuning = _UNTUNED) -> CommAdapter:
    """Make an adapter that is in no group yet; only `C10D` heeds the tuning."""
    match name:
        case AdapterName.C10D | AdapterName.C10D_TORCHCOMMS:
            return C10dAdapter(name, tuning)
        case AdapterName.TORCHCOMMS:
            return TorchcommsAdapter()
        case AdapterName.MPI:
            return MpiAdapter()
        case _:
            assert_never(name)


def availability(name: AdapterName) -> str | None:
    """Why an adapter cannot be used here and what to install, in one line; None if it can.

    Found by loading its library and calling it, without joining a group.
    """
    match name:
        case AdapterName.C10D | AdapterName.C10D_TORCHCOMMS:
            return c10d_absence(name)
        case AdapterName.TORCHCOMMS:
            return torchcomms_absence()
        case AdapterName.MPI:
            return mpi_absence()
        case _:
            assert_never(name)


def default_backend(name: AdapterName, device_kind: DeviceKind) -> str:
    """What carries an adapter's bytes between such devices if nobody chooses."""
    if name is AdapterName.MPI:
        return BACKEND
    return "nccl" if device_kind is DeviceKind.CUDA else "gloo"
