"""The columns of a Kineto file as the trace of one rank: what counts, in order, with its device."""

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from evaluator.readers.kineto.collectives import host_messages, kernel_messages
from evaluator.readers.kineto.columns import Columns, Numbered
from evaluator.readers.kineto.events import Header, Number
from evaluator.readers.kineto.kinds import EventKind
from evaluator.readers.kineto.mending import NEVER, launch_starts, mended
from evaluator.readers.kineto.payloads import group_of, only_group
from evaluator.readers.kineto.steps import Marks, device_steps, host_steps
from evaluator.readers.kineto.tables import EventColumns
from evaluator.traces.collectives import Collectives, Group
from evaluator.traces.rank import Device, MemoryUse, RankTrace
from evaluator.traces.spans import Activity, Lane, Spans
from evaluator.traces.steps import StepWindows

T = TypeVar("T")
S = TypeVar("S", bound=np.generic)

_DEVICE_ACTIVITY = {
    EventKind.KERNEL: Activity.COMPUTE,
    EventKind.COLLECTIVE_KERNEL: Activity.COMMUNICATION,
    EventKind.COPY: Activity.COPY,
    EventKind.FILL: Activity.FILL,
    EventKind.LAUNCH: Activity.LAUNCH,
    EventKind.SYNC: Activity.SYNC,
}
_HOST_ACTIVITY = {
    EventKind.HOST_OP: Activity.COMPUTE,
    EventKind.HOST_WAIT: Activity.WAIT,
    EventKind.HOST_COLLECTIVE: Activity.COMMUNICATION,
}
_NO_WORK = "no work of its device was recorded"


