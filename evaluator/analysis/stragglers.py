"""Which rank the others wait for, what that costs, and how unequally ranks compute.

Whoever comes last to a collective that all must attend is in it for the shortest time, so its
duration is the transfer alone and what others take longer is waiting. That needs no common clock.
Start times name the same rank where the clocks of ranks are known to agree.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluator.analysis.breakdown import JobSplit, job_windows
from evaluator.analysis.matching import Matches
from evaluator.intervals import Intervals, Nanoseconds
from evaluator.traces.collectives import SYNCHRONISING
from evaluator.traces.job import TraceSet
from evaluator.traces.steps import StepWindows


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWaits:
    """What one rank waited, and what others waited for it, per step.

    `last_share` is the part of its collectives to which it came last, ranks that tie sharing one;
    `chance_share` what that would be if it were chance. Waits are sums over collectives: two at
    once count twice. The last two are None where clocks are not known to agree.
    """

    rank: int
    collective_count: int
    last_share: float | None
    chance_share: float | None
    caused_wait_s: float
    waited_s: float
    latest_start_share: float | None
    mean_lateness_s: float | None
    """Start after the first rank's start, mean over its collectives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """Who waits for whom over the steps that all traced ranks profiled, or the whole trace.

    `straggler` is the rank for which the others waited longest; None if nobody waited. Of the time
    in their steps the other ranks spent `waiting_share` waiting for it, and `exposed_share` waiting
    for it while they computed nothing, which is time lost. Both are means over those ranks, in
    which times at once count once.
    Where `partial_count` of the `collective_count` collectives are not shown by all ranks of their
    group, ranks without a trace may have come later still.
    """

    ranks: tuple[RankWaits, ...]
    step_count: int
    collective_count: int
    partial_count: int
    straggler: int | None
    waiting_share: float
    exposed_share: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Waits:
    """Of each instance what each rank waited and who was last; shape (instances, ranks)."""

    present: NDArray[np.bool_]
    start_ns: Nanoseconds
    wait_ns: Nanoseconds
    """Duration beyond the least one of the instance; 0 where the rank does not show it."""
    last: NDArray[np.float64]
    """1 for the rank with the least duration; ranks that tie share."""

    @property
    def caused_ns(self) -> NDArray[np.float64]:
        """What others waited for each rank, shape (ranks,)."""
        others_ns = self.wait_ns.sum(axis=1, keepdims=True, dtype=np.float64)
        caused: NDArray[np.float64] = (self.last * others_ns).sum(axis=0)
        return caused


def stragglers(traces: TraceSet, matches: Matches) -> Stragglers | None:
    """Who waits for whom in matched all-reduces, all-gathers, reduce-scatters and the like.

    None where no such collective is shown by two ranks within the steps looked at.
    """
    windows = job_windows(traces)
    if windows is None:
        return None
    chosen = matches.doing(*SYNCHRONISING) & (np.count_nonzero(matches.present, axis=1) > 1)
    if traces.common_steps.size:
        chosen &= np.isin(matches.step, traces.common_steps)
    if not chosen.any():
        return None
    waits = _waits(traces, matches, chosen)
    step_count = windows[0].count
    caused_ns = waits.caused_ns
    worst = int(caused_ns.argmax()) if caused_ns.any() else None
    waiting, exposed = (0.0, 0.0) if worst is None else _shares(traces, waits, windows, worst)
    return Stragglers(
        ranks=_ranks(traces, waits, step_count),
        step_count=step_count,
        collective_count=int(chosen.sum()),
        partial_count=int((chosen & ~matches.complete).sum()),
        straggler=None if worst is None else traces.ranks[worst].rank,
        waiting_share=waiting,
        exposed_share=exposed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Imbalance:
    """How unequally ranks compute: time in which something computes, seconds per step."""

    compute_s: tuple[tuple[int, float], ...]
    """Rank and its time."""
    max_over_min: float
    max_over_mean: float

    @property
    def busiest(self) -> int:
        """The rank that computes longest."""
        return max(self.compute_s, key=lambda row: row[1])[0]


def imbalance(split: JobSplit) -> Imbalance | None:
    """Compare ranks by compute, never by communication: there all wait for the slowest alike.

    None with fewer than two traced ranks, or when one of them computes nothing.
    """
    compute_s = tuple((rank, step.compute_s) for rank, step in split.by_rank)
    times_s = [time_s for _, time_s in compute_s]
    if len(times_s) < 2 or not min(times_s):
        return None
    return Imbalance(
        compute_s=compute_s,
        max_over_min=max(times_s) / min(times_s),
        max_over_mean=max(times_s) * len(times_s) / sum(times_s),
    )


def _waits(traces: TraceSet, matches: Matches, chosen: NDArray[np.bool_]) -> _Waits:
    start_ns, end_ns = (times[chosen] for times in matches.times_ns(traces))
    present = matches.present[chosen]
    duration_ns = end_ns - start_ns
    least_ns = np.where(present, duration_ns, np.iinfo(np.int64).max).min(axis=1, keepdims=True)
    last = (present & (duration_ns == least_ns)).astype(np.float64)
    return _Waits(
        present=present,
        start_ns=start_ns,
        wait_ns=np.where(present, duration_ns - least_ns, 0),
        last=last / last.sum(axis=1, keepdims=True),
    )


def _ranks(traces: TraceSet, waits: _Waits, step_count: int) -> tuple[RankWaits, ...]:
    counts = np.count_nonzero(waits.present, axis=0)
    lasts = waits.last.sum(axis=0)
    chances = (waits.present / waits.present.sum(axis=1, keepdims=True)).sum(axis=0)
    caused_ns, waited_ns = waits.caused_ns, waits.wait_ns.sum(axis=0, dtype=np.float64)
    starts = _start_order(waits) if traces.alignment else None
    return tuple(
        RankWaits(
            rank=trace.rank,
            collective_count=int(count),
            last_share=float(lasts[place] / count) if count else None,
            chance_share=float(chances[place] / count) if count else None,
            caused_wait_s=float(caused_ns[place]) / step_count / 1e9,
            waited_s=float(waited_ns[place]) / step_count / 1e9,
            latest_start_share=float(starts[0][place] / count) if starts and count else None,
            mean_lateness_s=float(starts[1][place] / count) / 1e9 if starts and count else None,
        )
        for place, (trace, count) in enumerate(zip(traces.ranks, counts, strict=True))
    )


def _start_order(waits: _Waits) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How often each rank started last, and the sum of its delays in ns, on one clock."""
    far = np.iinfo(np.int64).max
    first_ns = np.where(waits.present, waits.start_ns, far).min(axis=1, keepdims=True)
    late_ns = np.where(waits.present, waits.start_ns - first_ns, -1)
    latest = (late_ns == late_ns.max(axis=1, keepdims=True)).astype(np.float64)
    latest /= latest.sum(axis=1, keepdims=True)
    return latest.sum(axis=0), np.maximum(late_ns, 0).sum(axis=0, dtype=np.float64)


def _shares(
    traces: TraceSet, waits: _Waits, windows: tuple[StepWindows, ...], worst: int
) -> tuple[float, float]:
    """What part of their steps the other ranks waited for the worst, and did so exposed.

    Waiting is the beginning of a collective: when the last rank has come, all transfer.
    """
    parts_ns = np.zeros(3, np.int64)
    for_worst = waits.last[:, worst] > 0
    for place, (trace, window) in enumerate(zip(traces.ranks, windows, strict=True)):
        if place == worst:
            continue
        start_ns = waits.start_ns[for_worst, place]
        stepped = Intervals.union(window.start_ns, window.end_ns)
        waited = Intervals.union(start_ns, start_ns + waits.wait_ns[for_worst, place])
        waited = waited.intersect(stepped)
        exposed = waited.subtract(trace.computing())
        parts_ns += stepped.total_ns, waited.total_ns, exposed.total_ns
    whole, waiting, alone = (float(part) for part in parts_ns)
    return (waiting / whole, alone / whole) if whole else (0.0, 0.0)
