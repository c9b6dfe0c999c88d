"""Rows of an Nsight Systems export as columns, and what all of its tables have in common."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from evaluator.readers.nsys.database import Database, Integers

_TIMES = {"start": -1, "end": -1}
_LATEST_NS = 1 << 61


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Columns of shape (rows,), in order of start: what ran on devices, or what the host called.

    `process`, `thread` and `device` are the numbers of the file, `name` indexes `Tables.names`,
    `activity` holds `Activity` values. `source` and `target` are the devices of a copy from one to
    another, `blocks` those of a kernel's grid. -1 stands where there is no such thing.
    """

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    process: NDArray[np.int64]
    thread: NDArray[np.int64]
    device: NDArray[np.int64]
    stream: NDArray[np.int64]
    correlation: NDArray[np.int64]
    name: NDArray[np.int64]
    activity: NDArray[np.int64]
    bytes: NDArray[np.int64]
    blocks: NDArray[np.int64]
    source: NDArray[np.int64]
    target: NDArray[np.int64]

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.start_ns.size)

    @property
    def calls(self) -> NDArray[np.int64]:
        """Numbers that are equal for a call of a process and what it launched; -1: no call."""
        numbers = ((self.process >> 24) & 0x7FFFFFFF) << 32 | (self.correlation & 0xFFFFFFFF)
        return np.where(self.correlation > 0, numbers, -1)

    @classmethod
    def of(cls, columns: Mapping[str, NDArray[np.int64]]) -> Self:
        """From columns by their names here; those that are not given hold -1."""
        none = np.full(columns["start_ns"].size, -1, np.int64)
        return cls(**{field.name: columns.get(field.name, none) for field in fields(cls)})

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """All rows of the parts, put in order of start."""
        names = [field.name for field in fields(cls)]
        whole = cls(
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        )
        return whole.where(np.argsort(whole.start_ns, kind="stable"))

    def where(self, kept: NDArray[np.bool_] | NDArray[np.int64]) -> Self:
        """Only these rows."""
        return type(self)(**{field.name: getattr(self, field.name)[kept] for field in fields(self)})


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Texts of rows: `texts` has each once, `index` of shape (rows,) says whose is which."""

    texts: tuple[str, ...]
    index: NDArray[np.int64]


class Tables:
    """Reads tables one after the other, keeps their names, counts what has to be left out."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._names: dict[str, int] = {}
        self._left_out: Counter[str] = Counter()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all spans so far."""
        return tuple(self._names)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What was left out so far, in words."""
        return tuple(
            f"{count} {what} without a proper start and end were left out"
            for what, count in self._left_out.items()
        )

    def timed(
        self,
        table: str,
        what: str,
        wanted: Mapping[str, int],
        only: tuple[str, Sequence[int]] | None = None,
    ) -> Integers:
        """Columns of the rows of a table that start and, not earlier, end.

        `only` names a column and the values that rows of interest have there.
        """
        columns = self.database.integers(table, {**_TIMES, **wanted})
        if only:
            columns = _kept(columns, np.isin(columns[only[0]], only[1]))
        start, end = columns["start"], columns["end"]
        sound = (start >= 0) & (start <= end) & (end < _LATEST_NS)
        if sound.all():
            return columns
        self._left_out[what] += int((~sound).sum())
        return _kept(columns, sound)

    def labels(self, ids: NDArray[np.int64], unknown: str) -> Labels:
        """The strings of these numbers."""
        numbers, index = np.unique(ids, return_inverse=True)
        found = self.database.named("StringIds", "id", "value", numbers)
        return Labels(tuple(found.get(number, unknown) for number in numbers.tolist()), index)

    def named(self, labels: Labels) -> NDArray[np.int64]:
        """The numbers of the rows' labels among all names, shape (rows,)."""
        names = self._names
        numbers = [names.setdefault(text, len(names)) for text in labels.texts]
        return np.array(numbers, np.int64)[labels.index]


def _kept(columns: Integers, kept: NDArray[np.bool_]) -> Integers:
    return {name: column[kept] for name, column in columns.items()}
