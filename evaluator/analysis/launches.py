"""How the host hands work to its device: delays, calls, and what waits on each stream.

A launch and the work that it started share a correlation number. One call may start many kernels
(a graph); what then counts is the first of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evaluator.analysis.breakdown import WORK
from evaluator.intervals import Nanoseconds, Sweep
from evaluator.traces.job import TraceSet
from evaluator.traces.rank import RankTrace
from evaluator.traces.spans import Activity, Lane, Spans

SHORT_KERNEL_NS: Final = 10_000
"""A kernel that is shorter does not outlast what starting it costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchStatistics:
    """Launches of one rank, or of a job where `rank` is None.

    Launches without work on record are not counted. A delay lasts from the start of the call to
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
    """Launches of a job and of each rank whose trace tells any."""

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
        """The most that waited at once."""
        return int(self.waiting_count.max(initial=0))

    @property
    def mean_count(self) -> float:
        """What waits on average, over the time in which anything does."""
        lasting_ns = (self.end_ns - self.start_ns).astype(np.float64)
        return float(np.average(self.waiting_count, weights=lasting_ns))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Launched:
    """Columns of one rank, ns: shape (launches,), of kernels (kernels,)."""

    call_ns: Nanoseconds
    delay_ns: Nanoseconds
    work_count: NDArray[np.int64]
    kernel_ns: Nanoseconds
    in_steps_count: int
    step_count: int


def launched(spans: Spans) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the work whose launch is told, in order of start, and the row of each one's launch.

    Both int64 of shape (launched work,).
    """
    calls = np.flatnonzero((spans.activity == Activity.LAUNCH) & (spans.correlation != 0))
    work = np.flatnonzero(spans.doing(*WORK) & (spans.correlation != 0))
    if not calls.size:
        return work[:0], calls
    calls = calls[np.argsort(spans.correlation[calls], kind="stable")]
    numbers = spans.correlation[calls]
    at = np.minimum(np.searchsorted(numbers, spans.correlation[work]), calls.size - 1)
    found = numbers[at] == spans.correlation[work]
    return work[found], calls[at[found]]


def launch_statistics(traces: TraceSet) -> JobLaunches | None:
    """Launches of each rank and of all together; None when no trace tells any."""
    columns = [(trace.rank, _launched(trace)) for trace in traces.ranks]
    told = [(rank, each) for rank, each in columns if each.call_ns.size]
    if not told:
        return None
    return JobLaunches(
        job=_statistics(None, [each for _, each in told]),
        by_rank=tuple(_statistics(rank, [each]) for rank, each in told),
    )


def stream_queues(trace: RankTrace) -> tuple[StreamQueue, ...]:
    """The queue of each stream on which anything ever waited, over the whole trace."""
    spans = trace.spans
    work, calls = launched(spans)
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


def _launched(trace: RankTrace) -> _Launched:
    spans, steps = trace.spans, trace.host_steps
    work, calls = launched(spans)
    # Work is in order of start, so the first row of a launch is its earliest work.
    calls, first, work_count = np.unique(calls, return_index=True, return_counts=True)
    call_start_ns = spans.start_ns[calls]
    kernels = spans.doing(Activity.COMPUTE, Activity.COMMUNICATION)
    before = np.searchsorted(call_start_ns, np.stack((steps.start_ns, steps.end_ns)))
    return _Launched(
        call_ns=spans.end_ns[calls] - call_start_ns,
        delay_ns=spans.start_ns[work[first]] - call_start_ns,
        work_count=work_count,
        kernel_ns=spans.end_ns[kernels] - spans.start_ns[kernels],
        in_steps_count=int((before[1] - before[0]).sum()),
        step_count=steps.count,
    )


def _statistics(rank: int | None, columns: Sequence[_Launched]) -> LaunchStatistics:
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