class RankReading:
    """One file that has been read, about to become the trace of a rank."""

    def __init__(self, header: Header, columns: Columns, events: EventColumns) -> None:
        self._header = header
        self._columns = columns
        self._names = tuple(columns.names)
        self._has_work = bool(np.any(events.kind <= EventKind.FILL))
        self._on_device = self._has_work or header.ran_on_devices
        self._events, self._caveats = mended(events, header.base_ns, self._is_rocm())
        self._launched_ns = launch_starts(self._events)
        self._activity = self._activities()
        self._order = self._kept_in_order()

    def trace(self, rank: int, world_size: int | None, caveats: list[str]) -> RankTrace:
        """Everything that counts, with what else there is to know about the reading."""
        host = host_steps(self._marks())
        device, device_caveats = self._device()
        return RankTrace(
            rank=rank,
            world_size=world_size,
            backend=self._header.distributed.backend,
            device=device,
            source="kineto",
            spans=self._spans(),
            collectives=self._collectives(),
            steps=self._device_steps(host),
            host_steps=host,
            memory=self._memory(),
            caveats=(*caveats, *self._caveats, *self._early(), *device_caveats),
        )

    def _is_rocm(self) -> bool:
        calls_hip = any(name.startswith("hip") for name in self._names)
        return self._header.is_rocm or (self._on_device and calls_hip)

    def _activities(self) -> Mapping[EventKind, Activity]:
        """Which kinds of events count, and as what."""
        if not self._on_device:
            return _HOST_ACTIVITY
        if self._header.distributed.backend == "gloo":
            # Such a job computes on devices and communicates on the host.
            return {**_DEVICE_ACTIVITY, EventKind.HOST_COLLECTIVE: Activity.COMMUNICATION}
        return _DEVICE_ACTIVITY

    def _kept_in_order(self) -> NDArray[np.int64]:
        """Rows of the events that count, by start."""
        events = self._events
        kept = np.isin(events.kind, list(self._activity))
        # What gloo's own threads copy is part of the collective, not compute.
        on_gloo = np.isin(events.lane_id, list(self._columns.gloo_lanes))
        kept &= (events.kind != EventKind.HOST_OP) | ~on_gloo
        rows = np.flatnonzero(kept)
        return rows[np.argsort(events.start_ns[rows], kind="stable")]

    def _spans(self) -> Spans:
        events, order = self._events, self._order
        activity = np.zeros(len(EventKind), np.int8)
        activity[list(self._activity)] = list(self._activity.values())
        name_id, names = _compact(events.name_id[order], self._names)
        lane_id, lanes = _compact(events.lane_id[order], tuple(self._columns.lanes))
        return Spans(
            start_ns=events.start_ns[order],
            end_ns=self._events.end_ns[order],
            name_id=name_id,
            lane_id=lane_id,
            activity=activity[events.kind[order]],
            correlation=self._of_work(events.work.correlation, 0),
            bytes=self._of_work(events.work.bytes, 0),
            flops=np.full(order.size, np.nan),
            blocks_per_sm=self._of_work(events.work.blocks_per_sm, np.nan),
            occupancy=self._of_work(events.work.occupancy, np.nan),
            names=names,
            lanes=tuple(Lane(_text(pid), _text(tid)) for pid, tid in lanes),
        )

    def _of_work(self, values: NDArray[S], else_value: float) -> NDArray[S]:
        """A column that only device work and calls have, for all spans."""
        column = np.full(self._events.count, else_value, values.dtype)
        column[self._events.work.row] = values
        return column[self._order]

    def _collectives(self) -> Collectives:
        known = {group.name: group for group in self._header.distributed.groups}
        keys = [*self._columns.groups, only_group(known)]
        messages = [kernel_messages(self._events, self._names, self._launched_ns)]
        if EventKind.HOST_COLLECTIVE in self._activity:
            messages.append(host_messages(self._events, self._names, len(keys) - 1, keys[-1][2]))
        span_of_row = np.full(self._events.count, -1)
        span_of_row[self._order] = np.arange(self._order.size)
        span = span_of_row[np.concatenate([one.row for one in messages])]
        order = np.argsort(span)
        key_id = np.concatenate([one.group for one in messages])[order]
        used, used_id = np.unique(key_id, return_inverse=True)
        groups = Numbered[Group]()
        group_id = np.array([groups[group_of(keys[i], known)] for i in used], np.int32)[used_id]
        return Collectives(
            span=span[order],
            kind=np.concatenate([one.kind for one in messages])[order],
            group_id=group_id,
            bytes=np.concatenate([one.bytes for one in messages])[order],
            sequence=np.concatenate([one.sequence for one in messages])[order],
            groups=tuple(groups),
        )

    def _marks(self) -> Marks:
        events = self._events
        return Marks(
            kind=events.kind,
            name_id=events.name_id,
            start_ns=events.start_ns,
            end_ns=self._events.end_ns,
            names=self._names,
        )

    def _device_steps(self, host: StepWindows) -> StepWindows:
        if not self._on_device:
            return host
        if not self._has_work:
            return StepWindows.none()
        work = np.flatnonzero(self._events.kind <= EventKind.FILL)
        return device_steps(
            self._marks(),
            host,
            self._launched_ns[work],
            (self._events.start_ns[work], self._events.end_ns[work]),
        )

    def _device(self) -> tuple[Device | None, list[str]]:
        """The device that did most of the work, and a word where none did any."""
        if not self._on_device:
            return None, []
        events, lanes = self._events, tuple(self._columns.lanes)
        lane_ids = events.lane_id[events.kind <= EventKind.FILL]
        works = Counter[str]()
        for lane_id, count in enumerate(np.bincount(lane_ids, minlength=len(lanes)).tolist()):
            works[_text(lanes[lane_id][0])] += count
        (main, _), *_ = works.most_common(1) or [("", 0)]
        known = self._header.devices
        told = next((one for one in known if str(one.id) == main), known[0] if known else None)
        device = Device(
            name=told.name if told else "",
            multiprocessor_count=told.multiprocessor_count if told else None,
            memory_bytes=told.memory_bytes if told else None,
        )
        return device, [] if self._has_work else [_NO_WORK]

    def _memory(self) -> MemoryUse | None:
        reports = self._events.memory
        own = np.flatnonzero((reports.device != 0) == self._on_device)
        if not own.size:
            return None
        own = own[np.argsort(reports.time_ns[own], kind="stable")]
        return MemoryUse(time_ns=reports.time_ns[own], allocated_bytes=reports.allocated_bytes[own])

    def _early(self) -> list[str]:
        """A word about work that seems to begin before its launch."""
        known = self._launched_ns != NEVER
        early = np.count_nonzero(known & (self._events.start_ns < self._launched_ns))
        return [f"{early} spans begin before they were launched"] if early else []


def _compact(
    ids: NDArray[np.int32], table: tuple[T, ...]
) -> tuple[NDArray[np.int32], tuple[T, ...]]:
    """Numbers of only those entries that occur, and these."""
    used = np.bincount(ids, minlength=len(table)) > 0
    number = np.cumsum(used) - 1
    entries = tuple(table[i] for i in np.flatnonzero(used).tolist())
    return number[ids].astype(np.int32), entries


def _text(identity: Number | None) -> str:
    return "" if identity is None else str(identity)
