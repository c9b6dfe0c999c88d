"""What the work of ranks consists of, by name: kernels, copies and fills, or operators of a host.

Whole traces count, whether inside marked steps or not. Names tell rows apart and nothing else.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evaluator.analysis.breakdown import WORK
from evaluator.intervals import Nanoseconds, own_time_ns
from evaluator.traces.job import TraceSet
from evaluator.traces.rank import RankTrace
from evaluator.traces.spans import Activity

FULL_COVERAGE: Final = 0.7
"""Above this coverage of its multiprocessors a long kernel is taken to be bound by compute."""
LOW_COVERAGE: Final = 0.5
"""Below this coverage a kernel is taken to be bound by memory."""
LONG_KERNEL_S: Final = 10e-6
"""A kernel that is shorter does not outlast what starting it costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """All spans of one name that do the same.

    `total_s` sums durations, those that overlap too; for operators of a host it is their own time,
    without the operators that they call. `share` is of the total of all work. `bytes` is what they
    moved, in `bytes_s`, as far as the trace tells.
    """

    activity: Activity
    name: str
    count: int
    total_s: float
    share: float
    bytes: int
    bytes_s: float

    @property
    def mean_s(self) -> float:
        """Mean duration."""
        return self.total_s / self.count

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes over the duration of the spans that tell their bytes; None when none does."""
        return self.bytes / self.bytes_s if self.bytes and self.bytes_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """The work of one rank, or of a job where `rank` is None; the longest total comes first."""

    rank: int | None
    rows: tuple[KernelRow, ...]

    @property
    def kernel_s(self) -> float:
        """Time of all kernels that compute or communicate, without copies and fills."""
        return sum(row.total_s for row in self.kernels)

    @property
    def kernels(self) -> tuple[KernelRow, ...]:
        """The rows that compute or communicate."""
        return tuple(row for row in self.rows if row.activity <= Activity.COMMUNICATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How far kernels fill their device, over the kernels whose launch geometry is told.

    Coverage is min(blocks per multiprocessor, 1): geometry, not occupancy. `mean` is weighted by
    duration, over all kernels. `compute_bound` and `memory_bound` are shares of the time of
    kernels that compute, whose blocks say nothing where they communicate; None without any.
    """

    mean: float
    compute_bound: float | None
    memory_bound: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTables:
    """The work of a job and of each of its ranks, by name."""

    job: KernelTable
    by_rank: tuple[KernelTable, ...]


@dataclass(slots=True)
class _Sums:
    """Sums of floats: exact for months of nanoseconds, and no absurd trace overflows them."""

    count: int = 0
    total_ns: float = 0.0
    bytes: float = 0.0
    bytes_ns: float = 0.0


def top_kernels(traces: TraceSet) -> KernelTables:
    """Count, time and bytes of the work of each rank and of the job, by activity and name."""
    job: dict[tuple[int, str], _Sums] = {}
    by_rank = []
    for trace in traces.ranks:
        own = _sums(trace)
        by_rank.append(_table(trace.rank, own))
        for key, sums in own.items():
            whole = job.setdefault(key, _Sums())
            whole.count += sums.count
            whole.total_ns += sums.total_ns
            whole.bytes += sums.bytes
            whole.bytes_ns += sums.bytes_ns
    return KernelTables(job=_table(None, job), by_rank=tuple(by_rank))


def coverage(traces: Iterable[RankTrace]) -> Coverage | None:
    """How far kernels fill their devices; None when no trace tells the geometry of a launch."""
    covered_ns = all_ns = compute_ns = compute_bound_ns = memory_bound_ns = 0.0
    for trace in traces:
        spans = trace.spans
        told = np.flatnonzero(~np.isnan(spans.blocks_per_sm) & (spans.activity <= 1))
        filled = np.minimum(spans.blocks_per_sm[told].astype(np.float64), 1)
        duration_ns = (spans.end_ns[told] - spans.start_ns[told]).astype(np.float64)
        computes = spans.activity[told] == Activity.COMPUTE
        long = duration_ns > LONG_KERNEL_S * 1e9
        covered_ns += float(filled @ duration_ns)
        all_ns += float(duration_ns.sum())
        compute_ns += float(duration_ns[computes].sum())
        compute_bound_ns += float(duration_ns[computes & long & (filled > FULL_COVERAGE)].sum())
        memory_bound_ns += float(duration_ns[computes & (filled < LOW_COVERAGE)].sum())
    if not all_ns:
        return None
    return Coverage(
        mean=covered_ns / all_ns,
        compute_bound=compute_bound_ns / compute_ns if compute_ns else None,
        memory_bound=memory_bound_ns / compute_ns if compute_ns else None,
    )


def _sums(trace: RankTrace) -> dict[tuple[int, str], _Sums]:
    """The work of one rank, by activity and name."""
    spans = trace.spans
    work = np.flatnonzero(spans.doing(*WORK))
    activities = len(Activity)
    key = spans.name_id[work].astype(np.int64) * activities + spans.activity[work]
    found, row = np.unique(key, return_inverse=True)
    duration_ns = _durations_ns(trace, work)
    sizes = spans.bytes[work]
    columns = zip(
        found.tolist(),
        np.bincount(row, minlength=found.size).tolist(),
        np.bincount(row, duration_ns, found.size).tolist(),
        np.bincount(row, sizes, found.size).tolist(),
        np.bincount(row, np.where(sizes > 0, duration_ns, 0), found.size).tolist(),
        strict=True,
    )
    sums: dict[tuple[int, str], _Sums] = {}
    for which, count, total_ns, moved, moved_ns in columns:
        name_id, activity = divmod(which, activities)
        # Names may be there twice where a reader mended them.
        own = sums.setdefault((activity, spans.names[name_id]), _Sums())
        own.count += count
        own.total_ns += total_ns
        own.bytes += moved
        own.bytes_ns += moved_ns
    return sums


def _durations_ns(trace: RankTrace, work: NDArray[np.int64]) -> Nanoseconds:
    """What each span adds to its name: operators of a host call each other, kernels do not."""
    spans = trace.spans
    duration_ns = spans.end_ns[work] - spans.start_ns[work]
    if not trace.on_device:
        operators = spans.activity[work] == Activity.COMPUTE
        rows = work[operators]
        duration_ns[operators] = own_time_ns(
            spans.start_ns[rows], spans.end_ns[rows], spans.lane_id[rows]
        )
    return duration_ns


def _table(rank: int | None, sums: dict[tuple[int, str], _Sums]) -> KernelTable:
    all_ns = sum(each.total_ns for each in sums.values())
    rows = [
        KernelRow(
            activity=Activity(activity),
            name=name,
            count=each.count,
            total_s=each.total_ns / 1e9,
            share=each.total_ns / all_ns if all_ns else 0.0,
            bytes=int(each.bytes),
            bytes_s=each.bytes_ns / 1e9,
        )
        for (activity, name), each in sums.items()
    ]
    rows.sort(key=lambda row: (-row.total_s, row.name))
    return KernelTable(rank=rank, rows=tuple(rows))
