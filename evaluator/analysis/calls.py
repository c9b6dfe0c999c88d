"""The collectives and transfers of all ranks as one table, with groups and steps in common."""

from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from evaluator.intervals import Nanoseconds
from evaluator.traces.collectives import CollectiveKind, Group
from evaluator.traces.job import TraceSet
from evaluator.traces.rank import RankTrace
from evaluator.traces.spans import Activity
from evaluator.traces.steps import StepWindows

_LARGEST_SIZE: Final = 1 << 31
_LARGEST_LISTED: Final = 1 << 16
"""A trace may claim any size for its job: ranks of larger ones are listed only where it does."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobGroups:
    """The groups of a job: equal names with other ranks are other groups.

    Arrays have shape (groups,) unless told.
    """

    groups: tuple[Group, ...]
    members: NDArray[np.bool_]
    """Which traced ranks belong: those that the group lists, else those that name it; shape
    (groups, ranks)."""
    size: NDArray[np.int32]
    """How many ranks belong, traced or not; 0: not told."""
    clear: NDArray[np.bool_]
    """Whether it is certain who belongs. It is not for a group of part of the job that neither
    lists its ranks nor has a name, nor where more ranks name one than belong to it, so that it must
    be several."""

    @classmethod
    def of(cls, traces: TraceSet) -> Self:
        """Every group that a traced rank names, by name."""
        world_size = traces.world_size
        named = [
            {_resolved(group, world_size) for group in trace.collectives.groups}
            for trace in traces.ranks
        ]
        groups = tuple(sorted(set().union(*named), key=_group_order))
        numbers = np.array([trace.rank for trace in traces.ranks])
        members = np.empty((len(groups), numbers.size), np.bool_)
        for row, group in zip(members, groups, strict=True):
            naming = [group in theirs for theirs in named]
            row[:] = naming if group.ranks is None else np.isin(numbers, group.ranks)
        size = np.array([group.size or 0 for group in groups], np.int32)
        told = [
            bool(group.name)
            or group.ranks is not None
            or (group.size is not None and group.size == world_size)
            for group in groups
        ]
        fits = (np.count_nonzero(members, axis=1) <= size) | (size == 0)
        return cls(groups=groups, members=members, size=size, clear=fits & np.array(told, np.bool_))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calls:
    """Columns of shape (calls,): one row per collective and rank, rank by rank, by rising start.

    `rank` is the place of the rank in its trace set and `row` the row among its collectives;
    `group_id` indexes the groups of the job. What a trace does not tell is as in `Collectives`.
    """

    rank: NDArray[np.int32]
    row: NDArray[np.int32]
    kind: NDArray[np.int8]
    group_id: NDArray[np.int32]
    bytes: NDArray[np.int64]
    sequence: NDArray[np.int64]
    step: NDArray[np.int64]
    """Number of the step that it belongs to; -1: none."""
    groups: JobGroups

    @classmethod
    def of(cls, traces: TraceSet) -> Self:
        """All collectives of all ranks."""
        groups = JobGroups.of(traces)
        ids = {group: place for place, group in enumerate(groups.groups)}
        tables = [trace.collectives for trace in traces.ranks]
        group_ids = [
            np.array(
                [ids[_resolved(group, traces.world_size)] for group in table.groups], np.int32
            )[table.group_id]
            for table in tables
        ]
        return cls(
            rank=np.repeat(
                np.arange(len(tables), dtype=np.int32), [table.count for table in tables]
            ),
            row=np.concatenate([np.arange(table.count, dtype=np.int32) for table in tables]),
            kind=np.concatenate([table.kind for table in tables]),
            group_id=np.concatenate(group_ids),
            bytes=np.concatenate([table.bytes for table in tables]),
            sequence=np.concatenate([table.sequence for table in tables]),
            step=np.concatenate([_steps(trace) for trace in traces.ranks]),
            groups=groups,
        )

    @property
    def count(self) -> int:
        """Number of calls."""
        return int(self.rank.size)

    def doing(self, *kinds: CollectiveKind) -> NDArray[np.bool_]:
        """Which calls are of one of these kinds, bool of shape (calls,)."""
        return np.isin(self.kind, kinds)

    def kept(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Self:
        """Only the chosen calls: by a bool each, or by their places in the order wanted."""
        return replace(
            self,
            rank=self.rank[chosen],
            row=self.row[chosen],
            kind=self.kind[chosen],
            group_id=self.group_id[chosen],
            bytes=self.bytes[chosen],
            sequence=self.sequence[chosen],
            step=self.step[chosen],
        )


def _resolved(group: Group, world_size: int | None) -> Group:
    """The group with its ranks where they are told or follow: two ranks make one group only."""
    size = group.size if group.size and 0 < group.size < _LARGEST_SIZE else None
    ranks = None if group.ranks is None else tuple(sorted(set(group.ranks)))
    if ranks is None and world_size and world_size <= _LARGEST_LISTED:
        whole = size == world_size or world_size == 2
        ranks = tuple(range(world_size)) if whole else None
    return Group(group.name, ranks, size if ranks is None else len(ranks))


def _group_order(group: Group) -> tuple[str, tuple[int, ...], int]:
    return group.name, group.ranks or (), group.size or 0


def profiled_steps(trace: RankTrace) -> NDArray[np.int64]:
    """Numbers of the steps that a rank profiled, on its device or on its host."""
    return np.union1d(trace.steps.number, trace.host_steps.number)


def _steps(trace: RankTrace) -> NDArray[np.int64]:
    """Step of each collective of a rank: that of its launch, else the window it starts in."""
    spans, rows = trace.spans, trace.collectives.span
    step = _containing(trace.steps, spans.start_ns[rows])
    launches = np.flatnonzero(spans.doing(Activity.LAUNCH) & (spans.correlation != 0))
    if not launches.size or not trace.host_steps.count:
        return step
    launches = launches[np.argsort(spans.correlation[launches], kind="stable")]
    known = spans.correlation[launches]
    wanted = spans.correlation[rows]
    place = np.minimum(np.searchsorted(known, wanted), known.size - 1)
    launched = known[place] == wanted
    launch_step = _containing(trace.host_steps, spans.start_ns[launches[place]])
    return np.where(launched, launch_step, step)


def _containing(windows: StepWindows, time_ns: Nanoseconds) -> NDArray[np.int64]:
    """Number of the window that holds each moment, the last to begin if several do; -1: none."""
    if not windows.count:
        return np.full(time_ns.size, -1, np.int64)
    order = np.argsort(windows.start_ns, kind="stable")
    place = np.searchsorted(windows.start_ns[order], time_ns, side="right") - 1
    window = order[np.maximum(place, 0)]
    inside = (place >= 0) & (time_ns < windows.end_ns[window])
    return np.where(inside, windows.number[window], -1)
