"""Sets of time on one clock, and their algebra: the only place that unions, intersects or clips."""

from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

Nanoseconds: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """A set of instants as half-open pieces [start, end): sorted, disjoint, none empty.

    Both arrays are int64 nanoseconds, shape (pieces,), read-only. Pieces that touch are one piece
    when made by `union`; other operations may leave touching pieces apart, which changes no total.
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

    def clip(self, start_ns: int, end_ns: int) -> Self:
        """Time within [start, end)."""
        first = np.searchsorted(self.end_ns, start_ns, side="right")
        behind = np.searchsorted(self.start_ns, end_ns, side="left")
        if start_ns >= end_ns or behind <= first:
            return self.empty()
        return type(self)(
            np.maximum(self.start_ns[first:behind], start_ns),
            np.minimum(self.end_ns[first:behind], end_ns),
        )
