"""Reduced traces of a made-up job on many nodes, with its straggler known, as nodes send them.

Tensor parallel groups within each node, data parallel groups over all nodes: each layer computes
and has two all-gathers and two reduce-scatters in its node; gradients are reduced over nodes.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evaluator.traces.model import (
    Activity,
    CollectiveKind,
    Collectives,
    Device,
    Lane,
    RankGroup,
    RankTrace,
    Spans,
    StepWindows,
)
from evaluator.traces.reduction import write_reduced

BEGIN_NS = 1_800_000_000 * 10**9
LAYER_NS, CALL_NS, GAP_NS = 400_000, 40_000, 2_000
BUCKETS = 16
STEP_NUMBER = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeJob:
    """How large the job is, and which rank computes a tenth longer than the others."""

    node_count: int
    ranks_per_node: int = 8
    layer_count: int = 32
    straggler: int = 0

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.node_count * self.ranks_per_node

    def node(self, number: int) -> tuple[RankTrace, ...]:
        """The reduced traces of the ranks of a node."""
        first = number * self.ranks_per_node
        return tuple(self._trace(rank) for rank in range(first, first + self.ranks_per_node))

    def write(self, number: int, folder: Path) -> Path:
        """Write what a node sends of its traces."""
        path = folder / f"node{number}.columns"
        write_reduced(self.node(number), path)
        return path

    def _trace(self, rank: int) -> RankTrace:
        node, local = divmod(rank, self.ranks_per_node)
        first = node * self.ranks_per_node
        inside = RankGroup("tp", tuple(range(first, first + self.ranks_per_node)))
        across = RankGroup("dp", tuple(range(local, self.world_size, self.ranks_per_node)))
        calls_of_layer = 4
        compute_ns = np.full(self.layer_count * calls_of_layer, LAYER_NS // calls_of_layer)
        # The others wait in the next collective of the node until the straggler has come.
        late_ns = compute_ns // 10 if self._holds_straggler(node) else 0 * compute_ns
        call_ns = np.full(compute_ns.size, CALL_NS)
        if rank == self.straggler:
            compute_ns = compute_ns + late_ns
        else:
            call_ns = call_ns + late_ns
        begin_ns = BEGIN_NS + node * 1_000_003  # clocks of nodes differ
        ends_ns = begin_ns + np.cumsum(compute_ns + call_ns + GAP_NS)
        call_start_ns = ends_ns - GAP_NS - call_ns
        compute_start_ns = call_start_ns - compute_ns
        bucket_ns = np.full(BUCKETS, 20 * CALL_NS)
        total_late_ns = self.layer_count * calls_of_layer * (LAYER_NS // calls_of_layer // 10)
        if not self._holds_straggler(node):
            bucket_ns[0] += total_late_ns
        bucket_end_ns = ends_ns[-1] + np.cumsum(bucket_ns)
        start_ns = np.concatenate([compute_start_ns, call_start_ns, bucket_end_ns - bucket_ns])
        kinds = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
        return RankTrace(
            rank=rank,
            world_size=self.world_size,
            backend="nccl",
            device=Device(name="NVIDIA H100"),
            source="kineto",
            spans=_spans(start_ns, compute_ns, call_ns, bucket_ns),
            collectives=_collectives(
                start_ns,
                kind=np.concatenate(
                    [np.tile(kinds, call_ns.size // 2), np.full(BUCKETS, CollectiveKind.ALL_REDUCE)]
                ),
                group=np.repeat([0, 1], [call_ns.size, BUCKETS]),
                groups=(inside, across),
                first=compute_ns.size,
            ),
            steps=_step(begin_ns, int(bucket_end_ns[-1])),
            host_steps=_step(begin_ns, int(bucket_end_ns[-1])),
            reduced=True,
        )

    def _holds_straggler(self, node: int) -> bool:
        return self.straggler // self.ranks_per_node == node


def _spans(
    start_ns: NDArray[np.int64],
    compute_ns: NDArray[np.int64],
    call_ns: NDArray[np.int64],
    bucket_ns: NDArray[np.int64],
) -> Spans:
    count = start_ns.size
    activity = np.full(count, Activity.COMMUNICATION)
    activity[: compute_ns.size] = Activity.COMPUTE
    return Spans.build(
        start_ns=start_ns,
        end_ns=start_ns + np.concatenate([compute_ns, call_ns, bucket_ns]),
        activity=activity,
        name_id=np.zeros(count, np.int32),
        lane_id=np.zeros(count, np.int32),
        names=("",),
        lanes=(Lane("0", "7"),),
    )


def _collectives(
    start_ns: NDArray[np.int64],
    *,
    kind: NDArray[np.int64],
    group: NDArray[np.int64],
    groups: tuple[RankGroup, ...],
    first: int,
) -> Collectives:
    row = np.empty(start_ns.size, np.int64)
    row[np.argsort(start_ns, kind="stable")] = np.arange(start_ns.size)
    order = np.argsort(row[first:])
    sequence = np.concatenate([np.arange(size) for size in np.bincount(group)])
    return Collectives.build(
        span=row[first:][order],
        kind=kind[order],
        groups=groups,
        group=group[order],
        bytes=np.where(group == 0, 1 << 24, 1 << 27)[order],
        sequence=sequence[order],
    )


def _step(start_ns: int, end_ns: int) -> StepWindows:
    return StepWindows.plain(np.array([STEP_NUMBER]), np.array([start_ns]), np.array([end_ns]))
