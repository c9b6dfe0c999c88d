"""Which collective of each rank belongs to which: the same instance, seen by all of its ranks."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evaluator.analysis.calls import Calls, profiled_steps
from evaluator.analysis.cells import Cells, extremes, instance_count
from evaluator.intervals import Nanoseconds
from evaluator.traces.collectives import TRANSFERS, CollectiveKind, Group
from evaluator.traces.job import TraceSet


class Lack(IntEnum):
    """Why a call belongs to no instance."""

    NOTHING = 0
    """It belongs to one."""
    STEP = 1
    """It is before the first profiled step, after the last one, or between two."""
    GROUP = 2
    """It is not certain which ranks the group has, or it does not list the one that uses it."""
    PEER = 3
    """A transfer does not tell its peer."""
    EQUAL_COUNT = 4
    """In its step the ranks of the group do not show equally many of its kind."""
    EQUAL_BYTES = 5
    """In its step what would be one instance is not of one size on all ranks."""

    @property
    def words(self) -> str:
        """What such calls do not do, in words that follow how many they are."""
        return _LACKS[self]


_LACKS: Final = {
    Lack.NOTHING: "are matched",
    Lack.STEP: "are outside all profiled steps",
    Lack.GROUP: "do not tell whom they join",
    Lack.PEER: "do not tell their peer",
    Lack.EQUAL_COUNT: "are not equally many on all ranks",
    Lack.EQUAL_BYTES: "are not of one size on all ranks",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matches:
    """Instances of collectives and transfers, by lowest rank that shows them, then by its order.

    `rank_numbers` are the ranks of the trace set; `row`, int32 of shape (instances, ranks), is the
    row of an instance among the collectives of a rank, -1 where that rank shows none. The other
    arrays have shape (instances,). No time is kept, so clocks may be shifted afterwards.
    """

    rank_numbers: tuple[int, ...]
    groups: tuple[Group, ...]
    row: NDArray[np.int32]
    kind: NDArray[np.int8]
    """`CollectiveKind` values; SEND for a send with its receive."""
    group_id: NDArray[np.int32]
    """Indexes `groups`."""
    group_size: NDArray[np.int32]
    """How many ranks the group has, traced or not; 0: not told."""
    bytes: NDArray[np.int64]
    """S of nccl-tests, the largest over the ranks; 0: not told."""
    step: NDArray[np.int64]
    """Number of the step that it belongs to on all its ranks; -1: none, or not one."""
    calls: Calls
    """Every collective of every rank, matched or not."""
    instance: NDArray[np.int64]
    """The instance of each call, shape (calls,); -1: none."""
    lack: NDArray[np.int8]
    """`Lack` values, shape (calls,): why a call has no instance."""

    @property
    def count(self) -> int:
        """Number of instances."""
        return int(self.kind.size)

    @property
    def present(self) -> NDArray[np.bool_]:
        """Which ranks show the instance, bool of shape (instances, ranks)."""
        return self.row >= 0

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Whether every rank that takes part shows the instance, bool of shape (instances,)."""
        complete = self.doing(CollectiveKind.PUT)
        complete |= np.count_nonzero(self.present, axis=1) == self.group_size
        return complete

    def unmatched(self, *kinds: CollectiveKind) -> dict[Lack, int]:
        """How many calls of these kinds have no instance, by why; without kinds, of all."""
        lack = self.lack[self.calls.doing(*kinds)] if kinds else self.lack
        counts = np.bincount(lack, minlength=len(Lack)).tolist()
        return {why: counts[why] for why in Lack if why is not Lack.NOTHING and counts[why]}

    def unmatched_words(self, *kinds: CollectiveKind) -> str:
        """The same in words, empty if all calls are matched."""
        lacks = self.unmatched(*kinds).items()
        return ", ".join(f"{count} {lack.words}" for lack, count in lacks)

    def doing(self, *kinds: CollectiveKind) -> NDArray[np.bool_]:
        """Which instances are of one of these kinds, bool of shape (instances,)."""
        return np.isin(self.kind, kinds)

    def times_ns(self, traces: TraceSet) -> tuple[Nanoseconds, Nanoseconds]:
        """Starts and ends, int64 of shape (instances, ranks), each on the clock of its rank.

        Both are 0 where a rank does not show the instance. `traces` are those that were matched,
        their clocks shifted or not.
        """
        start_ns, end_ns = np.zeros((2, *self.row.shape), np.int64)
        for place, trace in enumerate(traces.ranks):
            there = self.row[:, place] >= 0
            span = trace.collectives.span[self.row[there, place]]
            start_ns[there, place] = trace.spans.start_ns[span]
            end_ns[there, place] = trace.spans.end_ns[span]
        return start_ns, end_ns


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
    placed = lack == Lack.NOTHING
    cells = Cells.of(calls.kept(placed), role[placed], number[placed])
    even = cells.even(traces)
    alike = cells.alike(even)
    lack[_places(cells.only(~even).calls, traces)] = Lack.EQUAL_COUNT
    lack[_places(cells.only(even & ~alike).calls, traces)] = Lack.EQUAL_BYTES
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

    Each put has a number of its own.
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
    lack[stepped & (number < 0) & (calls.step < 0)] = Lack.STEP
    lack[role < 0] = Lack.PEER
    lack[~groups.clear[calls.group_id]] = Lack.GROUP
    lack[~groups.members[calls.group_id, calls.rank]] = Lack.GROUP
    return lack


def _places(some: Calls, traces: TraceSet) -> NDArray[np.int64]:
    """Where these calls are among all calls."""
    counts = [trace.collectives.count for trace in traces.ranks]
    before: NDArray[np.int64] = np.cumsum([0, *counts])
    return before[some.rank] + some.row


def _joined(cells: Cells, calls: Calls, lack: NDArray[np.int8], traces: TraceSet) -> Matches:
    """What the calls of each instance tell together."""
    parts, instance = cells.calls, cells.instances()
    count = instance_count(instance)
    lowest = np.zeros(count, np.int64)
    lowest[instance[::-1]] = np.arange(parts.count)[::-1]
    order = np.lexsort((parts.row[lowest], parts.rank[lowest]))
    first = parts.kept(lowest[order])
    new_number = np.empty(count, np.int64)
    new_number[order] = np.arange(count)
    instance = new_number[instance]
    row = np.full((count, len(traces.ranks)), -1, np.int32)
    row[instance, parts.rank] = parts.row
    of_call = np.full(calls.count, -1)
    of_call[_places(parts, traces)] = instance
    _, most_bytes = extremes(instance, parts.bytes, count)
    least_step, most_step = extremes(instance, parts.step, count)
    received = first.doing(CollectiveKind.RECV)
    return Matches(
        rank_numbers=tuple(trace.rank for trace in traces.ranks),
        groups=calls.groups.groups,
        row=row,
        kind=np.where(received, CollectiveKind.SEND, first.kind).astype(np.int8),
        group_id=first.group_id,
        group_size=calls.groups.size[first.group_id],
        bytes=most_bytes,
        step=np.where(least_step == most_step, least_step, -1),
        calls=calls,
        instance=of_call,
        lack=lack,
    )
