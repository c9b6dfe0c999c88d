"""What ran on one device of an XLA trace, as spans: asynchronous operations from start to done."""

import re
from collections import deque
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from evaluator.intervals import Nanoseconds
from evaluator.readers.distinct import distinct_rows
from evaluator.readers.kernels import communicates
from evaluator.readers.xla.events import Events
from evaluator.readers.xla.hlo import Half, activity_of, half_of, result_bytes
from evaluator.readers.xla.lines import Role
from evaluator.traces.spans import Activity

_NOTHING = -1
_ASYNCHRONOUS = (Activity.COPY, Activity.COMMUNICATION)
_COPY_KERNEL = re.compile(r"memcpy|copyBuffer", re.IGNORECASE)
_FILL_KERNEL = re.compile(r"memset|fillBuffer", re.IGNORECASE)
_COPY_SIZE = re.compile(r"size:(\d{1,18})")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operations:
    """Columns of shape (operations,), in order of start.

    `event` is the row of the event, `done` that of the event that tells the result: another one
    where an operation was started and done.
    """

    event: NDArray[np.int64]
    done: NDArray[np.int64]
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    activity: NDArray[np.int64]
    bytes: NDArray[np.int64]

    def where(self, kept: NDArray[np.bool_] | NDArray[np.int64]) -> Self:
        """Only these."""
        return type(self)(**{field.name: getattr(self, field.name)[kept] for field in fields(self)})


def times_ns(events: Events, rows: NDArray[np.int64]) -> tuple[Nanoseconds, Nanoseconds]:
    """Starts and ends of events of one device.

    The device's own picoseconds where all of them tell these, brought to the file's clock by the
    first of them, so that spans that touch do so after rounding.
    """
    offset_ps, duration_ps = events.offset_ps[rows], events.duration_ps[rows]
    if not rows.size or np.any(offset_ps < 0) or np.any(duration_ps < 0):
        return events.start_ns[rows], events.end_ns[rows]
    shift_ns = events.start_ns[rows[0]] - offset_ps[0] // 1000
    return offset_ps // 1000 + shift_ns, (offset_ps + duration_ps) // 1000 + shift_ns


def operations_of(events: Events, rows: NDArray[np.int64], role: NDArray[np.int64]) -> Operations:
    """The operations among these events of one device.

    Operations that contain others are left out, for each of those has its own span. A start and the
    done that waits for it are one span. Where a line shows such spans whole, they are taken from
    there.
    """
    activity = _activities(events, rows, role)
    start_ns, end_ns = times_ns(events, rows)
    order = np.argsort(start_ns, kind="stable")
    order = order[activity[order] != _NOTHING]
    found = Operations(
        event=rows[order],
        done=rows[order],
        start_ns=start_ns[order],
        end_ns=end_ns[order],
        activity=activity[order],
        bytes=np.maximum(events.bytes[rows[order]], 0),
    )
    whole = role[order] == Role.ASYNC_OPERATIONS
    return _joined(events, found, whole)


def _activities(
    events: Events, rows: NDArray[np.int64], role: NDArray[np.int64]
) -> NDArray[np.int64]:
    """What each event does; -1 where it only contains others. Judged once for each distinct one."""
    distinct, index = distinct_rows(events.name[rows], events.details[rows], role == Role.KERNELS)
    found = [
        _kernel_activity(events.names[name])
        if is_kernel
        else activity_of(events.names[name], *events.all_details[details])
        for name, details, is_kernel in distinct.T.tolist()
    ]
    judged = [_NOTHING if activity is None else int(activity) for activity in found]
    return np.array(judged, np.int64)[index]


def _kernel_activity(name: str) -> Activity:
    if communicates(name):
        return Activity.COMMUNICATION
    if _COPY_KERNEL.search(name):
        return Activity.COPY
    return Activity.FILL if _FILL_KERNEL.search(name) else Activity.COMPUTE


def _joined(events: Events, found: Operations, whole: NDArray[np.bool_]) -> Operations:
    """With each start and its done made one, or left out where the whole is there as well."""
    halves = np.isin(found.activity, _ASYNCHRONOUS) & ~whole
    has_whole = bool(whole.any())
    waiting: dict[str, deque[int]] = {}
    known: dict[tuple[int, int], Half | None] = {}
    kept = np.ones(found.event.size, bool)
    for row in np.flatnonzero(halves).tolist():
        event = found.event[row]
        key = (int(events.name[event]), int(events.details[event]))
        if key not in known:
            known[key] = half_of(events.names[key[0]], events.all_details[key[1]][1])
        half = known[key]
        if half is None:
            continue
        if has_whole:
            kept[row] = False
        elif half.is_start:
            waiting.setdefault(half.start, deque()).append(row)
        elif waiting.get(half.start):
            start = waiting[half.start].popleft()
            kept[row] = False
            found.done[start] = event
            found.end_ns[start] = found.end_ns[row]
    _size_copies(events, found)
    return found.where(kept)


def _size_copies(events: Events, found: Operations) -> None:
    """A copy moves what it gives; what it accesses counts reading and writing."""
    rows = np.flatnonzero(found.activity == Activity.COPY)
    details, index = np.unique(events.details[found.done[rows]], return_inverse=True)
    texts = [events.all_details[number][1] for number in details.tolist()]
    sizes = [_COPY_SIZE.search(text) for text in texts]
    told = np.array([int(size[1]) if size else -1 for size in sizes], np.int64)[index]
    given = np.array([result_bytes(text) for text in texts], np.int64)[index]
    whole = found.done[rows] != found.event[rows]
    found.bytes[rows] = np.where(told >= 0, told, np.where(whole, given, found.bytes[rows]))
