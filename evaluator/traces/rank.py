"""The trace of one rank."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from evaluator.intervals import Intervals, Nanoseconds, Sweep
from evaluator.traces.collectives import Collectives
from evaluator.traces.spans import Activity, Spans
from evaluator.traces.steps import StepWindows


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The accelerator that a rank computes on, as far as the trace tells."""

    name: str
    multiprocessor_count: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryUse:
    """What the allocator had handed out, bytes, each time it changed; shape (changes,)."""

    time_ns: Nanoseconds
    allocated_bytes: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankTrace:
    """What one rank did, on its own clock.

    `steps` are windows on the device: from the first work of a step to the last, where the trace
    tells. `host_steps` are the same steps as the host saw them; both are equal for a job on CPUs.
    `world_size`, `backend`, `device` and `memory` are None where the trace does not say.
    `caveats` tell in words what had to be mended or left out, and how often.
    """

    rank: int
    world_size: int | None
    backend: str | None
    device: Device | None
    source: str
    """Format of the file: kineto, xla or nsys."""
    spans: Spans
    collectives: Collectives
    steps: StepWindows
    host_steps: StepWindows
    memory: MemoryUse | None = None
    caveats: tuple[str, ...] = ()

    @property
    def on_device(self) -> bool:
        """Whether the work is that of an accelerator; else it is the host's own."""
        return self.device is not None

    @property
    def has_work(self) -> bool:
        """Whether the trace holds any work of the rank."""
        return bool(np.any(self.spans.activity <= Activity.FILL))

    def covered(self, *activities: Activity) -> Intervals:
        """Time in which at least one span of these activities ran."""
        return self.spans.union(self.spans.doing(*activities))

    def computing(self) -> Intervals:
        """Time in which something computed: compute spans without the waits of their thread."""
        spans = self.spans
        compute, waits = spans.doing(Activity.COMPUTE), spans.doing(Activity.WAIT)
        waiting = np.isin(spans.lane_id, np.unique(spans.lane_id[waits]))
        busy = spans.union(compute & ~waiting)
        rows = np.flatnonzero((compute | waits) & waiting)
        sweep = Sweep.over(
            spans.start_ns[rows],
            spans.end_ns[rows],
            spans.lane_id[rows],
            groups=(compute[rows], waits[rows]),
        )
        computes, waits_open = sweep.depth
        return busy.unite(sweep.where((computes > 0) & (waits_open == 0)))

    def communicating(self) -> Intervals:
        """Time in which at least one collective or transfer between ranks was under way."""
        return self.covered(Activity.COMMUNICATION)

    def shifted(self, offset_ns: int) -> Self:
        """The same trace on a clock that reads more by `offset_ns`."""
        spans, memory = self.spans, self.memory
        return replace(
            self,
            spans=replace(
                spans, start_ns=spans.start_ns + offset_ns, end_ns=spans.end_ns + offset_ns
            ),
            steps=self.steps.shifted(offset_ns),
            host_steps=self.host_steps.shifted(offset_ns),
            memory=memory and replace(memory, time_ns=memory.time_ns + offset_ns),
        )
