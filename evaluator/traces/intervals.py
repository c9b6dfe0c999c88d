"""Sets of time on one clock, and their algebra: the only place that unions, intersects or clips."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

Nanoseconds: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """A set of instants as half-open pieces [start, end): sorted, disjoint, none empty.

    Both arrays are int64 nanoseconds, shape (pieces,), read-only. Pieces that touch are one piece
    when made by `union`; other operations may leave touching pieces, which changes no
    total.
    """

    start_ns: Nanoseconds
    end_ns: Nanoseconds

    def __post_init__(self) -> None:
        if self.start_ns.shape != self.end_ns.shape or self.start_ns.ndim != 1:
            raise ValueError("starts and ends must be two arrays of one length")
        if np.any(self.start_ns >= self.end_ns) or np.any(self.start_ns[1:] < self.end_ns[:-1]):
            raise ValueError("pieces must be sorted, disjoint and not empty")
        self.start_ns.setflags(write=False)
        self.end_ns.setflags(write=False)

    @classmethod
    def empty(cls) -> Self:
        """No time at all."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def union(cls, starts_ns: Nanoseconds, ends_ns: Nanoseconds) -> Self:
        """Everything covered by any [start, end) given, in any order; empty ones cover nothing.

        Raises ValueError when an interval ends before it starts.
        """
        if np.any(ends_ns < starts_ns):
            raise ValueError("an interval ends before it starts")
        kept = ends_ns > starts_ns
        order = np.argsort(starts_ns[kept], kind="stable")
        starts, ends = starts_ns[kept][order], ends_ns[kept][order]
        if not starts.size:
            return cls.empty()
        reach = np.maximum.accumulate(ends)
        opens = np.concatenate(([True], starts[1:] > reach[:-1]))
        closes = np.concatenate((opens[1:], [True]))
        return cls(starts[opens], reach[closes])

    @property
    def total_ns(self) -> int:
        """Time covered, in nanoseconds."""
        return int((self.end_ns - self.start_ns).sum())

    def unite(self, other: Self) -> Self:
        """Time in either."""
        return self.union(
            np.concatenate((self.start_ns, other.start_ns)),
            np.concatenate((self.end_ns, other.end_ns)),
        )

    def intersect(self, other: Self) -> Self:
        """Time in both."""
        first = np.searchsorted(other.end_ns, self.start_ns, side="right")
        behind = np.searchsorted(other.start_ns, self.end_ns, side="left")
        counts = behind - first
        mine = np.repeat(np.arange(counts.size), counts)
        # 0, 1, 2, ... within each of my pieces: which of the other's pieces that it meets
        nth = np.arange(mine.size) - np.repeat(np.cumsum(counts) - counts, counts)
        theirs = first[mine] + nth
        return type(self)(
            np.maximum(self.start_ns[mine], other.start_ns[theirs]),
            np.minimum(self.end_ns[mine], other.end_ns[theirs]),
        )

    def subtract(self, other: Self) -> Self:
        """Time in this one and not in the other."""
        if not self.start_ns.size:
            return self
        starts = np.concatenate((self.start_ns[:1], other.end_ns))
        ends = np.concatenate((other.start_ns, self.end_ns[-1:]))
        gaps = starts < ends
        return self.intersect(type(self)(starts[gaps], ends[gaps]))

    def covered_ns(self, starts_ns: Nanoseconds, ends_ns: Nanoseconds) -> Nanoseconds:
        """Time covered within each window [start, end); windows may overlap and have any order.

        Shape (windows,); a window that ends before it starts holds nothing.
        """
        covered: Nanoseconds = self._before_ns(ends_ns) - self._before_ns(starts_ns)
        return np.maximum(covered, 0)

    def contains(self, instants_ns: Nanoseconds) -> NDArray[np.bool_]:
        """Which of the instants are covered, shape (instants,)."""
        begun = np.searchsorted(self.start_ns, instants_ns, side="right")
        return begun > np.searchsorted(self.end_ns, instants_ns, side="right")

    def chosen(self, kept: NDArray[np.bool_]) -> Self:
        """Only the pieces that are marked, bool of shape (pieces,)."""
        return type(self)(self.start_ns[kept], self.end_ns[kept])

    def _before_ns(self, instants_ns: Nanoseconds) -> Nanoseconds:
        """Time covered before each instant."""
        if not self.start_ns.size:
            return np.zeros(instants_ns.shape, np.int64)
        lengths = self.end_ns - self.start_ns
        until = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        begun = np.searchsorted(self.start_ns, instants_ns, side="right")
        last = np.maximum(begun - 1, 0)
        inside = np.clip(instants_ns - self.start_ns[last], 0, lengths[last])
        return np.where(begun > 0, until[last] + inside, 0)

    def clip(self, start_ns: int, end_ns: int) -> Self:
        """Time within [start, end)."""
        return self.intersect(self.union(np.array([start_ns]), np.array([max(start_ns, end_ns)])))


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """How many intervals of each group are open, track by track, from one change to the next.

    Segments [start, end) have shape (segments,), in order of track and time; those in which
    nothing is open, and empty ones, are left out. `depth` has shape (groups, segments).
    """

    track: NDArray[np.int64]
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    depth: NDArray[np.int64]

    @classmethod
    def over(
        cls,
        starts_ns: Nanoseconds,
        ends_ns: Nanoseconds,
        tracks: NDArray[np.integer],
        *,
        groups: Sequence[NDArray[np.bool_]] = (),
    ) -> Self:
        """Intervals in any order; a group marks some of them, and without groups all are one."""
        count = starts_ns.size
        edges = np.concatenate((starts_ns, ends_ns))
        order = np.lexsort((edges, np.tile(tracks, 2)))
        interval = order % max(count, 1)
        change = np.where(order < count, 1, -1)
        chosen = groups or (np.ones(count, np.bool_),)
        depth = np.stack([np.cumsum(change * group[interval]) for group in chosen])[:, :-1]
        starts, ends = edges[order][:-1], edges[order][1:]
        # Nothing is open from the last end of a track to the first start of the next one.
        kept = (starts < ends) & np.any(depth > 0, axis=0)
        return cls(
            tracks[interval][:-1][kept].astype(np.int64), starts[kept], ends[kept], depth[:, kept]
        )

    def where(self, chosen: NDArray[np.bool_]) -> Intervals:
        """Time of the marked segments on any track, bool of shape (segments,)."""
        return Intervals.union(self.start_ns[chosen], self.end_ns[chosen])


