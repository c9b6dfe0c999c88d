"""Events and files of Kineto, times in microseconds, and what is read from them, for tests."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from evaluator.traces.model import RankTrace
from evaluator.traces.readers.kineto.reader import read_rank

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
