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
    names = list(dict.fromkeys(row.name for row in rows))
    lane_count = 1 + max((row.lane for row in rows), default=0)
    stated = ("start_ns", "end_ns", "activity", "correlation", "bytes", "flops", "blocks_per_sm")
    calls = [(i, row.collective, row) for i, row in enumerate(rows) if row.collective is not None]
    return RankTrace(
        rank=rank,
        world_size=world_size,
        backend=backend,
        device=device,
        source="kineto",
        spans=Spans.build(
            name_id=[names.index(row.name) for row in rows],
            lane_id=[row.lane for row in rows],
            names=names,
            lanes=[Lane("0", str(lane)) for lane in range(lane_count)],
            **{name: [getattr(row, name) for row in rows] for name in stated},
        ),
        collectives=Collectives.build(
            span=np.array([place for place, _, _ in calls], np.int64),
            kind=[kind for _, kind, _ in calls],
            groups=[row.group for _, _, row in calls],
            bytes=[row.payload_bytes for _, _, row in calls],
            sequence=[row.sequence for _, _, row in calls],
        ),
        steps=_windows(steps, kinds),
        host_steps=_windows(steps if host_steps is None else host_steps, kinds),
    )


def _windows(
    steps: Sequence[tuple[int, int, int]], kinds: Sequence[StepKind] | None
) -> StepWindows:
    number, start_ns, end_ns = np.array(steps, np.int64).reshape(-1, 3).T
    kind = np.zeros(number.size, np.int8) if kinds is None else np.array(kinds, np.int8)
    return StepWindows(number=number, start_ns=start_ns, end_ns=end_ns, kind=kind)
