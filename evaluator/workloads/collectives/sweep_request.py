"""What a sweep is asked to measure, and what it found at each point."""

from dataclasses import dataclass, field
from enum import StrEnum

from evaluator.rank.job import DeviceKind
from evaluator.workloads.collectives.adapters.adapter import AdapterName
from evaluator.workloads.collectives.operations import Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """Every point in the order of measurement, and how each is sampled.

    A block is `sync_interval` calls between two looks at the clock, with the device idle at both;
    0 makes one block of all `measure_iterations`. A point that takes longer than `timeout_s` ends
    the sweep.
    """

    adapter: AdapterName
    backend: str
    device: DeviceKind
    operations: tuple[Operation, ...]
    warmup_iterations: int = field(default=5, metadata={"least": 0})
    measure_iterations: int = 1000
    sync_interval: int = field(default=0, metadata={"least": 0})
    async_op: bool = False
    timeout_s: float = 60.0
    threads_per_rank: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFacts:
    """What only a rank knows of where a sweep runs; None for what nothing tells."""

    device_name: str | None
    """Of an accelerator."""
    torch_version: str
    torchcomms_version: str | None
    """Of the torchcomms that carries the sweep; None where it does not."""
    backend_name: str
    backend_version: str | None


class PointStatus(StrEnum):
    """What became of a point."""

    MEASURED = "measured"
    SKIPPED = "skipped"
    """The library lacks it, or it has no meaning with so many ranks."""
    WRONG_RESULT = "wrong_result"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PointSamples:
    """One measured point: durations in ns of each block on each rank, shaped (ranks, blocks).

    `block_calls` is how many calls each block made; of a send_recv a call is there and back.
    `started_at` is UTC in ISO format. Without times `reason` tells why, in one line.
    """

    operation: Operation
    status: PointStatus
    started_at: str
    reason: str = ""
    block_calls: tuple[int, ...] = ()
    block_ns: tuple[tuple[int, ...], ...] = field(default=(), metadata={"least": 0})
