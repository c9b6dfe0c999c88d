"""Bus bandwidth of collectives: what a link carried, comparable with its speed.

The factors are those of nccl-tests (doc/PERFORMANCE.md), or of torchcomms where it differs.
"""

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from evaluator.workloads.collectives.operations import Collective

Convention: TypeAlias = Literal["nccl-tests", "torchcomms"]
"""Whose definition of S, and of the factor that turns S / t into bus bandwidth."""

_Ranks = TypeVar("_Ranks", float, NDArray[np.float64])

_GATHERED: Final = (
    Collective.ALL_GATHER,
    Collective.ALL_GATHER_SINGLE,
    Collective.GATHER,
    Collective.SCATTER,
)
_PARTED: Final = (
    *(Collective.REDUCE_SCATTER, Collective.REDUCE_SCATTER_SINGLE),
    *(Collective.ALL_TO_ALL, Collective.ALL_TO_ALL_SINGLE),
)
_TREES: Final = (Collective.BROADCAST, Collective.REDUCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth:
    """What one call moved, in decimal GB/s.

    Algorithm bandwidth is the payload S / t. Bus bandwidth is that times `factor`.
    """

    payload_bytes: int
    factor: float
    algorithm_gbps: float
    bus_gbps: float


def bandwidth(
    collective: Collective,
    message_bytes: int,
    rank_count: int,
    seconds: float,
    convention: Convention,
) -> Bandwidth | None:
    """Bandwidth of a call that took `seconds`, one way of a send_recv; None for a barrier.

    `message_bytes` is as in `Operation`. Of what is gathered, scattered or exchanged in parts
    nccl-tests counts the parts of all ranks as S; torchcomms counts one part of what is gathered
    or scattered. Raises `ValueError` for an impossible time.
    """
    if not 0 < seconds < math.inf:
        raise ValueError(f"{collective} took {seconds} s; a bandwidth needs a time above 0")
    if collective is Collective.BARRIER:
        return None
    whole = collective in _PARTED or (collective in _GATHERED and convention == "nccl-tests")
    payload_bytes = message_bytes * (rank_count if whole else 1)
    factor = bus_factor(collective, rank_count, convention)
    algorithm_gbps = payload_bytes / seconds / 1e9
    return Bandwidth(
        payload_bytes=payload_bytes,
        factor=factor,
        algorithm_gbps=algorithm_gbps,
        bus_gbps=algorithm_gbps * factor,
    )


def bus_factor(collective: Collective, rank_count: _Ranks, convention: Convention) -> _Ranks:
    """Share of S that each link carries, for one number of ranks or an array of them.

    nccl-tests takes each link of a broadcast or reduce to carry S; torchcomms reckons that they
    spare it a part of S.
    """
    share = (rank_count - 1) / rank_count
    if collective is Collective.ALL_REDUCE:
        return 2 * share
    if collective is Collective.SEND_RECV or (collective in _TREES and convention == "nccl-tests"):
        return rank_count / rank_count  # 1, once for each of an array
    return share
