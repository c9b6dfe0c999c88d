"""Collectives across ranks: which calls belong together, their volume, bandwidth and exposure.

The calls of all ranks become one table with common groups and steps. They are sorted into cells,
within which the k-th call of each rank is the same collective.
"""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from typing import Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evaluator.bus_bandwidth import bus_factor
from evaluator.traces.analysis.breakdown import WORK, job_windows
from evaluator.traces.intervals import Intervals, Nanoseconds, first_place, latest_window
from evaluator.traces.model import (
    TRANSFERS,
    Activity,
    CollectiveKind,
    RankGroup,
    RankTrace,
    Table,
    TraceSet,
    distinct_rows,
    rows_by_number,
)
from evaluator.workloads.collectives.operations import Collective
from records.study import digest

_LARGEST_SIZE: Final = 1 << 31
_LARGEST_LISTED: Final = 1 << 16
"""A trace may claim any size for its job: ranks of larger ones are listed only where it does."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobGroups:
    """The groups of a job: equal names with other ranks are other groups.

    Arrays have shape (groups,) unless stated.
    """

    groups: tuple[RankGroup, ...]
    members: NDArray[np.bool_]
    """Which traced ranks belong: those that the group lists, else those that name it; shape
    (groups, ranks)."""
    size: NDArray[np.int32]
    """How many ranks belong, traced or not; 0: unknown."""
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
        groups = tuple(
            sorted(
                set().union(*named),
                key=lambda group: (group.name, group.ranks or (), group.size or 0),
            )
        )
        numbers = np.array([trace.rank for trace in traces.ranks])
        members = np.empty((len(groups), numbers.size), np.bool_)
        for row, group in zip(members, groups, strict=True):
            naming = [group in theirs for theirs in named]
            row[:] = naming if group.ranks is None else np.isin(numbers, group.ranks)
        size = np.array([group.size or 0 for group in groups], np.int32)
        certain = [
            bool(group.name)
            or group.ranks is not None
            or (group.size is not None and group.size == world_size)
            for group in groups
        ]
        fits = (np.count_nonzero(members, axis=1) <= size) | (size == 0)
        return cls(
            groups=groups, members=members, size=size, clear=fits & np.array(certain, np.bool_)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calls(Table):
    """Columns of shape (calls,): one row per collective and rank, rank by rank, by rising start.

    `rank` is the place of the rank in its trace set and `row` the row among its collectives;
    `group_id` indexes the groups of the job. What a trace does not say is as in `Collectives`.
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
        parts = []
        for place, trace in enumerate(traces.ranks):
            table = trace.collectives
            own_ids = [ids[_resolved(group, traces.world_size)] for group in table.groups]
            part = cls(
                rank=np.full(table.count, place, np.int32),
                row=np.arange(table.count, dtype=np.int32),
                kind=table.kind,
                group_id=np.array(own_ids, np.int32)[table.group_id],
                bytes=table.bytes,
                sequence=table.sequence,
                step=_steps(trace),
                groups=groups,
            )
            parts.append(part)
        return cls.concatenate(parts)

    def doing(self, *kinds: CollectiveKind) -> NDArray[np.bool_]:
        """Which calls are of one of these kinds, bool of shape (calls,)."""
        return np.isin(self.kind, kinds)


@lru_cache(maxsize=1 << 14)  # of large jobs every rank names the same ones
def _resolved(group: RankGroup, world_size: int | None) -> RankGroup:
    """The group with its ranks where they are given or follow: two ranks make one group only."""
    size = group.size if group.size and 0 < group.size < _LARGEST_SIZE else None
    ranks = None if group.ranks is None else tuple(sorted(set(group.ranks)))
    if ranks is None and world_size and world_size <= _LARGEST_LISTED:
        whole = size == world_size or world_size == 2
        ranks = tuple(range(world_size)) if whole else None
    return RankGroup(group.name, ranks, size if ranks is None else len(ranks))


def profiled_steps(trace: RankTrace) -> NDArray[np.int64]:
    """Numbers of the steps that a rank profiled, on its device or on its host."""
    return np.union1d(trace.steps.number, trace.host_steps.number)


