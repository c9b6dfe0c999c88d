"""What was under way on the threads of a host while it handed over or did the work of a rank."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluator.traces.intervals import Nanoseconds, enclosing
from evaluator.traces.model import Lane, Table, rows_by_number


class RangeKind(IntEnum):
    """What a range is."""

    OPERATOR = 0
    """A call of an operator such as `aten::mm`."""
    MODULE = 1
    """A call of a module of the model."""
    NAMED = 2
    """A range that the program named: `record_function`, NVTX."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostRanges(Table):
    """Columns of shape (ranges,), in order of start, an outer range before those inside it.

    `kind` holds `RangeKind` values, `name_id` indexes `names`, `lane_id` indexes `lanes`.
    """

    start_ns: Nanoseconds
    end_ns: Nanoseconds
    kind: NDArray[np.int8]
    name_id: NDArray[np.int32]
    lane_id: NDArray[np.int32]
    sequence: NDArray[np.int64]
    """Autograd's number: equal for an operator and its backward pass; -1: none."""
    is_backward: NDArray[np.bool_]
    """Whether the range runs the backward pass of the operator of its sequence number."""
    flops: NDArray[np.float64]
    """Floating-point operations of a matrix product; NaN: unknown."""
    bytes: NDArray[np.int64]
    """Read and written at least, by the shapes of the operands; 0: unknown."""
    precision_id: NDArray[np.int8]
    """Indexes `precisions`: the type of the operands, as in `float32`."""
    names: tuple[str, ...]
    lanes: tuple[Lane, ...]
    precisions: tuple[str, ...]

    @classmethod
    def build(
        cls,
        *,
        names: Sequence[str],
        lanes: Sequence[Lane],
        precisions: Sequence[str] = ("",),
        **known: ArrayLike,
    ) -> Self:
        """From columns in any order; what is not given is unknown.

        Ranges of no length are left out.
        """
        start_ns = np.asarray(known["start_ns"], np.int64)
        end_ns = np.asarray(known["end_ns"], np.int64)
        order = np.lexsort((-end_ns, start_ns))
        order = order[end_ns[order] > start_ns[order]]
        columns = {
            name: np.asarray(known.get(name, np.full(start_ns.size, unknown)), unknown.dtype)[order]
            for name, unknown in _UNKNOWN.items()
        }
        return cls(names=tuple(names), lanes=tuple(lanes), precisions=tuple(precisions), **columns)


_UNKNOWN: dict[str, np.generic] = {
    "start_ns": np.int64(0),
    "end_ns": np.int64(0),
    "kind": np.int8(0),
    "name_id": np.int32(0),
    "lane_id": np.int32(0),
    "sequence": np.int64(-1),
    "is_backward": np.bool_(False),
    "flops": np.float64(np.nan),
    "bytes": np.int64(0),
    "precision_id": np.int8(0),
}


_MOST_LEVELS = 200
"""No program nests as deeply; a made-up trace may, and paths take the square of their depth."""


class Nesting:
    """How the ranges of each thread lie within each other; what lies too deep is in none."""

    def __init__(self, ranges: HostRanges) -> None:
        self._ranges = ranges
        self._around = enclosing(ranges.start_ns, ranges.end_ns, ranges.lane_id)
        inner = np.flatnonzero(self._around >= 0)
        depth = np.zeros(ranges.count, np.int64)
        for _ in range(_MOST_LEVELS):
            deeper = depth[self._around[inner]] + 1
            if np.array_equal(depth[inner], deeper):
                break
            depth[inner] = deeper
        self._levels = rows_by_number(depth, min(int(depth.max(initial=-1)) + 1, _MOST_LEVELS))

    def levels(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Rows of one depth and the rows around them, the outermost first, which have none (-1)."""
        return ((rows, self._around[rows]) for rows in self._levels)

    def nearest(self, own: NDArray[np.int64]) -> NDArray[np.int64]:
        """The value of each range, or where that is -1 of the nearest around it; (ranges,)."""
        found = np.append(own, -1)
        for rows, around in self.levels():
            found[rows] = np.where(own[rows] >= 0, own[rows], found[around])
        return found[:-1]

    def paths(self, kind: RangeKind, joint: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """The ranges of a kind around each and itself, as text, outermost first.

        Numbers of texts, shape (ranges,), -1 where there is none, and the texts.
        """
        ranges = self._ranges
        found = np.full(ranges.count + 1, -1)
        texts: list[str] = []
        known: dict[tuple[int, int], int] = {}
        for rows, around in self.levels():
            found[rows] = found[around]
            own = rows[ranges.kind[rows] == kind]
            pairs = zip(found[own].tolist(), ranges.name_id[own].tolist(), strict=True)
            numbers = []
            for outer, name in pairs:
                if (outer, name) not in known:
                    known[outer, name] = len(texts)
                    before = f"{texts[outer]}{joint}" if outer >= 0 else ""
                    texts.append(before + ranges.names[name])
                numbers.append(known[outer, name])
            found[own] = numbers
        return found[:-1], tuple(texts)

    def innermost(self, lane_id: NDArray[np.int64], moments_ns: Nanoseconds) -> NDArray[np.int64]:
        """The innermost range under way on a thread at a moment, shape (moments,); -1: none."""
        ranges = self._ranges
        found = np.full(moments_ns.size, -1)
        by_lane = rows_by_number(ranges.lane_id.astype(np.int64), len(ranges.lanes))
        for lane, asked in enumerate(rows_by_number(lane_id, len(ranges.lanes))):
            rows = by_lane[lane]
            if rows.size and asked.size:
                place = np.searchsorted(ranges.start_ns[rows], moments_ns[asked], side="right")
                found[asked] = np.where(place > 0, rows[place - 1], -1)
        end_ns = np.append(ranges.end_ns, 0)
        for _ in range(_MOST_LEVELS):
            over = np.flatnonzero((found >= 0) & (moments_ns >= end_ns[found]))
            if not over.size:
                return found
            found[over] = self._around[found[over]]
        return np.where((found >= 0) & (moments_ns < end_ns[found]), found, -1)
