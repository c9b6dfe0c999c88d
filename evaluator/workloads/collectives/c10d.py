"""Collectives of torch.distributed, perhaps routed through torchcomms, and of torchcomms itself."""

import importlib
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from types import ModuleType
from typing import Final, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from evaluator.workloads.collectives.adapters import (
    CommAdapter,
    Membership,
    arguments,
    lack_of,
    one_line,
)
from evaluator.workloads.collectives.operations import (
    AdapterName,
    Collective,
    Operation,
    Pending,
    ReduceOp,
    Setup,
    Start,
    Tensors,
    UnavailableError,
)

_TUNED_GLOO: Final = "cclsearch_gloo"
_GROUP_NAME: Final = "cclsearch"
_OLDER_NAMES: Final[Mapping[str, str]] = {
    Collective.ALL_GATHER_SINGLE: "all_gather_into_tensor",
    Collective.REDUCE_SCATTER_SINGLE: "reduce_scatter_tensor",
}
"""What torch up to 2.11 calls them; 2.13 warns of it."""


class C10dAdapter(CommAdapter):
    """All ranks of the default process group, in a new group where one exists already.

    With `C10D_TORCHCOMMS` torch.distributed routes its calls through torchcomms; otherwise gloo has
    the threads and interfaces of a setup, if there is one.
    """

    def __init__(self, name: AdapterName = AdapterName.C10D, setup: Setup | None = None) -> None:
        super().__init__(name)
        self._setup = setup
        self._group: dist.ProcessGroup | None = None
        self._routed_before: bool | None = None

    def init(self, backend: str, device: torch.device, rank: int, world_size: int) -> None:
        """Join or make the group; raises `UnavailableError` if backend and device do not fit."""
        reason = c10d_absence(self.name) or _misfit(self.name, backend, device)
        if reason is not None:
            raise UnavailableError(reason)
        if self.name is AdapterName.C10D_TORCHCOMMS:
            self._routed_before = dist.config.use_torchcomms
            dist.config.use_torchcomms = True
        try:
            self._join(backend, device, rank, world_size)
        except BaseException:  # whatever ends it, an interrupt too, is raised again
            self._restore_routing()
            raise
        self._membership = Membership(rank=rank, size=world_size, backend=backend)

    def finalize(self) -> None:
        """Leave the group that `init` made; the second time nothing happens."""
        if self._membership is None:
            return
        self._membership = None
        try:
            if dist.is_initialized():
                dist.destroy_process_group(self._group)
        finally:
            self._group = None
            self._restore_routing()

    def get_backend_version(self) -> str | None:
        """NCCL's version; gloo has none."""
        if self.membership.backend != "nccl":
            return None
        return ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]

    def _join(self, backend: str, device: torch.device, rank: int, world_size: int) -> None:
        routed = self.name is AdapterName.C10D_TORCHCOMMS
        if backend == "gloo" and not routed and self._setup is not None:
            make = partial(_tuned_gloo, self._setup)
            dist.Backend.register_backend(_TUNED_GLOO, make, devices=["cpu", "cuda"])
            backend = _TUNED_GLOO
        if dist.is_initialized():
            self._group = dist.new_group(backend=backend)
            return
        dist.init_process_group(
            backend=backend,
            # A launcher that forks ranks in parallel gives each launch a separate rendezvous.
            init_method=os.environ.get("CCLSEARCH_INIT_METHOD", "env://"),
            rank=rank,
            world_size=world_size,
            device_id=device if device.type == "cuda" else None,
        )

    def _restore_routing(self) -> None:
        if self._routed_before is not None:
            dist.config.use_torchcomms = self._routed_before
            self._routed_before = None

    def _reduce_ops(self) -> Mapping[ReduceOp, object]:
        return {op: getattr(dist.ReduceOp, op.name) for op in ReduceOp}

    def _lack(self, operation: Operation) -> str | None:
        is_older = hasattr(dist, _OLDER_NAMES.get(operation.collective, ""))
        return None if is_older else lack_of(dist, operation)

    def _bind(self, operation: Operation, tensors: Tensors, *, async_op: bool) -> Start:
        name = operation.collective.value
        if not hasattr(dist, name):
            name = _OLDER_NAMES[operation.collective]
        function: Callable[..., Pending] = getattr(dist, name)
        given = arguments(operation, tensors, self.get_reduce_op(operation.reduce_op))
        if operation.collective is Collective.GATHER:
            output, source, root = given
            given = (source, output, root)
        # What is bound costs time in every call, so nothing is that is the default anyway.
        named: dict[str, object] = {"async_op": True} if async_op else {}
        if self._group is not None:
            named["group"] = self._group
        return partial(function, *given, **named)

    def _bind_message(
        self, way: Literal["send", "recv"], tensor: Tensor, peer: int, *, async_op: bool
    ) -> Start:
        function: Callable[..., Pending] = getattr(dist, f"i{way}" if async_op else way)
        return partial(function, tensor, peer, self._group)


