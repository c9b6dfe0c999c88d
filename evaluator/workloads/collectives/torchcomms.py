"""Collectives of torchcomms, called without torch.distributed in between."""

import importlib
from collections.abc import Callable, Mapping
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
    Operation,
    Pending,
    ReduceOp,
    Start,
    Tensors,
    UnavailableError,
)

_GROUP_NAME: Final = "cclsearch"


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
    return {
        "store": dist.PrefixStore(_GROUP_NAME, store),
        "hints": {"persistent_store": "true"},
    }