def _steps(trace: RankTrace) -> NDArray[np.int64]:
    """Step of each collective of a rank: that of its launch, else the window it starts in.

    -1 where it is in none.
    """
    spans, rows, host = trace.spans, trace.collectives.span, trace.host_steps
    window = latest_window(trace.steps.start_ns, trace.steps.end_ns, spans.start_ns[rows])
    step = np.append(trace.steps.number, -1)[window]
    launches = np.flatnonzero(spans.doing(Activity.LAUNCH) & (spans.correlation != 0))
    if not launches.size or not host.count:
        return step
    launch = first_place(spans.correlation[launches], spans.correlation[rows])
    launched_ns = spans.start_ns[launches[launch]]
    window = latest_window(host.start_ns, host.end_ns, launched_ns)
    return np.where(launch >= 0, np.append(host.number, -1)[window], step)


_ONE_SIZE: Final = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.BROADCAST,
    CollectiveKind.REDUCE,
)
"""Kinds whose S is one on all ranks: where it is not, what looks like an instance is none."""

_ROLES: Final = 16
"""More than there are kinds, for codes that hold a group and a kind."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cells(Table):
    """Calls by cell: those of one group and kind with one number, or else in one step.

    `calls` are in order of `cell`, then of rank, then of start; arrays have shape (calls,).
    """

    calls: Calls
    numbered: NDArray[np.bool_]
    """Whether the cell is that of a number."""
    cell: NDArray[np.int64]
    """Number of the cell, rising."""
    place: NDArray[np.int64]
    """How many calls of the same cell and rank came before."""

    @classmethod
    def of(cls, calls: Calls, role: NDArray[np.int8], number: NDArray[np.int64]) -> Self:
        """Sort calls.

        `role` is their kind, or for a transfer its direction; `number` what they are matched by,
        or -1: by their order in a step.
        """
        _, bucket = np.unique(np.where(number < 0, calls.step, number), return_inverse=True)
        code = (calls.group_id.astype(np.int64) * _ROLES + role) * (calls.count + 1) + bucket
        order = np.argsort(code, kind="stable")
        calls, code = calls.select(order), code[order]
        opens = _changes(code)
        first = np.where(opens | _changes(calls.rank), np.arange(code.size), 0)
        return cls(
            calls=calls,
            numbered=number[order] >= 0,
            cell=np.cumsum(opens) - 1,
            place=np.arange(code.size) - np.maximum.accumulate(first),
        )

    @property
    def cell_count(self) -> int:
        """Number of cells, those without calls included."""
        return int(self.cell[-1]) + 1 if self.cell.size else 0

    def only(self, chosen: NDArray[np.bool_]) -> Self:
        """The chosen cells, bool of shape (cells,); they keep their numbers."""
        kept = chosen[self.cell]
        return replace(self.select(kept), calls=self.calls.select(kept))

    def even(self, traces: TraceSet) -> NDArray[np.bool_]:
        """Whether the k-th calls of the ranks may be one instance, bool of shape (cells,).

        With a number that is so where no rank uses it twice; else where every traced member of the
        group that profiled the step makes equally many calls.
        """
        first = np.flatnonzero(_changes(self.cell))
        last = np.append(self.place[1:] == 0, True)[: self.cell.size]
        callers = np.bincount(self.cell[last], minlength=self.cell_count)
        fewest, most = extremes(self.cell[last], self.place[last] + 1, self.cell_count)
        steps, step = np.unique(self.calls.step[first], return_inverse=True)
        numbers = [profiled_steps(trace) for trace in traces.ranks]
        # A rank without steps shows the calls that are in none.
        profiled = [np.isin(steps, own) if own.size else steps < 0 for own in numbers]
        # By group and step: every cell times every rank is too much for thousands of ranks.
        members = self.calls.groups.members.astype(np.int32)
        expected = (members @ np.stack(profiled).astype(np.int32))[self.calls.group_id[first], step]
        equal = (callers == expected) & (fewest == most)
        even: NDArray[np.bool_] = np.where(self.numbered[first], most == 1, equal)
        return even

    def alike(self, even: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which even cells hold only instances that are of one size on all ranks, if known."""
        cells = self.only(even)
        instance, size = cells.instances(), cells.calls.bytes
        _, largest = extremes(instance, size, instance_count(instance))
        smaller = (size > 0) & (size < largest[instance]) & cells.calls.doing(*_ONE_SIZE)
        alike = even.copy()
        alike[cells.cell[smaller]] = False
        return alike

    def instances(self) -> NDArray[np.int64]:
        """The instance of each call, numbered from 0 without gaps; all cells must be even."""
        _, most = extremes(self.cell, self.place + 1, self.cell_count)
        return (np.cumsum(most) - most)[self.cell] + self.place