def enclosing(
    starts_ns: Nanoseconds, ends_ns: Nanoseconds, tracks: NDArray[np.integer]
) -> NDArray[np.int64]:
    """The interval directly around each one on its track, shape (intervals,); -1: none.

    Intervals of a track are nested or disjoint, like calls of a thread. Those without a length are
    in none, and nothing is in them.
    """
    around = np.full(starts_ns.size, -1)
    real = np.flatnonzero(ends_ns > starts_ns)
    starts, ends, track = starts_ns[real], ends_ns[real], tracks[real]
    count = real.size
    opens = np.repeat([True, False], count)
    # Where times are equal, what ends comes before what starts, and the outer before the inner.
    order = np.lexsort(
        (
            np.concatenate((starts - ends, np.zeros(count, np.int64))),
            opens,
            np.concatenate((starts, ends)),
            np.tile(track, 2),
        )
    )
    opened = np.cumsum(np.where(opens[order], 1, -1))[opens[order]]
    interval = real[order[opens[order]]]
    # The outer one is the last that opened before, one level further out.
    place = opened * count + np.arange(count)
    by_place = np.argsort(place)
    found = np.searchsorted(place[by_place], place - count) - 1
    inner = np.flatnonzero(opened > 1)
    around[interval[inner]] = interval[by_place[found[inner]]]
    return around


def own_time_ns(
    starts_ns: Nanoseconds, ends_ns: Nanoseconds, tracks: NDArray[np.integer]
) -> Nanoseconds:
    """Length of each interval without those directly inside it, shape (intervals,).

    Intervals are as in `enclosing`.
    """
    own: Nanoseconds = ends_ns - starts_ns
    around = enclosing(starts_ns, ends_ns, tracks)
    inner = np.flatnonzero(around >= 0)
    outer = around[inner]
    inside = np.minimum(ends_ns[inner], ends_ns[outer]) - starts_ns[inner]
    np.subtract.at(own, outer, np.maximum(inside, 0))
    return np.maximum(own, 0)


def first_place(offered: NDArray[np.integer], wanted: NDArray[np.integer]) -> NDArray[np.int64]:
    """Where each wanted number first stands among those offered, shape (wanted,); -1: nowhere."""
    if not offered.size:
        return np.full(wanted.size, -1)
    order = np.argsort(offered, kind="stable")
    place = np.searchsorted(offered, wanted, sorter=order)
    found = order[np.minimum(place, offered.size - 1)]
    return np.where(offered[found] == wanted, found, -1)


def latest_window(
    start_ns: Nanoseconds, end_ns: Nanoseconds, moments_ns: Nanoseconds
) -> NDArray[np.int64]:
    """Which window [start, end) holds each moment, shape (moments,); -1: none.

    Windows are in any order. Only the last one that began before a moment may hold it.
    """
    if not start_ns.size:
        return np.full(moments_ns.size, -1)
    order = np.argsort(start_ns, kind="stable")
    place = np.searchsorted(start_ns, moments_ns, side="right", sorter=order) - 1
    window = order[np.maximum(place, 0)]
    return np.where((place >= 0) & (moments_ns < end_ns[window]), window, -1)
