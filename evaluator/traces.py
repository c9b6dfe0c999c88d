"""What a profiler saw, whatever the format of its file: the spans and the steps of each rank."""

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evaluator.intervals import Intervals, Nanoseconds
from records.errors import CclsearchError


class TraceError(CclsearchError):
    """A file is not a trace that can be measured; says which file and what is wrong with it."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")


class Activity(IntEnum):
    """What a span did; the reader of a format decides, nothing after it looks at names."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2
    FILL = 3
    WAIT = 4
    """Waiting or handing over work inside a compute span of the same thread: not compute."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepWindows:
    """When each profiled step ran, [start, end); int64 arrays of shape (steps,), by number."""

    number: NDArray[np.int64]
    start_ns: Nanoseconds
    end_ns: Nanoseconds

    def __post_init__(self) -> None:
        if np.any(self.number[1:] <= self.number[:-1]) or np.any(self.end_ns < self.start_ns):
            raise ValueError("step numbers must rise and no step may end before it starts")

    def among(self, numbers: NDArray[np.int64]) -> "StepWindows":
        """Only the steps of these numbers."""
        kept = np.isin(self.number, numbers)
        return StepWindows(
            number=self.number[kept], start_ns=self.start_ns[kept], end_ns=self.end_ns[kept]
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankTrace:
    """The spans of one rank in order of start, as columns of shape (spans,).

    Times are nanoseconds since the Unix epoch on the rank's own clock. `name_id` indexes `names`;
    `thread_id` numbers the rank's streams (devices) or threads (host) from 0; `activity` holds
    `Activity` values. `world_size` and `backend` are None where the trace does not say.
    """

    rank: int
    world_size: int | None
    backend: str | None
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    name_id: NDArray[np.int32]
    thread_id: NDArray[np.int32]
    activity: NDArray[np.int8]
    names: tuple[str, ...]
    steps: StepWindows

    def covered(self, *activities: Activity) -> Intervals:
        """Time in which at least one span of these activities ran."""
        return self._union(np.isin(self.activity, activities))

    def computing(self) -> Intervals:
        """Time in which something computed: compute spans without the waits of their thread."""
        compute = self.activity == Activity.COMPUTE
        waits = self.activity == Activity.WAIT
        waiting_threads = np.unique(self.thread_id[waits])
        busy = self._union(compute & ~np.isin(self.thread_id, waiting_threads))
        for thread in waiting_threads:
            own = self.thread_id == thread
            busy = busy.unite(self._union(compute & own).subtract(self._union(waits & own)))
        return busy

    def communicating(self) -> Intervals:
        """Time in which at least one collective or transfer between ranks was under way."""
        return self.covered(Activity.COMMUNICATION)

    def _union(self, chosen: NDArray[np.bool_]) -> Intervals:
        return Intervals.union(self.start_ns[chosen], self.end_ns[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSet:
    """The traces of one job, by rising rank; ranks may be missing, none is there twice."""

    ranks: tuple[RankTrace, ...]

    def __post_init__(self) -> None:
        numbers = [trace.rank for trace in self.ranks]
        if not numbers or numbers != sorted(set(numbers)):
            raise ValueError(f"ranks must rise and be one at least, not {numbers}")
        sizes = {trace.world_size for trace in self.ranks} - {None}
        if len(sizes) > 1 or any(size is not None and numbers[-1] >= size for size in sizes):
            raise ValueError(f"ranks {numbers} do not fit world sizes {sorted(map(str, sizes))}")

    @property
    def world_size(self) -> int | None:
        """How many ranks the job had; None when no trace says."""
        return next((t.world_size for t in self.ranks if t.world_size is not None), None)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the job without a trace; empty when the size of the job is unknown."""
        present = {trace.rank for trace in self.ranks}
        return tuple(rank for rank in range(self.world_size or 0) if rank not in present)

    @property
    def common_steps(self) -> NDArray[np.int64]:
        """Numbers of the steps that every rank profiled, int64, shape (steps,), rising."""
        numbers = self.ranks[0].steps.number
        for trace in self.ranks[1:]:
            numbers = np.intersect1d(numbers, trace.steps.number, assume_unique=True)
        return numbers
