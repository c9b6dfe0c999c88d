"""The ranks as a grid with one axis per kind of parallelism."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from evaluator.rank.job import Config
from evaluator.rank.steps import require_room_for_groups

_AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Outermost first: neighbours in rank share the axis that talks most."""
_JOINED_GROUPS = 4
"""The most groups that are made of axes that are joined or divided again."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which ranks work together on what, seen from this rank."""

    mesh: DeviceMesh | None
    """`None` on a single rank. An axis of one rank is left out: it would cost a group."""

    experts: DeviceMesh | None = None
    """The shards and the context once more, as `expert_copies` of groups (`ep`) that hold each
    expert once; `None` if every rank holds all experts."""

    def axis(self, name: str) -> DeviceMesh | None:
        """The ranks along an axis through this rank; `None` if the axis is not in use."""
        for mesh in (self.mesh, self.experts):
            if mesh is not None and name in (mesh.mesh_dim_names or ()):
                return mesh[name]
        return None

    def joined(self, *names: str) -> DeviceMesh | None:
        """The ranks along several axes as one axis; `None` if none of them is in use.

        Every rank must call it, for it connects them on first use.
        """
        used = tuple(name for name in names if name in self._names)
        if self.mesh is None or not used:
            return None
        return self.mesh[used]._flatten() if len(used) > 1 else self.mesh[used[0]]

    def place(self, name: str) -> int:
        """Return this rank's number along an axis."""
        axis = self.axis(name)
        return 0 if axis is None else axis.get_local_rank()

    def mean(self, losses: Sequence[Tensor], *names: str) -> list[float]:
        """Average what the ranks along these axes computed, if anything; each must call it."""
        if not losses:
            return []
        means = torch.stack(list(losses))
        for axis in filter(None, map(self.axis, names)):
            dist.all_reduce(means, group=axis.get_group())
            means /= axis.size()
        values: list[float] = means.tolist()
        return values

    @property
    def _names(self) -> tuple[str, ...]:
        return () if self.mesh is None else self.mesh.mesh_dim_names or ()


def open_layout(config: Config, device: torch.device) -> Layout:
    """Connect the ranks along every axis in use; every rank must call it."""
    sizes = {name: getattr(config, name) for name in _AXES}
    used = tuple(name for name in _AXES if sizes[name] > 1)
    if not used:
        return Layout(None)
    if len(used) > 1:
        require_room_for_groups(len(used) + _JOINED_GROUPS)
    layout = Layout(
        init_device_mesh(device.type, tuple(sizes[name] for name in used), mesh_dim_names=used)
    )
    shards = layout.joined("dp_shard", "cp")
    if config.ep == 1 or shards is None:
        return layout
    return replace(layout, experts=_group_experts(shards, config.ep))


def _group_experts(shards: DeviceMesh, ep: int) -> DeviceMesh:
    sizes = {"expert_copies": shards.size() // ep, "ep": ep}
    used = tuple(name for name in sizes if sizes[name] > 1)
    return shards._unflatten(0, tuple(sizes[name] for name in used), used)
