"""How fast each collective moved its bytes once all of its ranks were there."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evaluator.analysis.matching import Matches
from evaluator.intervals import Nanoseconds
from evaluator.traces.collectives import TRANSFERS, CollectiveKind, Group
from evaluator.traces.job import TraceSet

TIMED: Final = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.SEND,
    CollectiveKind.SEND_RECV,
    CollectiveKind.PUT,
)
"""Kinds of which the rank that comes last sees the transfer alone.

Not those with a root: a rank may leave a broadcast before others have come.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bandwidths:
    """Columns of shape (instances,): those matched instances whose bandwidth can be told.

    S is as in nccl-tests the whole buffer, t the least duration over the ranks: the last to arrive
    waits for nobody. Algorithm bandwidth is S / t; bus bandwidth is that times 2 (n - 1) / n for an
    all-reduce, (n - 1) / n for an all-gather, reduce-scatter or all-to-all and 1 for a transfer,
    n being the ranks of the group: what each rank's link carried, comparable with its speed.

    Where `partial`, some ranks of the group left no trace and the last to arrive may be one of
    them: t is then an upper bound and both bandwidths are lower bounds.
    """

    rank_numbers: tuple[int, ...]
    groups: tuple[Group, ...]
    instance: NDArray[np.int64]
    """Row among the matches."""
    kind: NDArray[np.int8]
    group_id: NDArray[np.int32]
    group_size: NDArray[np.int32]
    step: NDArray[np.int64]
    """As in `Matches`."""
    bytes: NDArray[np.int64]
    """S."""
    time_ns: Nanoseconds
    """t."""
    partial: NDArray[np.bool_]
    algorithm_bytes_per_s: NDArray[np.float64]
    bus_bytes_per_s: NDArray[np.float64]
    with_waiting_bytes_per_s: NDArray[np.float64]
    """Bus bandwidth by each rank's own duration, waiting for others included; NaN where the rank
    does not show the instance. Shape (instances, ranks)."""

    @property
    def count(self) -> int:
        """Number of instances."""
        return int(self.kind.size)


def bandwidths(traces: TraceSet, matches: Matches) -> Bandwidths:
    """Bandwidths of the matched instances that tell their size and group and take time."""
    start_ns, end_ns = matches.times_ns(traces)
    present, duration_ns = matches.present, end_ns - start_ns
    time_ns = np.where(present, duration_ns, np.iinfo(np.int64).max).min(axis=1)
    told = (matches.bytes > 0) & (matches.group_size > 1) & (time_ns > 0)
    kept = np.flatnonzero(told & matches.doing(*TIMED))
    size, ranks = matches.bytes[kept].astype(np.float64), matches.group_size[kept]
    on_bus = size * _factor(matches.kind[kept], ranks)
    seconds = time_ns[kept] / 1e9
    own_s = np.where(present[kept], np.maximum(duration_ns[kept], 1), np.nan) / 1e9
    return Bandwidths(
        rank_numbers=matches.rank_numbers,
        groups=matches.groups,
        instance=kept,
        kind=matches.kind[kept],
        group_id=matches.group_id[kept],
        group_size=ranks,
        step=matches.step[kept],
        bytes=matches.bytes[kept],
        time_ns=time_ns[kept],
        partial=~matches.complete[kept],
        algorithm_bytes_per_s=size / seconds,
        bus_bytes_per_s=on_bus / seconds,
        with_waiting_bytes_per_s=on_bus[:, None] / own_s,
    )


def _factor(kind: NDArray[np.int8], ranks: NDArray[np.int32]) -> NDArray[np.float64]:
    """What part of S each link carries, over the ranks of the group."""
    share = (ranks - 1) / ranks
    transfer = np.isin(kind, TRANSFERS)
    reduced = np.where(kind == CollectiveKind.ALL_REDUCE, 2 * share, share)
    return np.where(transfer, 1.0, reduced)
