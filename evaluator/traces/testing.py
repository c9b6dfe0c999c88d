"""Build the trace of a rank from spans, for the tests of metrics."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.traces.model import (
    Activity,
    CollectiveKind,
    Collectives,
    Device,
    Lane,
    RankGroup,
    RankTrace,
    Spans,
    StepKind,
    StepWindows,
)

ALL = RankGroup("0")


@dataclass(frozen=True, slots=True)
class Span:
    """One span; a collective where it says which. Times in ns."""

    activity: Activity
    start_ns: int
    end_ns: int
    name: str = "span"
    lane: int = 0
    correlation: int = 0
    bytes: int = 0
    flops: float = float("nan")
    blocks_per_sm: float = float("nan")
    collective: CollectiveKind | None = None
    group: RankGroup = ALL
    payload_bytes: int = 0
    sequence: int = -1


def rank_trace(
    spans: Iterable[Span],
    *,
    steps: Sequence[tuple[int, int, int]] = ((0, 0, 100),),
    host_steps: Sequence[tuple[int, int, int]] | None = None,
    kinds: Sequence[StepKind] | None = None,
    rank: int = 0,
    world_size: int | None = None,
    backend: str | None = None,
    device: Device | None = None,
) -> RankTrace:
    """The trace of one rank; steps are (number, start, end) in ns, host steps the same if None."""
    rows = sorted(spans, key=lambda span: span.start_ns)
    names = tuple(dict.fromkeys(row.name for row in rows))
    lane_count = 1 + max((row.lane for row in rows), default=0)
    return RankTrace(
        rank=rank,
        world_size=world_size,
        backend=backend,
        device=device,
        source="kineto",
        spans=Spans(
            start_ns=np.array([row.start_ns for row in rows], np.int64),
            end_ns=np.array([row.end_ns for row in rows], np.int64),
            name_id=np.array([names.index(row.name) for row in rows], np.int32),
            lane_id=np.array([row.lane for row in rows], np.int32),
            activity=np.array([row.activity for row in rows], np.int8),
            correlation=np.array([row.correlation for row in rows], np.int64),
            bytes=np.array([row.bytes for row in rows], np.int64),
            flops=np.array([row.flops for row in rows], np.float64),
            blocks_per_sm=np.array([row.blocks_per_sm for row in rows], np.float32),
            occupancy=np.full(len(rows), np.nan, np.float32),
            names=names,
            lanes=tuple(Lane("0", str(lane)) for lane in range(lane_count)),
        ),
        collectives=_collectives(rows),
        steps=_windows(steps, kinds),
        host_steps=_windows(steps if host_steps is None else host_steps, kinds),
    )


def _collectives(rows: Sequence[Span]) -> Collectives:
    collective_rows = [(index, row) for index, row in enumerate(rows) if row.collective is not None]
    groups = tuple(dict.fromkeys(row.group for _, row in collective_rows))
    return Collectives(
        span=np.array([index for index, _ in collective_rows], np.int64),
        kind=np.array([row.collective for _, row in collective_rows], np.int8),
        group_id=np.array([groups.index(row.group) for _, row in collective_rows], np.int32),
        bytes=np.array([row.payload_bytes for _, row in collective_rows], np.int64),
        sequence=np.array([row.sequence for _, row in collective_rows], np.int64),
        groups=groups,
    )


def _windows(
    steps: Sequence[tuple[int, int, int]], kinds: Sequence[StepKind] | None
) -> StepWindows:
    number, start_ns, end_ns = np.array(steps, np.int64).reshape(-1, 3).T
    kind = np.zeros(number.size, np.int8) if kinds is None else np.array(kinds, np.int8)
    return StepWindows(number=number, start_ns=start_ns, end_ns=end_ns, kind=kind)
