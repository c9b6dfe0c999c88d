"""How long the collectives of a trace take to start and to move their bytes, by tier of link.

Hockney's model: t = latency + S f / bandwidth, S and f as in nccl-tests. Both are fitted for each
tier to the trace's own collectives, so that a faster link is asked of what was measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from evaluator.bus_bandwidth import bus_factor
from evaluator.traces.analysis.collectives import Matches
from evaluator.traces.intervals import Nanoseconds
from evaluator.traces.model import TRANSFERS, CollectiveKind, RankGroup
from evaluator.workloads.collectives.operations import Collective

_APART: Final = 2.0
"""Messages of one tier tell its latency where the largest is so many times the smallest."""
_LATENCY_NS: Final = 50_000
"""More than any link of an accelerator takes to start, where a trace does not tell."""


class Tier(IntEnum):
    """Which links a collective crosses."""

    UNKNOWN = 0
    SCALE_UP = 1
    """Within a node."""
    SCALE_OUT = 2
    """Between nodes."""


def tier_of(group: RankGroup, ranks_per_node: int | None, world_size: int | None) -> Tier:
    """The tier of a group: that of its slowest link."""
    if ranks_per_node is None:
        return Tier.UNKNOWN
    ranks: Sequence[int] = group.ranks or (range(world_size) if world_size else ())
    if not ranks:
        return Tier.UNKNOWN
    return Tier.SCALE_OUT if len({rank // ranks_per_node for rank in ranks}) > 1 else Tier.SCALE_UP


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What fits the collectives of a tier; each is None where the trace does not tell."""

    latency_ns: float | None
    bytes_per_ns: float | None
    """Bus bandwidth."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Links:
    """The joint collectives of a job; arrays of shape (instances,)."""

    tier: NDArray[np.int8]
    bus_bytes: NDArray[np.float64]
    """S f; 0: unknown."""
    transfer_ns: Nanoseconds
    fitted: Mapping[Tier, Link]

    @classmethod
    def of(
        cls,
        matches: Matches,
        instances: NDArray[np.int64],
        transfer_ns: Nanoseconds,
        tier: NDArray[np.int8],
    ) -> Self:
        """Fit each tier to the collectives in these rows of the matches."""
        kind = matches.kind[instances]
        size = np.maximum(matches.group_size[instances], 1)
        bus_bytes = matches.bytes[instances] * bus_factors(kind, size)
        fitted = {}
        for each in np.unique(tier).tolist():
            own = (tier == each) & (bus_bytes > 0) & (transfer_ns > 0)
            fitted[Tier(each)] = _fit(bus_bytes[own], transfer_ns[own])
        return cls(tier=tier, bus_bytes=bus_bytes, transfer_ns=transfer_ns, fitted=fitted)

    def latency_ns(self, *, greatest: bool = False) -> Nanoseconds:
        """The part of each collective that no bandwidth shortens.

        Where the trace does not tell, it is 0, or the greatest that it can be.
        """
        latency = np.zeros(len(Tier))
        for tier, link in self.fitted.items():
            unknown = _LATENCY_NS if greatest else 0
            latency[tier] = unknown if link.latency_ns is None else link.latency_ns
        told = np.array([self._tells(Tier(n)) for n in range(len(Tier))], np.bool_)
        most = np.where(told[self.tier], self.transfer_ns, self.transfer_ns // 2)
        return np.minimum(np.rint(latency[self.tier]).astype(np.int64), most)

    def _tells(self, tier: Tier) -> bool:
        link = self.fitted.get(tier)
        return link is not None and link.latency_ns is not None


def _fit(bus_bytes: NDArray[np.float64], took_ns: Nanoseconds) -> Link:
    """Latency and bandwidth of messages of several sizes, each size by its median time."""
    if not took_ns.size:
        return Link(latency_ns=None, bytes_per_ns=None)
    sizes, place = np.unique(np.rint(bus_bytes), return_inverse=True)
    median_ns = np.array([np.median(took_ns[place == n]) for n in range(sizes.size)])
    if sizes[-1] < _APART * sizes[0]:
        return Link(latency_ns=None, bytes_per_ns=float(np.median(sizes / median_ns)))
    # By relative errors: a large message must not drown the small ones, which tell the latency.
    columns = np.stack((np.ones(sizes.size), sizes), axis=1) / median_ns[:, None]
    latency_ns, ns_per_byte = np.linalg.lstsq(columns, np.ones(sizes.size), rcond=None)[0]
    if latency_ns < 0 or ns_per_byte <= 0:
        latency_ns = 0.0 if ns_per_byte > 0 else float(median_ns.min())
        ns_per_byte = max(float(np.median((median_ns - latency_ns) / sizes)), 0.0)
    bandwidth = 1 / float(ns_per_byte) if ns_per_byte > 0 else None
    return Link(latency_ns=float(latency_ns), bytes_per_ns=bandwidth)


def bus_factors(
    kind: NDArray[np.int8], size: NDArray[np.int32] | NDArray[np.float64]
) -> NDArray[np.float64]:
    """The bus factor of each collective; a transfer between two ranks carries all of S."""
    factors = np.ones(kind.size)
    plain = (*TRANSFERS, CollectiveKind.BARRIER, CollectiveKind.OTHER)
    for each in np.setdiff1d(kind, plain):
        own = kind == each
        collective = Collective[CollectiveKind(each).name]
        factors[own] = bus_factor(collective, size[own].astype(np.float64), "torchcomms")
    return factors
