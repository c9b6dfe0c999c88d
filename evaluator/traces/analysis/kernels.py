"""The work of ranks by name, how the host launches it, and why devices are idle.

Kernel tables hold kernels, copies and fills, or operators of a host; whole traces count, inside
marked steps or not. A launch and the work that it started share a correlation number. One call may
start many kernels (a graph); then the first of them counts. Causes of idle time add up to it. The
distinction of a slow host from waiting work is that of Holistic Trace Analysis (Meta); here every
instant is judged, not every gap by its length.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evaluator.traces.analysis.breakdown import WORK, busy, job_windows
from evaluator.traces.intervals import Intervals, Nanoseconds, Sweep, first_place, own_time_ns
from evaluator.traces.model import Activity, Lane, RankTrace, Spans, StepWindows, TraceSet

FULL_COVERAGE: Final = 0.7
"""Above this coverage of its multiprocessors a long kernel is taken to be bound by compute."""
LOW_COVERAGE: Final = 0.5
"""Below this coverage a kernel is taken to be bound by memory."""
SHORT_KERNEL_NS: Final = 10_000
"""A kernel that is shorter does not outlast what starting it costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """All spans of one name that do the same.

    `total_s` sums durations, those that overlap too; for operators of a host it is their own time,
    without the operators that they call. `share` is of the total of all work. `bytes` is what they
    moved, in `bytes_s`, as far as the trace says.
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
        """Bytes over the duration of the spans that state their bytes; None when none does."""
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
class KernelCoverage:
    """How far kernels fill their device, over the kernels whose launch geometry is known.

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


_Sums: TypeAlias = dict[tuple[int, str], NDArray[np.float64]]
"""Count, ns, bytes and ns of what states its bytes, by activity and name.

Floats are exact for months of nanoseconds, and no absurd trace overflows them.
"""


def top_kernels(traces: TraceSet) -> KernelTables:
    """Count, time and bytes of the work of each rank and of the job, by activity and name."""
    own = [(trace.rank, _sums(trace)) for trace in traces.ranks]
    job: _Sums = defaultdict(lambda: np.zeros(4))
    for _, sums in own:
        for key, added in sums.items():
            job[key] += added
    return KernelTables(job=_table(None, job), by_rank=tuple(_table(*each) for each in own))


def coverage(traces: Iterable[RankTrace]) -> KernelCoverage | None:
    """How far kernels fill their devices; None when no trace states the geometry of a launch."""
    covered_ns = all_ns = compute_ns = compute_bound_ns = memory_bound_ns = 0.0
    for trace in traces:
        spans = trace.spans
        known = np.flatnonzero(~np.isnan(spans.blocks_per_sm) & (spans.activity <= 1))
        filled = np.minimum(spans.blocks_per_sm[known].astype(np.float64), 1)
        duration_ns = spans.duration_ns[known].astype(np.float64)
        computes = spans.activity[known] == Activity.COMPUTE
        long = duration_ns > SHORT_KERNEL_NS
        covered_ns += float(filled @ duration_ns)
        all_ns += float(duration_ns.sum())
        compute_ns += float(duration_ns[computes].sum())
        compute_bound_ns += float(duration_ns[computes & long & (filled > FULL_COVERAGE)].sum())
        memory_bound_ns += float(duration_ns[computes & (filled < LOW_COVERAGE)].sum())
    if not all_ns:
        return None
    return KernelCoverage(
        mean=covered_ns / all_ns,
        compute_bound=compute_bound_ns / compute_ns if compute_ns else None,
        memory_bound=memory_bound_ns / compute_ns if compute_ns else None,
    )


def _sums(trace: RankTrace) -> _Sums:
    """The work of one rank."""
    spans = trace.spans
    work = np.flatnonzero(spans.doing(*WORK))
    activities = len(Activity)
    key = spans.name_id[work].astype(np.int64) * activities + spans.activity[work]
    found, row = np.unique(key, return_inverse=True)
    duration_ns = durations_ns(trace, work)
    sizes = spans.bytes[work]
    counted = (np.ones(work.size), duration_ns, sizes, np.where(sizes > 0, duration_ns, 0))
    columns = np.stack([np.bincount(row, values, found.size) for values in counted], axis=1)
    sums: _Sums = defaultdict(lambda: np.zeros(4))
    for which, own in zip(found.tolist(), columns, strict=True):
        name_id, activity = divmod(which, activities)
        # Names may be there twice where a reader mended them.
        sums[activity, spans.names[name_id]] += own
    return sums


def durations_ns(trace: RankTrace, work: NDArray[np.int64]) -> Nanoseconds:
    """What each span adds to its name: operators of a host call each other, kernels do not."""
    spans = trace.spans
    duration_ns = spans.duration_ns[work]
    if not trace.on_device:
        operators = spans.activity[work] == Activity.COMPUTE
        rows = work[operators]
        duration_ns[operators] = own_time_ns(
            spans.start_ns[rows], spans.end_ns[rows], spans.lane_id[rows]
        )
    return duration_ns