def c10d_absence(name: AdapterName) -> str | None:
    """Why torch.distributed, routed or not, cannot be used here; None if it can."""
    if not dist.is_available():
        return f"{name} needs a torch that was built with torch.distributed; install another one"
    if name is not AdapterName.C10D_TORCHCOMMS:
        return None
    reason = torchcomms_absence()
    if reason is None and not getattr(dist.distributed_c10d, "_TORCHCOMM_AVAILABLE", False):
        # Asked to route its calls, such a torch would use its own backends and not say so.
        reason = "torch cannot route calls through this torchcomms; install a newer one"
    return reason and f"{name} cannot be used: {reason}"


def _misfit(name: AdapterName, backend: str, device: torch.device) -> str | None:
    routed = name is AdapterName.C10D_TORCHCOMMS
    if not routed and not dist.is_backend_available(backend):
        return f"this torch has no backend {backend!r}; install one that was built with it"
    if backend == "nccl" and device.type != "cuda":
        return f"{name}: the backend 'nccl' needs a GPU, not {device}; use 'gloo'"
    return None


def _tuned_gloo(
    setup: Setup, store: dist.Store, rank: int, size: int, timeout: timedelta
) -> dist.ProcessGroupGloo:
    """Gloo with these threads and interfaces; torch has no public way to give them."""
    gloo = dist.ProcessGroupGloo
    options = gloo._Options()  # type: ignore[attr-defined]  # missing in its stub
    options._timeout = timeout
    options._threads = setup.gloo_threads
    # Gloo without options reads this variable; with options only what they say counts.
    variable = os.environ.get("GLOO_SOCKET_IFNAME")
    names = setup.gloo_interfaces or variable
    if names:
        options._devices = [gloo.create_device(interface=name) for name in names.split(",")]
    else:
        options._devices = [gloo.create_default_device()]
    return gloo(store, rank, size, options)


class TorchcommsAdapter(CommAdapter):
    """A communicator of torchcomms over all ranks."""

    def __init__(self) -> None:
        super().__init__(AdapterName.TORCHCOMMS)
        self._library: ModuleType
        self._communicator: object = None

    def init(self, backend: str, device: torch.device, rank: int, world_size: int) -> None:
        """Make the communicator; raises `UnavailableError` if torchcomms has no such backend.

        It finds its ranks through the store of the default process group if there is one, else
        through the launcher's environment.
        """
        reason = torchcomms_absence()
        if reason is not None:
            raise UnavailableError(reason)
        library = importlib.import_module("torchcomms")
        try:
            communicator = library.new_comm(backend, device, name=_GROUP_NAME, **_rendezvous())
        except ModuleNotFoundError as error:
            raise UnavailableError(
                f"this torchcomms has no backend {backend!r} ({error}); install one built with it"
            ) from error
        self._library, self._communicator = library, communicator
        seen = (communicator.get_rank(), communicator.get_size())
        self._membership = Membership(rank=seen[0], size=seen[1], backend=backend)
        if seen != (rank, world_size):
            self.finalize()
            raise UnavailableError(
                f"torchcomms is rank {seen[0]} of {seen[1]} where the launcher started rank "
                f"{rank} of {world_size}; start the ranks with torchrun"
            )

    def finalize(self) -> None:
        """Close the communicator; the second time nothing happens."""
        if self._membership is None:
            return
        self._membership = None
        close = self._method("finalize")
        self._communicator = None
        close()

    def get_backend_version(self) -> str | None:
        """What the backend says of itself; older ones say nothing."""
        _ = self.membership
        ask = getattr(self._communicator, "get_backend_version", None)
        return None if ask is None else str(ask())

    def _reduce_ops(self) -> Mapping[ReduceOp, object]:
        return {op: getattr(self._library.ReduceOp, op.name) for op in ReduceOp}

    def _lack(self, operation: Operation) -> str | None:
        return lack_of(self._communicator, operation)

    def _bind(self, operation: Operation, tensors: Tensors, *, async_op: bool) -> Start:
        given = arguments(operation, tensors, self.get_reduce_op(operation.reduce_op))
        return partial(self._method(operation.collective.value), *given, async_op)

    def _bind_message(
        self, way: Literal["send", "recv"], tensor: Tensor, peer: int, *, async_op: bool
    ) -> Start:
        return partial(self._method(way), tensor, peer, async_op)

    def _method(self, name: str) -> Callable[..., Pending]:
        method: Callable[..., Pending] = getattr(self._communicator, name)
        return method


def torchcomms_absence() -> str | None:
    """Why torchcomms cannot be used here; None if it can."""
    try:
        importlib.import_module("torchcomms").CommOptions()
    except Exception as error:  # noqa: BLE001 - a foreign extension module fails as it likes
        return (
            f"torchcomms cannot be loaded ({one_line(error)}); install it from PyTorch's own "
            "package index, not from PyPI"
        )
    return None


def _rendezvous() -> dict[str, object]:
    """How the ranks of a communicator find each other, as arguments of `new_comm`."""
    if not dist.is_initialized():
        return {}
    store = dist.distributed_c10d._get_default_store()
    return {"store": dist.PrefixStore(_GROUP_NAME, store), "hints": {"persistent_store": "true"}}
