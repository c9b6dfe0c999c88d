"""What the events of a Kineto trace tell, as columns, before it is known on which side work counts.

Whatever reads events faster than `kineto_columns` may take its place if it gives these.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from evaluator.intervals import Nanoseconds

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkColumns:
    """What device work and calls to the driver tell, shape (works,); 0 or NaN: not told."""

    row: NDArray[np.int64]
    correlation: NDArray[np.int64]
    bytes: NDArray[np.int64]
    blocks_per_sm: NDArray[np.float32]
    occupancy: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MessageColumns:
    """What spans that communicate tell of their collectives, shape (messages,).

    `kind` holds `CollectiveKind` values, `group` numbers of group keys; bytes of 0 and a sequence
    of -1 are not told.
    """

    row: NDArray[np.int64]
    kind: NDArray[np.int8]
    group: NDArray[np.int32]
    bytes: NDArray[np.int64]
    sequence: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CallColumns:
    """What collectives that the host carries out or calls tell, shape (calls,).

    `function` numbers calls as they are made; all are equal where the recorder did not count.
    `bytes` are those of all tensors handed over, `largest_bytes` of the largest one; 0: not told.
    """

    row: NDArray[np.int64]
    function: NDArray[np.int64]
    bytes: NDArray[np.int64]
    largest_bytes: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryColumns:
    """What allocators report, shape (reports,); `device` is torch's type of it, 0 is the host."""

    time_ns: Nanoseconds
    allocated_bytes: NDArray[np.int64]
    device: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EventColumns:
    """The events that matter in file order, shape (events,); rows of what only some tell are here.

    Times are ns, without the base time of the file until that is added.
    """

    kind: NDArray[np.int8]
    name_id: NDArray[np.int32]
    lane_id: NDArray[np.int32]
    start_ns: Nanoseconds
    duration_ns: Nanoseconds
    work: WorkColumns
    messages: MessageColumns
    calls: CallColumns
    memory: MemoryColumns

    @property
    def count(self) -> int:
        """Number of events."""
        return int(self.kind.size)

    @property
    def end_ns(self) -> Nanoseconds:
        """When each ends."""
        return self.start_ns + self.duration_ns

    @classmethod
    def joined(cls, batches: Sequence[Self]) -> Self:
        """All batches as one; at least one."""
        firsts = [0, *np.cumsum([batch.count for batch in batches]).tolist()]
        return _joined(batches, firsts)


def _joined(batches: Sequence[T], firsts: Sequence[int]) -> T:
    columns: dict[str, object] = {}
    for name in (field.name for field in fields(batches[0])):  # type: ignore[arg-type]  # they are
        parts = [getattr(batch, name) for batch in batches]
        if name == "row":
            parts = [part + first for part, first in zip(parts, firsts, strict=False)]
        whole = isinstance(parts[0], np.ndarray)
        columns[name] = np.concatenate(parts) if whole else _joined(parts, firsts)
    return type(batches[0])(**columns)