def _table(rank: int | None, sums: _Sums) -> KernelTable:
    totals = {key: each.tolist() for key, each in sums.items()}
    all_ns = sum(total_ns for _, total_ns, _, _ in totals.values())
    rows = [
        KernelRow(
            activity=Activity(activity),
            name=name,
            count=int(count),
            total_s=total_ns / 1e9,
            share=total_ns / all_ns if all_ns else 0.0,
            bytes=int(moved),
            bytes_s=moved_ns / 1e9,
        )
        for (activity, name), (count, total_ns, moved, moved_ns) in totals.items()
    ]
    rows.sort(key=lambda row: (-row.total_s, row.name))
    return KernelTable(rank=rank, rows=tuple(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchStatistics:
    """Launches of one rank, or of a job where `rank` is None.

    Launches without recorded work are not counted. A delay lasts from the start of the call to
    the start of the first work that it started. Work that starts before its call does so by the
    clocks of host and device only: such launches are `early_share` of all, and no delays.
    `launches_per_step` is None without marked steps, `short_kernel_share` without kernels.
    """

    rank: int | None
    launch_count: int
    graph_launch_count: int
    """Launches that started several spans of work."""
    launches_per_step: float | None
    call_median_s: float
    call_total_s: float
    delay_median_s: float | None
    delay_p90_s: float | None
    early_share: float
    kernel_count: int
    short_kernel_share: float | None
    """Share of kernels, those that communicate too, that are shorter than 10 us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLaunches:
    """Launches of a job and of each rank whose trace shows any."""

    job: LaunchStatistics
    by_rank: tuple[LaunchStatistics, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamQueue:
    """How much work waits on a stream: handed over, because its call returned, and not started.

    `waiting_count` holds from `start_ns` to `end_ns`; all have shape (segments,), those in which
    nothing waits are left out.
    """

    lane: Lane
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    waiting_count: NDArray[np.int64]

    @property
    def longest_count(self) -> int:
        """The most that waited together."""
        return int(self.waiting_count.max(initial=0))

    @property
    def mean_count(self) -> float:
        """What waits on average, over the time in which anything does."""
        lasting_ns = (self.end_ns - self.start_ns).astype(np.float64)
        return float(np.average(self.waiting_count, weights=lasting_ns))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _LaunchColumns:
    """Columns of one rank, ns: shape (launches,), of kernels (kernels,)."""

    call_ns: Nanoseconds
    delay_ns: Nanoseconds
    work_count: NDArray[np.int64]
    kernel_ns: Nanoseconds
    in_steps_count: int
    step_count: int


def launch_pairs(spans: Spans) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the work whose launch is known, in order of start, and the row of each one's launch.

    Both int64 of shape (launched work,).
    """
    calls = np.flatnonzero((spans.activity == Activity.LAUNCH) & (spans.correlation != 0))
    work = np.flatnonzero(spans.doing(*WORK) & (spans.correlation != 0))
    launch = first_place(spans.correlation[calls], spans.correlation[work])
    return work[launch >= 0], calls[launch[launch >= 0]]


def launch_statistics(traces: TraceSet) -> JobLaunches | None:
    """Launches of each rank and of all together; None when no trace shows any."""
    columns = [(trace.rank, _launch_columns(trace)) for trace in traces.ranks]
    launching = [(rank, each) for rank, each in columns if each.call_ns.size]
    if not launching:
        return None
    return JobLaunches(
        job=_statistics(None, [each for _, each in launching]),
        by_rank=tuple(_statistics(rank, [each]) for rank, each in launching),
    )


def stream_queues(trace: RankTrace) -> tuple[StreamQueue, ...]:
    """The queue of each stream on which anything ever waited, over the whole trace."""
    spans = trace.spans
    work, calls = launch_pairs(spans)
    waits = spans.start_ns[work] > spans.end_ns[calls]
    work, calls = work[waits], calls[waits]
    sweep = Sweep.over(spans.end_ns[calls], spans.start_ns[work], spans.lane_id[work])
    lanes, firsts = np.unique(sweep.track, return_index=True)
    behind = np.searchsorted(sweep.track, lanes, side="right")
    return tuple(
        StreamQueue(
            lane=spans.lanes[lane],
            start_ns=sweep.start_ns[first:end],
            end_ns=sweep.end_ns[first:end],
            waiting_count=sweep.depth[0, first:end],
        )
        for lane, first, end in zip(lanes.tolist(), firsts.tolist(), behind.tolist(), strict=True)
    )


def _launch_columns(trace: RankTrace) -> _LaunchColumns:
    spans, steps = trace.spans, trace.host_steps
    work, calls = launch_pairs(spans)
    # Work is in order of start, so the first row of a launch is its earliest work.
    calls, first, work_count = np.unique(calls, return_index=True, return_counts=True)
    call_start_ns = spans.start_ns[calls]
    kernels = spans.doing(Activity.COMPUTE, Activity.COMMUNICATION)
    before = np.searchsorted(call_start_ns, np.stack((steps.start_ns, steps.end_ns)))
    return _LaunchColumns(
        call_ns=spans.duration_ns[calls],
        delay_ns=spans.start_ns[work[first]] - call_start_ns,
        work_count=work_count,
        kernel_ns=spans.duration_ns[kernels],
        in_steps_count=int((before[1] - before[0]).sum()),
        step_count=steps.count,
    )


def _statistics(rank: int | None, columns: Sequence[_LaunchColumns]) -> LaunchStatistics:
    call_ns = np.concatenate([each.call_ns for each in columns])
    delay_ns = np.concatenate([each.delay_ns for each in columns])
    kernel_ns = np.concatenate([each.kernel_ns for each in columns])
    real_ns = delay_ns[delay_ns >= 0]
    step_count = sum(each.step_count for each in columns)
    in_steps_count = sum(each.in_steps_count for each in columns)
    median_s, p90_s = _quantiles_s(real_ns)
    return LaunchStatistics(
        rank=rank,
        launch_count=int(call_ns.size),
        graph_launch_count=sum(int((each.work_count > 1).sum()) for each in columns),
        launches_per_step=in_steps_count / step_count if step_count else None,
        call_median_s=float(np.median(call_ns)) / 1e9,
        call_total_s=float(call_ns.sum(dtype=np.float64)) / 1e9,
        delay_median_s=median_s,
        delay_p90_s=p90_s,
        early_share=1 - real_ns.size / delay_ns.size,
        kernel_count=int(kernel_ns.size),
        short_kernel_share=float((kernel_ns < SHORT_KERNEL_NS).mean()) if kernel_ns.size else None,
    )


def _quantiles_s(values_ns: Nanoseconds) -> tuple[float | None, float | None]:
    """Median and 90th percentile, seconds; None for both without values."""
    if not values_ns.size:
        return None, None
    median_ns, p90_ns = np.quantile(values_ns, (0.5, 0.9)).tolist()
    return median_ns / 1e9, p90_ns / 1e9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IdleCauses:
    """Why one rank was idle: columns of int64 ns, shape (steps,), that add up to `idle_ns`.

    Kernel wait: work was handed over, its call had returned, and it had not started. Synchronising:
    nothing was handed over, because the device had run dry while the host waited for it. Host wait:
    nothing was handed over, for any other reason. Other: idle before work whose launch is unknown.
    """

    rank: int
    number: NDArray[np.int64]
    idle_ns: Nanoseconds
    kernel_wait_ns: Nanoseconds
    sync_ns: Nanoseconds
    host_wait_ns: Nanoseconds
    other_ns: Nanoseconds


def idle_causes(traces: TraceSet) -> tuple[IdleCauses, ...] | None:
    """Why each rank was idle, in the steps that all ranks profiled, or else in all of its work.

    None when no trace says how work was launched, or ranks have no step in common.
    """
    windows = job_windows(traces)
    launches = any(np.any(trace.spans.activity == Activity.LAUNCH) for trace in traces.ranks)
    if windows is None or not launches:
        return None
    return tuple(_causes(trace, own) for trace, own in zip(traces.ranks, windows, strict=True))


def _causes(trace: RankTrace, windows: StepWindows) -> IdleCauses:
    spans = trace.spans
    bounds = Intervals.union(windows.start_ns.min(keepdims=True), windows.end_ns.max(keepdims=True))
    gaps = bounds.subtract(busy(trace))
    work, calls = launch_pairs(spans)
    known = _known(trace, gaps, work)
    handed_ns = spans.end_ns[calls]
    queued = handed_ns < spans.start_ns[work]
    waiting = Intervals.union(handed_ns[queued], spans.start_ns[work[queued]])
    followed = gaps.chosen(known)
    synchronising = trace.covered(Activity.SYNC).contains(followed.start_ns)
    parts = (
        gaps,
        followed.intersect(waiting),
        followed.chosen(synchronising).subtract(waiting),
        followed.chosen(~synchronising).subtract(waiting),
        gaps.chosen(~known),
    )
    idle, kernel_wait, sync, host_wait, other = (
        part.covered_ns(windows.start_ns, windows.end_ns) for part in parts
    )
    return IdleCauses(
        rank=trace.rank,
        number=windows.number,
        idle_ns=idle,
        kernel_wait_ns=kernel_wait,
        sync_ns=sync,
        host_wait_ns=host_wait,
        other_ns=other,
    )


def _known(
    trace: RankTrace, gaps: Intervals, launched_work: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether the launch of what ends each gap is known, of any that starts there together.

    Nothing need follow the last gap.
    """
    if not launched_work.size:
        return np.zeros(gaps.start_ns.size, np.bool_)
    work = np.flatnonzero(trace.spans.doing(*WORK))
    launch_known = np.zeros(trace.spans.count, np.bool_)
    launch_known[launched_work] = True
    known_until = np.append(0, np.cumsum(launch_known[work]))
    starts_ns = trace.spans.start_ns[work]
    first = np.searchsorted(starts_ns, gaps.end_ns)
    following_ns = starts_ns[np.minimum(first, work.size - 1)]
    behind = np.searchsorted(starts_ns, following_ns, side="right")
    known: NDArray[np.bool_] = known_until[behind] > known_until[first]
    last: NDArray[np.bool_] = first == work.size
    return known | last
