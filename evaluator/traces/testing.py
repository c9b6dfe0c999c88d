"""Builders for traces in tests: rank traces in ns, and Kineto files in microseconds."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from evaluator.traces.intervals import Intervals
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
from evaluator.traces.readers.kineto.reader import read_rank

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
    told = [(index, row) for index, row in enumerate(rows) if row.collective is not None]
    groups = tuple(dict.fromkeys(row.group for _, row in told))
    return Collectives(
        span=np.array([index for index, _ in told], np.int64),
        kind=np.array([row.collective for _, row in told], np.int8),
        group_id=np.array([groups.index(row.group) for _, row in told], np.int32),
        bytes=np.array([row.payload_bytes for _, row in told], np.int64),
        sequence=np.array([row.sequence for _, row in told], np.int64),
        groups=groups,
    )


def _windows(
    steps: Sequence[tuple[int, int, int]], kinds: Sequence[StepKind] | None
) -> StepWindows:
    number, start_ns, end_ns = np.array(steps, np.int64).reshape(-1, 3).T
    kind = np.zeros(number.size, np.int8) if kinds is None else np.array(kinds, np.int8)
    return StepWindows(number=number, start_ns=start_ns, end_ns=end_ns, kind=kind)


Fields: TypeAlias = Mapping[str, object]

RANK_0_OF_2: Fields = {"backend": "gloo", "rank": 0, "world_size": 2}
NCCL: Fields = {"backend": "nccl", "rank": 0, "world_size": 2}
MAIN, GLOO_THREAD, STREAM = 1, 2, 20


def span(
    cat: str, name: str, ts: object, dur: object, tid: object = MAIN, **args: object
) -> dict[str, object]:
    """What the host did."""
    event = {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur}
    return event | ({"args": args} if args else {})


def kernel(
    name: str, ts: object, dur: object, tid: object = STREAM, **args: object
) -> dict[str, object]:
    """What the device did."""
    return span("kernel", name, ts, dur, tid, **args) | {"pid": 0}


def launch(ts: object, correlation: object, name: str = "cudaLaunchKernel") -> dict[str, object]:
    """A call of the host that hands work to the device."""
    return span("cuda_runtime", name, ts, 1, correlation=correlation)


def thread_name(tid: object, name: str) -> dict[str, object]:
    """What names a thread."""
    return {"ph": "M", "name": "thread_name", "pid": 7, "tid": tid, "args": {"name": name}}


def write(folder: Path, document: object, name: str = "rank0_trace.json") -> Path:
    """A trace file of these fields, or of these very bytes."""
    path = folder / name
    path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
    return path


def trace_of(
    folder: Path, *events: Fields, distributed: Fields = RANK_0_OF_2, **top: object
) -> RankTrace:
    """What is read from these events, with these fields around them."""
    document = {"distributedInfo": distributed, **top, "traceEvents": list(events)}
    return read_rank(write(folder, document))


def pieces(intervals: Intervals) -> list[tuple[int, int]]:
    """Starts and ends."""
    return list(zip(intervals.start_ns.tolist(), intervals.end_ns.tolist(), strict=True))