def instance_count(instance: NDArray[np.int64]) -> int:
    """How many instances there are, given that of each call."""
    return int(instance.max()) + 1 if instance.size else 0


def extremes(
    place: NDArray[np.int64], value: NDArray[np.int64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Least and greatest value put at each of `count` places; 0 at places without any."""
    least, greatest = np.zeros((2, count), np.int64)
    least[place] = value
    greatest[place] = value
    np.minimum.at(least, place, value)
    np.maximum.at(greatest, place, value)
    return least, greatest


def _changes(column: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Whether each entry differs from the one before it; the first one does."""
    return np.append(True, column[1:] != column[:-1])[: column.size]


class NoMatch(IntEnum):
    """Why a call belongs to no instance."""

    NOTHING = 0
    """It belongs to one."""
    STEP = 1
    """It is before the first profiled step, after the last one, or between two."""
    GROUP = 2
    """It is not certain which ranks the group has, or it does not list the one that uses it."""
    PEER = 3
    """A transfer does not say its peer."""
    EQUAL_COUNT = 4
    """In its step the ranks of the group do not show equally many of its kind."""
    EQUAL_BYTES = 5
    """In its step what would be one instance is not of one size on all ranks."""

    @property
    def words(self) -> str:
        """What such calls do not do, as text that follows how many they are."""
        return _LACKS[self]


_LACKS: Final = {
    NoMatch.NOTHING: "are matched",
    NoMatch.STEP: "are outside all profiled steps",
    NoMatch.GROUP: "do not say which ranks take part",
    NoMatch.PEER: "do not say their peer",
    NoMatch.EQUAL_COUNT: "are not equally many on all ranks",
    NoMatch.EQUAL_BYTES: "are not of one size on all ranks",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matches:
    """Instances of collectives and transfers, by lowest rank that shows them, then by its order.

    `rank_numbers` are the ranks of the trace set. Arrays have shape (instances,) unless stated; a
    rank shows an instance by one call. No time is kept, so clocks may be shifted afterwards.
    """

    rank_numbers: tuple[int, ...]
    groups: tuple[RankGroup, ...]
    kind: NDArray[np.int8]
    """`CollectiveKind` values; SEND for a send with its receive."""
    group_id: NDArray[np.int32]
    """Indexes `groups`."""
    group_size: NDArray[np.int32]
    """How many ranks the group has, traced or not; 0: unknown."""
    bytes: NDArray[np.int64]
    """S of nccl-tests, the largest over the ranks; 0: unknown."""
    step: NDArray[np.int64]
    """Number of the step that it belongs to on all its ranks; -1: none, or not one."""
    calls: Calls
    """Every collective of every rank, matched or not."""
    instance: NDArray[np.int64]
    """The instance of each call, shape (calls,); -1: none."""
    lack: NDArray[np.int8]
    """`NoMatch` values, shape (calls,): why a call has no instance."""

    @property
    def count(self) -> int:
        """Number of instances."""
        return int(self.kind.size)

    @property
    def row(self) -> NDArray[np.int32]:
        """The row of an instance among the collectives of a rank, -1 where it shows none.

        int32 of shape (instances, ranks), made anew: with thousands of ranks it is large.
        """
        row = np.full((self.count, len(self.rank_numbers)), -1, np.int32)
        matched = self.instance >= 0
        row[self.instance[matched], self.calls.rank[matched]] = self.calls.row[matched]
        return row

    @property
    def shown_count(self) -> NDArray[np.int64]:
        """How many traced ranks show the instance."""
        return np.bincount(self.instance[self.instance >= 0], minlength=self.count)

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Whether every rank that takes part shows the instance, bool of shape (instances,)."""
        complete = self.doing(CollectiveKind.PUT)
        complete |= self.shown_count == self.group_size
        return complete

    def unmatched(self, *kinds: CollectiveKind) -> dict[NoMatch, int]:
        """How many calls of these kinds have no instance, by why; without kinds, of all."""
        lack = self.lack[self.calls.doing(*kinds)] if kinds else self.lack
        counts = np.bincount(lack, minlength=len(NoMatch)).tolist()
        return {why: counts[why] for why in NoMatch if why is not NoMatch.NOTHING and counts[why]}

    def unmatched_words(self, *kinds: CollectiveKind) -> str:
        """The same as text, empty if all calls are matched."""
        lacks = self.unmatched(*kinds).items()
        return ", ".join(f"{count} {lack.words}" for lack, count in lacks)

    def doing(self, *kinds: CollectiveKind) -> NDArray[np.bool_]:
        """Which instances are of one of these kinds, bool of shape (instances,)."""
        return np.isin(self.kind, kinds)

    def times_ns(self, traces: TraceSet) -> tuple[Nanoseconds, Nanoseconds]:
        """Start and end of every call, int64 of shape (calls,), each on the clock of its rank.

        `traces` are those that were matched, their clocks shifted or not.
        """
        times = [
            (trace.spans.start_ns[rows], trace.spans.end_ns[rows])
            for trace in traces.ranks
            for rows in [trace.collectives.span]
        ]
        starts, ends = zip(*times, strict=True)
        return np.concatenate(starts), np.concatenate(ends)


def match(traces: TraceSet) -> Matches:
    """Find the instances that the collectives of all ranks belong to, looking at no clock.

    Collectives of a group that numbers them all are matched by number. The others are the k-th of
    their kind in their group within a step, or within the trace on ranks without steps, and only
    where all traced ranks of the group that profiled the step show equally many, of equal sizes.
    A step is the one in which the host launched the collective, else the one whose window it
    starts in: a profile that begins or ends amid a step loses the collectives of that step only.
    Members of a group that does not list them are all ranks that name it. Transfers are paired in
    groups of two, where the peer is certain: a send with a receive. A put is there once.
    """
    calls = Calls.of(traces)
    role, number = _roles(calls, traces), _numbers(calls)
    lack = _lack(calls, role, number, traces)
    placed = lack == NoMatch.NOTHING
    cells = Cells.of(calls.select(placed), role[placed], number[placed])
    even = cells.even(traces)
    alike = cells.alike(even)
    lack[_places(cells.only(~even).calls, traces)] = NoMatch.EQUAL_COUNT
    lack[_places(cells.only(even & ~alike).calls, traces)] = NoMatch.EQUAL_BYTES
    return _joined(cells.only(alike), calls, lack, traces)


def _roles(calls: Calls, traces: TraceSet) -> NDArray[np.int8]:
    """What must be equal to match: the kind; for transfers their direction; -1 without a peer.

    In a pair, SEND is a transfer from the lower rank and RECV one to it.
    """
    groups = calls.groups.groups
    pairs = np.array([group.ranks is not None and group.size == 2 for group in groups], np.bool_)
    lower = np.array([group.ranks[0] if group.ranks else -1 for group in groups], np.int64)
    number = np.array([trace.rank for trace in traces.ranks])[calls.rank]
    opposite = np.arange(len(CollectiveKind), dtype=np.int8)
    opposite[[CollectiveKind.SEND, CollectiveKind.RECV]] = (
        CollectiveKind.RECV,
        CollectiveKind.SEND,
    )
    direction = np.where(number == lower[calls.group_id], calls.kind, opposite[calls.kind])
    paired = np.where(pairs[calls.group_id], direction, np.int8(-1))
    return np.where(calls.doing(*TRANSFERS), paired, calls.kind)


def _numbers(calls: Calls) -> NDArray[np.int64]:
    """What calls are matched by where their group numbers every collective; else -1.

    Each put has a separate number.
    """
    collective = ~calls.doing(*TRANSFERS)
    lacking = np.unique(calls.group_id[collective & (calls.sequence < 0)])
    numbered = collective & ~np.isin(calls.group_id, lacking)
    own = np.where(calls.doing(CollectiveKind.PUT), np.arange(calls.count), -1)
    return np.where(numbered, calls.sequence, own)


def _lack(
    calls: Calls, role: NDArray[np.int8], number: NDArray[np.int64], traces: TraceSet
) -> NDArray[np.int8]:
    """What is wrong with calls by themselves, as in `Matches.lack`."""
    groups = calls.groups
    stepped = np.array([profiled_steps(trace).size > 0 for trace in traces.ranks])[calls.rank]
    lack = np.zeros(calls.count, np.int8)
    lack[stepped & (number < 0) & (calls.step < 0)] = NoMatch.STEP
    lack[role < 0] = NoMatch.PEER
    lack[~groups.clear[calls.group_id]] = NoMatch.GROUP
    lack[~groups.members[calls.group_id, calls.rank]] = NoMatch.GROUP
    return lack


def _places(some: Calls, traces: TraceSet) -> NDArray[np.int64]:
    """Where these calls are among all calls."""
    counts = [trace.collectives.count for trace in traces.ranks]
    before: NDArray[np.int64] = np.cumsum([0, *counts])
    return before[some.rank] + some.row


def _joined(cells: Cells, calls: Calls, lack: NDArray[np.int8], traces: TraceSet) -> Matches:
    """What the calls of each instance state together."""
    parts, instance = cells.calls, cells.instances()
    count = instance_count(instance)
    lowest = np.zeros(count, np.int64)
    lowest[instance[::-1]] = np.arange(parts.count)[::-1]
    order = np.lexsort((parts.row[lowest], parts.rank[lowest]))
    first = parts.select(lowest[order])
    new_number = np.empty(count, np.int64)
    new_number[order] = np.arange(count)
    instance = new_number[instance]
    of_call = np.full(calls.count, -1)
    of_call[_places(parts, traces)] = instance
    _, most_bytes = extremes(instance, parts.bytes, count)
    least_step, most_step = extremes(instance, parts.step, count)
    received = first.doing(CollectiveKind.RECV)
    return Matches(
        rank_numbers=tuple(trace.rank for trace in traces.ranks),
        groups=calls.groups.groups,
        kind=np.where(received, CollectiveKind.SEND, first.kind).astype(np.int8),
        group_id=first.group_id,
        group_size=calls.groups.size[first.group_id],
        bytes=most_bytes,
        step=np.where(least_step == most_step, least_step, -1),
        calls=calls,
        instance=of_call,
        lack=lack,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTraffic:
    """What is communicated in a step, mean over steps.

    `bytes` adds up S of nccl-tests, each rank's own buffers; it is None where `untold_count` calls
    (in all steps) do not say their size. A barrier has none.
    """

    call_count: float
    bytes: float | None
    untold_count: int

    @classmethod
    def of(cls, calls: Calls, step_count: int) -> Self:
        """What these calls communicate."""
        unknown = (calls.bytes == 0) & ~calls.doing(CollectiveKind.BARRIER)
        total = float(calls.bytes.sum(dtype=np.float64))
        return cls(
            call_count=calls.count / step_count,
            bytes=None if unknown.any() else total / step_count,
            untold_count=int(unknown.sum()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTraffic:
    """One kind of collective in one group: of one of its traced ranks at the mean, and of all."""

    kind: CollectiveKind
    group: RankGroup
    rank_count: int
    """Traced ranks that take part."""
    per_rank: CollectiveTraffic
    traced_ranks: CollectiveTraffic

    @classmethod
    def of(cls, calls: Calls, step_count: int) -> Self:
        """What these calls of one kind and group communicate."""
        rank_count = int(np.unique(calls.rank).size)
        return cls(
            kind=CollectiveKind(int(calls.kind[0])),
            group=calls.groups.groups[calls.group_id[0]],
            rank_count=rank_count,
            per_rank=CollectiveTraffic.of(calls, step_count * rank_count),
            traced_ranks=CollectiveTraffic.of(calls, step_count),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """Communication of the steps that all traced ranks profiled.

    Receives are in `groups` only: in sums, a message counts where it is sent.
    """

    step_count: int
    groups: tuple[GroupTraffic, ...]
    by_rank: tuple[tuple[int, CollectiveTraffic], ...]
    traced_ranks: CollectiveTraffic


def volume(traces: TraceSet, matches: Matches) -> Volume | None:
    """Communication per step, matched or not; None where ranks have no marked step in common."""
    steps = traces.common_steps
    if not steps.size:
        return None
    calls = matches.calls.select(np.isin(matches.calls.step, steps))
    kinds, place = distinct_rows(calls.kind, calls.group_id)
    sent = calls.select(~calls.doing(CollectiveKind.RECV))
    by_rank = rows_by_number(sent.rank.astype(np.int64), len(traces.ranks))
    return Volume(
        step_count=steps.size,
        groups=tuple(
            GroupTraffic.of(calls.select(rows), steps.size)
            for rows in rows_by_number(place, kinds.shape[1])
        ),
        by_rank=tuple(
            (trace.rank, CollectiveTraffic.of(sent.select(rows), steps.size))
            for trace, rows in zip(traces.ranks, by_rank, strict=True)
        ),
        traced_ranks=CollectiveTraffic.of(sent, steps.size),
    )


TIMED: Final = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.SEND,
    CollectiveKind.SEND_RECV,
    CollectiveKind.PUT,
)
"""Kinds of which the rank that comes last sees the transfer alone.

Not those with a root: a rank may leave a broadcast before others have come.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bandwidths(Table):
    """Columns of shape (instances,): those matched instances whose bandwidth is known.

    S is as in nccl-tests the whole buffer, t the least duration over the ranks: the last to arrive
    waits for nobody. Algorithm bandwidth is S / t; bus bandwidth is that times 2 (n - 1) / n for an
    all-reduce, (n - 1) / n for an all-gather, reduce-scatter or all-to-all and 1 for a transfer,
    n being the ranks of the group: what each rank's link carried, comparable with its speed.

    Where `partial`, some ranks of the group left no trace and the last to arrive may be one of
    them: t is then an upper bound and both bandwidths are lower bounds.
    """

    instance: NDArray[np.int64]
    """Row among the matches."""
    kind: NDArray[np.int8]
    time_ns: Nanoseconds
    """t."""
    partial: NDArray[np.bool_]
    algorithm_bytes_per_s: NDArray[np.float64]
    bus_bytes_per_s: NDArray[np.float64]


def bandwidths(traces: TraceSet, matches: Matches) -> Bandwidths:
    """Bandwidths of the matched instances that state their size and group and take time."""
    start_ns, end_ns = matches.times_ns(traces)
    matched = matches.instance >= 0
    time_ns, _ = extremes(matches.instance[matched], (end_ns - start_ns)[matched], matches.count)
    known = (matches.bytes > 0) & (matches.group_size > 1) & (time_ns > 0)
    kept = np.flatnonzero(known & matches.doing(*TIMED))
    kind, size = matches.kind[kept], matches.bytes[kept].astype(np.float64)
    seconds = time_ns[kept] / 1e9
    return Bandwidths(
        instance=kept,
        kind=kind,
        time_ns=time_ns[kept],
        partial=~matches.complete[kept],
        algorithm_bytes_per_s=size / seconds,
        bus_bytes_per_s=size * _factors(kind, matches.group_size[kept]) / seconds,
    )


def _factors(kinds: NDArray[np.int8], ranks: NDArray[np.int32]) -> NDArray[np.float64]:
    """Bus factor of each call; transfers between two ranks carry all of S."""
    factors = np.ones(len(kinds))
    for kind in np.setdiff1d(kinds, TRANSFERS):
        calls = kinds == kind
        collective = Collective[CollectiveKind(kind).name]
        factors[calls] = bus_factor(collective, ranks[calls].astype(np.float64), "torchcomms")
    return factors


_Shape: TypeAlias = tuple[CollectiveKind, int | None, tuple[int, ...] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """One kind of collective in groups of one shape, over the steps that all ranks profiled.

    Groups are of one shape when their ranks are equally many and at equal distances. Calls and
    bytes are of a rank that takes part, at the mean; seconds are the mean over all traced ranks
    and steps. Of two collectives at once both count.
    """

    kind: CollectiveKind
    groups: tuple[RankGroup, ...]
    call_count: float
    bytes: float | None
    """None where a call does not say its size."""
    exposed_s: float
    hidden_s: float


def exposures(traces: TraceSet, matches: Matches, traffic: Volume) -> tuple[Exposure, ...]:
    """What each kind costs, the one that is exposed longest first, then that which lasts longer."""
    shapes: dict[_Shape, list[GroupTraffic]] = defaultdict(list)
    for found in traffic.groups:
        shapes[_shape(found.kind, found.group)].append(found)
    times_s = _times_s(traces, matches, {shape: number for number, shape in enumerate(shapes)})
    rows = []
    for parts, (exposed_s, hidden_s) in zip(shapes.values(), times_s, strict=True):
        rank_count = sum(part.rank_count for part in parts)
        sizes = [part.traced_ranks.bytes for part in parts]
        known = [size for size in sizes if size is not None]
        exposure = Exposure(
            kind=parts[0].kind,
            groups=tuple(part.group for part in parts),
            call_count=sum(part.traced_ranks.call_count for part in parts) / rank_count,
            bytes=sum(known) / rank_count if len(known) == len(sizes) else None,
            exposed_s=exposed_s,
            hidden_s=hidden_s,
        )
        rows.append(exposure)
    return tuple(
        sorted(rows, key=lambda one: (one.exposed_s, one.exposed_s + one.hidden_s), reverse=True)
    )


def _shape(kind: CollectiveKind, group: RankGroup) -> _Shape:
    ranks = group.ranks
    apart = tuple(rank - ranks[0] for rank in ranks) if ranks else None
    return kind, group.size, apart


def _times_s(
    traces: TraceSet, matches: Matches, numbers: dict[_Shape, int]
) -> list[tuple[float, float]]:
    """Exposed and hidden seconds of each shape, per step and rank."""
    windows, calls = job_windows(traces) or (), matches.calls
    kinds, of_call = distinct_rows(calls.kind, calls.group_id)
    known = [
        numbers.get(_shape(CollectiveKind(kind), calls.groups.groups[group]), -1)
        for kind, group in kinds.T.tolist()
    ]
    shape = np.array(known, np.int64)[of_call]
    exposed_ns, hidden_ns = [0] * len(numbers), [0] * len(numbers)
    mine = rows_by_number(calls.rank.astype(np.int64), len(traces.ranks))
    for trace, window, own in zip(traces.ranks, windows, mine, strict=True):
        compute, within = trace.computing(), (window.start_ns, window.end_ns)
        spans, own_shape = trace.collectives.span[calls.row[own]], shape[own]
        for number in np.unique(own_shape[own_shape >= 0]).tolist():
            rows = spans[own_shape == number]
            under_way = Intervals.union(trace.spans.start_ns[rows], trace.spans.end_ns[rows])
            covered_ns = under_way.covered_ns(*within)
            beside_ns = under_way.intersect(compute).covered_ns(*within)
            # In whole numbers without end: absurd windows must not overflow.
            hidden_ns[number] += sum(beside_ns.tolist())
            exposed_ns[number] += sum((covered_ns - beside_ns).tolist())
    divisor = sum(window.count for window in windows) * 10**9
    return [
        (out / divisor, beside / divisor) for out, beside in zip(exposed_ns, hidden_ns, strict=True)
    ]


def work_digest(traces: TraceSet, traffic: Volume) -> str | None:
    """Identify kernels or operators by name and count, and collectives by kind, size and bytes.

    None where ranks have no step in common, or nothing computed in those steps.
    """
    by_rank = [_spans(trace, traces) for trace in traces.ranks if not trace.reduced]
    if not any(activity == Activity.COMPUTE for spans in by_rank for activity, _ in spans):
        return None
    collectives = Counter(
        (
            part.kind.name,
            part.group.size or 0,
            part.rank_count,
            part.traced_ranks.call_count,
            part.traced_ranks.bytes or 0,
        )
        for part in traffic.groups
    )
    document = [[sorted(spans.items()) for spans in by_rank], sorted(collectives.items())]
    return digest(json.dumps(document))


def _spans(trace: RankTrace, traces: TraceSet) -> Counter[tuple[int, str]]:
    """How often each kernel or operator of a rank starts in the steps that all ranks profiled."""
    spans, steps = trace.spans, trace.steps.among(traces.common_steps)
    inside = np.zeros(spans.start_ns.size, bool)
    for start_ns, end_ns in zip(steps.start_ns, steps.end_ns, strict=True):
        inside |= (spans.start_ns >= start_ns) & (spans.start_ns < end_ns)
    rows = np.flatnonzero(inside & spans.doing(*WORK))
    names = spans.names
    pairs = zip(spans.activity[rows].tolist(), spans.name_id[rows].tolist(), strict=True)
    return Counter((activity, names[name_id]) for activity, name_id in pairs)
