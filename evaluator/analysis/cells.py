"""Sorts calls into cells, within which the k-th of each rank are the same collective."""

from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from evaluator.analysis.calls import Calls, profiled_steps
from evaluator.traces.collectives import CollectiveKind
from evaluator.traces.job import TraceSet

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
class Cells:
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
        calls, code = calls.kept(order), code[order]
        opens = _changes(code)
        first = np.where(opens | _changes(calls.rank), np.arange(code.size), 0)
        return cls(
            calls=calls,
            numbered=number[order] >= 0,
            cell=np.cumsum(opens) - 1,
            place=np.arange(code.size) - np.maximum.accumulate(first),
        )

    @property
    def count(self) -> int:
        """Number of cells, those without calls included."""
        return int(self.cell[-1]) + 1 if self.cell.size else 0

    def only(self, chosen: NDArray[np.bool_]) -> Self:
        """The chosen cells, bool of shape (cells,); they keep their numbers."""
        kept = chosen[self.cell]
        return replace(
            self,
            calls=self.calls.kept(kept),
            numbered=self.numbered[kept],
            cell=self.cell[kept],
            place=self.place[kept],
        )

    def even(self, traces: TraceSet) -> NDArray[np.bool_]:
        """Whether the k-th calls of the ranks may be one instance, bool of shape (cells,).

        With a number that is so where no rank uses it twice; else where every traced member of the
        group that profiled the step makes equally many calls.
        """
        first = np.flatnonzero(_changes(self.cell))
        last = np.append(self.place[1:] == 0, True)[: self.cell.size]
        callers = np.bincount(self.cell[last], minlength=self.count)
        fewest, most = extremes(self.cell[last], self.place[last] + 1, self.count)
        members = self.calls.groups.members[self.calls.group_id[first]]
        expected = np.count_nonzero(members & _profiled(self.calls.step[first], traces), axis=1)
        equal = (callers == expected) & (fewest == most)
        even: NDArray[np.bool_] = np.where(self.numbered[first], most == 1, equal)
        return even

    def alike(self, even: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which even cells hold only instances that are of one size on all ranks, if told."""
        cells = self.only(even)
        instance, size = cells.instances(), cells.calls.bytes
        _, largest = extremes(instance, size, instance_count(instance))
        smaller = (size > 0) & (size < largest[instance]) & cells.calls.doing(*_ONE_SIZE)
        alike = even.copy()
        alike[cells.cell[smaller]] = False
        return alike

    def instances(self) -> NDArray[np.int64]:
        """The instance of each call, numbered from 0 without gaps; all cells must be even."""
        _, most = extremes(self.cell, self.place + 1, self.count)
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


def _profiled(step: NDArray[np.int64], traces: TraceSet) -> NDArray[np.bool_]:
    """Which ranks profiled these steps, bool of shape (steps, ranks); -1: those without steps."""
    numbers = [profiled_steps(trace) for trace in traces.ranks]
    found = [np.isin(step, number) if number.size else step < 0 for number in numbers]
    return np.stack(found, axis=1)
