"""How many bytes a second a collective moved: seen by its caller, and on each rank's link."""

import math
from dataclasses import dataclass
from typing import Final

from evaluator.bench.record import Convention
from evaluator.workloads.collectives.operations import Collective

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

    Algorithm bandwidth is the payload S / t. Bus bandwidth is that times `factor`: what a link
    carried, comparable with its speed.
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
    nccl-tests counts the parts of all ranks as S, and takes each link of a broadcast or reduce to
    carry S. torchcomms counts one part of what is gathered or scattered, and reckons that a
    broadcast or reduce spares each link a part of S. Raises `ValueError` for a time that is none.
    """
    if not 0 < seconds < math.inf:
        raise ValueError(f"{collective} took {seconds} s; a bandwidth needs a time above 0")
    if collective is Collective.BARRIER:
        return None
    payload_bytes = message_bytes * _part_count(collective, rank_count, convention)
    factor = _factor(collective, rank_count, convention)
    algorithm_gbps = payload_bytes / seconds / 1e9
    return Bandwidth(
        payload_bytes=payload_bytes,
        factor=factor,
        algorithm_gbps=algorithm_gbps,
        bus_gbps=algorithm_gbps * factor,
    )


def _part_count(collective: Collective, rank_count: int, convention: Convention) -> int:
    """How many messages make up S."""
    whole = collective in _PARTED or (collective in _GATHERED and convention == "nccl-tests")
    return rank_count if whole else 1


def _factor(collective: Collective, rank_count: int, convention: Convention) -> float:
    """What part of S each link carries; of one rank that exchanges with itself none."""
    share = (rank_count - 1) / rank_count
    if collective is Collective.ALL_REDUCE:
        return 2 * share
    if collective is Collective.SEND_RECV:
        return 1.0
    if collective in _TREES and convention == "nccl-tests":
        return 1.0
    return share
