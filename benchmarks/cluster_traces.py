"""Reduced traces of a made-up job on many nodes, with its straggler known, as nodes send them.

Tensor parallel groups within each node, data parallel groups over all nodes: each layer computes
and has two all-gathers and two reduce-scatters in its node; gradients are reduced over nodes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from evaluator.traces.model import Activity, CollectiveKind, Device, RankGroup, RankTrace
from evaluator.traces.reduction import write_reduced
from evaluator.traces.testing import Span, rank_trace

BEGIN_NS = 1_800_000_000 * 10**9
CLOCKS_DIFFER_NS = 1_000_003
CALLS_OF_LAYER = 4
KINDS = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
COMPUTE_NS, CALL_NS, GAP_NS = 100_000, 40_000, 2_000
LATE_NS = COMPUTE_NS // 10
BUCKETS, BUCKET_NS = 16, 800_000
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

    def write(self, number: int, folder: Path) -> Path:
        """Write what a node sends of its traces."""
        first, path = number * self.ranks_per_node, folder / f"node{number}.columns"
        write_reduced([*map(self._trace, range(first, first + self.ranks_per_node))], path)
        return path

    def _trace(self, rank: int) -> RankTrace:
        node = rank // self.ranks_per_node
        begin_ns = BEGIN_NS + node * CLOCKS_DIFFER_NS
        spans = [*self._spans(rank, begin_ns)]
        trace = rank_trace(
            spans,
            steps=[(STEP_NUMBER, begin_ns, spans[-1].end_ns)],
            rank=rank,
            world_size=self.world_size,
            backend="nccl",
            device=Device(name="NVIDIA H100"),
        )
        return replace(trace, reduced=True)

    def _spans(self, rank: int, now_ns: int) -> Iterator[Span]:
        """Layers, in which its node waits for the straggler, then gradients, where all do."""
        node, local = divmod(rank, self.ranks_per_node)
        first = node * self.ranks_per_node
        inside = RankGroup("tp", tuple(range(first, first + self.ranks_per_node)))
        across = RankGroup("dp", tuple(range(local, self.world_size, self.ranks_per_node)))
        is_near = node == self.straggler // self.ranks_per_node
        call_count = self.layer_count * CALLS_OF_LAYER
        compute_ns = COMPUTE_NS + LATE_NS * (rank == self.straggler)
        call_ns = CALL_NS + LATE_NS * (is_near and rank != self.straggler)
        for call in range(call_count):
            yield Span(Activity.COMPUTE, now_ns, now_ns + compute_ns, name="")
            now_ns += compute_ns
            yield _call(KINDS[call % 2], now_ns, call_ns, inside, 1 << 24, call)
            now_ns += call_ns + GAP_NS
        for bucket in range(BUCKETS):
            bucket_ns = BUCKET_NS + call_count * LATE_NS * (not is_near and bucket == 0)
            yield _call(CollectiveKind.ALL_REDUCE, now_ns, bucket_ns, across, 1 << 27, bucket)
            now_ns += bucket_ns


def _call(
    kind: CollectiveKind, start_ns: int, long_ns: int, group: RankGroup, size: int, sequence: int
) -> Span:
    return Span(
        Activity.COMMUNICATION,
        start_ns,
        start_ns + long_ns,
        name="",
        collective=kind,
        group=group,
        payload_bytes=size,
        sequence=sequence,
    )
