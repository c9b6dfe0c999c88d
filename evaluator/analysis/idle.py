"""Why a device was idle, from what the host had handed over: causes that add up to the idle time.

The idea of telling a slow host from work that waits is that of Holistic Trace Analysis (Meta);
here every instant is judged, not every gap by its length.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluator.analysis.breakdown import WORK, busy, job_windows
from evaluator.analysis.launches import launched
from evaluator.intervals import Intervals, Nanoseconds
from evaluator.traces.job import TraceSet
from evaluator.traces.rank import RankTrace
from evaluator.traces.spans import Activity
from evaluator.traces.steps import StepWindows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IdleCauses:
    """Why one rank was idle: columns of int64 ns, shape (steps,), that add up to `idle_ns`.

    Kernel wait: work was handed over, its call had returned, and it had not started. Synchronising:
    nothing was handed over, because the device had run dry while the host waited for it. Host wait:
    nothing was handed over, for any other reason. Other: idle before work whose launch is not told.
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

    None when no trace tells how work was launched, or ranks have no step in common.
    """
    windows = job_windows(traces)
    told = any(np.any(trace.spans.activity == Activity.LAUNCH) for trace in traces.ranks)
    if windows is None or not told:
        return None
    return tuple(_causes(trace, own) for trace, own in zip(traces.ranks, windows, strict=True))


def _causes(trace: RankTrace, windows: StepWindows) -> IdleCauses:
    spans = trace.spans
    bounds = Intervals.union(windows.start_ns.min(keepdims=True), windows.end_ns.max(keepdims=True))
    gaps = bounds.subtract(busy(trace))
    work, calls = launched(spans)
    known = _known(trace, gaps, work)
    handed_ns = spans.end_ns[calls]
    queued = handed_ns < spans.start_ns[work]
    waiting = Intervals.union(handed_ns[queued], spans.start_ns[work[queued]])
    told = gaps.chosen(known)
    synchronising = trace.covered(Activity.SYNC).contains(told.start_ns)
    parts = (
        gaps,
        told.intersect(waiting),
        told.chosen(synchronising).subtract(waiting),
        told.chosen(~synchronising).subtract(waiting),
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
    """Whether the launch of what ends each gap is told, of any that starts there at once.

    Nothing need follow the last gap.
    """
    if not launched_work.size:
        return np.zeros(gaps.start_ns.size, np.bool_)
    work = np.flatnonzero(trace.spans.doing(*WORK))
    launch_told = np.zeros(trace.spans.count, np.bool_)
    launch_told[launched_work] = True
    told_until = np.append(0, np.cumsum(launch_told[work]))
    starts_ns = trace.spans.start_ns[work]
    first = np.searchsorted(starts_ns, gaps.end_ns)
    following_ns = starts_ns[np.minimum(first, work.size - 1)]
    behind = np.searchsorted(starts_ns, following_ns, side="right")
    known: NDArray[np.bool_] = told_until[behind] > told_until[first]
    last: NDArray[np.bool_] = first == work.size
    return known | last
