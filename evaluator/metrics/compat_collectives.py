"""Bandwidth, stragglers and balance as the published toolkit sees them.

Part of `evaluator.metrics.compat`.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evaluator.metrics.base import Absent, Evidence
from evaluator.metrics.compat_kernels import Kernels, kernels, of_nsys
from evaluator.traces.collectives import CollectiveKind, Group
from evaluator.traces.rank import RankTrace

GIB: Final = 1 << 30
_NAMES: Final = {
    CollectiveKind.ALL_GATHER: "AllGather",
    CollectiveKind.ALL_REDUCE: "AllReduce",
    CollectiveKind.REDUCE_SCATTER: "ReduceScatter",
    CollectiveKind.ALL_TO_ALL: "SendRecv",
}


def bandwidth(kind: CollectiveKind) -> Callable[[Evidence], float | Absent]:
    """Median over the kernels of the first rank that has any, 2^30 bytes per second."""

    def formula(evidence: Evidence) -> float | Absent:
        found = kernels(evidence)
        if isinstance(found, Absent) or evidence.traces is None:
            return found if isinstance(found, Absent) else Absent("nothing was profiled")
        if of_nsys(evidence):
            return Absent("the published tool reads it from Kineto traces only")
        for trace in evidence.traces.ranks:
            rates = _rates(trace, kind)
            if rates.size:
                return float(np.median(rates))
        return Absent("the published tool gives nan: no such collective tells its size")

    return formula


def _rates(trace: RankTrace, kind: CollectiveKind) -> NDArray[np.float64]:
    """Bytes per second as the toolkit counts them, in 2^30: own duration, own input."""
    table, spans = trace.collectives, trace.spans
    sizes = np.array([_size(group) for group in table.groups] or [0])[table.group_id]
    duration_ns = spans.duration_ns[table.span]
    rows = (table.kind == kind) & (table.bytes > 0) & (sizes > 0) & (duration_ns > 0)
    if kind != CollectiveKind.ALL_REDUCE:
        rows &= _named(spans.names, _NAMES[kind])[spans.name_id[table.span]]
    size = sizes[rows]
    # The input of an all-gather is one rank's part of what it gives.
    sent = table.bytes[rows] / (size if kind == CollectiveKind.ALL_GATHER else 1)
    factor = (size - 1) / size * (2 if kind == CollectiveKind.ALL_REDUCE else 1)
    return np.asarray(sent * factor / GIB / (duration_ns[rows] / 1e9), np.float64)


def _size(group: Group) -> int:
    return group.size or len(group.ranks or ())


def _named(names: tuple[str, ...], collective: str) -> NDArray[np.bool_]:
    starts = (f"ncclDevKernel_{collective}", f"ncclKernel_{collective}")
    return np.array([name.startswith(starts) for name in names], bool)


def straggler(evidence: Evidence) -> float | Absent:
    """How much less the rank with the least NCCL time has than the one with the most, 0 to 1."""
    found = kernels(evidence)
    if isinstance(found, Absent):
        return found
    if of_nsys(evidence):
        return Absent("the published tool reads it from Kineto traces only")
    totals = [
        int(rank.duration_ns[_dev_kernels(rank)].sum())
        for rank in found
        if _dev_kernels(rank).any()
    ]
    if len(totals) <= 1:
        return Absent("the published tool gives 0: fewer than two ranks have ncclDevKernel kernels")
    return (max(totals) - min(totals)) / max(totals)


def _dev_kernels(rank: Kernels) -> NDArray[np.bool_]:
    starts = np.array([name.startswith("ncclDevKernel_") for name in rank.names], bool)
    return starts[rank.name_id]


def load_imbalance_ratio(evidence: Evidence) -> float | Absent:
    """Most over least time in which any kernel ran, communication too, over ranks."""
    found = kernels(evidence)
    if isinstance(found, Absent):
        return found
    busy_ns = [rank.union(np.full(rank.start_ns.size, True)).total_ns for rank in found]
    if len(busy_ns) <= 1 or not min(busy_ns):
        return Absent("the published tool gives -1: fewer than two ranks ran kernels")
    return max(busy_ns) / min(busy_ns)


def peer_to_peer(_evidence: Evidence) -> Absent:
    """Mean of the NVLink counters, which no reader of ours keeps."""
    return Absent("the published tool averages NVLink counters of three named models")
