"""What changed between two jobs, each change by its effect on a step."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

import numpy as np

from evaluator.traces.analysis.breakdown import PARTS, job_split, job_windows
from evaluator.traces.analysis.kernels import top_kernels
from evaluator.traces.intervals import Intervals
from evaluator.traces.model import Activity, CollectiveKind, RankTrace, StepWindows, TraceSet


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTaken:
    """What a part, a kernel or a kind of collective takes: per step and rank, at the mean.

    Of parts it is time that passes; of the others durations added up, which may overlap other
    work. `count` is how often it ran, None for parts.
    """

    time_s: float
    count: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartChange:
    """One thing in both jobs; None where a job does not have it."""

    name: str
    before: TimeTaken | None
    after: TimeTaken | None

    @property
    def change_s(self) -> float:
        """How much more it takes after than before."""
        return (self.after.time_s if self.after else 0) - (self.before.time_s if self.before else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDifference:
    """Changes from one job to another: parts in their order, of the others the greatest first."""

    parts: tuple[PartChange, ...]
    kernels: tuple[PartChange, ...]
    collectives: tuple[PartChange, ...]


def difference(before: TraceSet, after: TraceSet) -> JobDifference | None:
    """Compare two jobs over the steps that all of their ranks profiled.

    Without marked steps all of a rank's work counts as one. None where a job has no step in common,
    or did nothing.
    """
    jobs = [_Job.of(before), _Job.of(after)]
    if jobs[0] is None or jobs[1] is None:
        return None
    old, new = jobs[0], jobs[1]
    return JobDifference(
        parts=_changes(PARTS, old.parts, new.parts),
        kernels=_by_effect(old.kernels, new.kernels),
        collectives=_by_effect(old.collectives, new.collectives),
    )


_Table: TypeAlias = Mapping[str, TimeTaken]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    parts: _Table
    kernels: _Table
    collectives: _Table

    @classmethod
    def of(cls, traces: TraceSet) -> Self | None:
        split, windows = job_split(traces), job_windows(traces)
        if split is None or windows is None:
            return None
        count = sum(window.count for window in windows)
        chosen = tuple(
            _work_within(trace, window) for trace, window in zip(traces.ranks, windows, strict=True)
        )
        return cls(
            parts={name: TimeTaken(time_s=getattr(split.mean, f"{name}_s")) for name in PARTS},
            kernels=_kernels(replace(traces, ranks=chosen), count),
            collectives=_collectives(chosen, count),
        )


def _work_within(trace: RankTrace, windows: StepWindows) -> RankTrace:
    """The rank as if it had only waited, but for the work that starts in one of its windows."""
    spans = trace.spans
    within = Intervals.union(windows.start_ns, windows.end_ns).contains(spans.start_ns)
    activity = np.where(within, spans.activity, np.int8(Activity.WAIT))
    return replace(trace, spans=replace(spans, activity=activity))


def _kernels(traces: TraceSet, step_count: int) -> _Table:
    """By name; what communicates is listed by kind and size instead."""
    rows = top_kernels(traces).job.rows
    return {
        row.name: TimeTaken(time_s=row.total_s / step_count, count=row.count / step_count)
        for row in rows
        if row.activity != Activity.COMMUNICATION
    }


def _collectives(ranks: Sequence[RankTrace], step_count: int) -> _Table:
    """By kind and size, waiting for others included."""
    times_ns: dict[str, list[int]] = defaultdict(list)
    for trace in ranks:
        spans, own = trace.spans, trace.collectives
        own = own.select(spans.activity[own.span] == Activity.COMMUNICATION)
        columns = (own.kind, own.bytes, spans.duration_ns[own.span])
        for kind, size, duration_ns in zip(*(each.tolist() for each in columns), strict=True):
            how_large = f"{size} bytes" if size else "unknown size"
            times_ns[f"{CollectiveKind(kind).name.lower()} of {how_large}"].append(duration_ns)
    return {
        name: TimeTaken(time_s=sum(each) / 1e9 / step_count, count=len(each) / step_count)
        for name, each in times_ns.items()
    }


def _changes(names: Iterable[str], before: _Table, after: _Table) -> tuple[PartChange, ...]:
    return tuple(
        PartChange(name=name, before=before.get(name), after=after.get(name)) for name in names
    )


def _by_effect(before: _Table, after: _Table) -> tuple[PartChange, ...]:
    changes = _changes(sorted(before.keys() | after.keys()), before, after)
    return tuple(sorted(changes, key=lambda change: -abs(change.change_s)))
