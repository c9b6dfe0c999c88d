"""Read the trace of one rank that the PyTorch profiler wrote: Kineto JSON of every era.

Collectives combine what kernels say of theirs and what the host's calls add. Steps are those of the
host and of the device.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evaluator.traces.intervals import Nanoseconds, latest_window
from evaluator.traces.model import (
    Activity,
    CollectiveKind,
    Collectives,
    Device,
    Lane,
    MemoryUse,
    RankTrace,
    Spans,
    StepKind,
    StepWindows,
)
from evaluator.traces.readers.chrome import ChromeFile
from evaluator.traces.readers.files import STANDARD_LIMITS, ReadLimits
from evaluator.traces.readers.kineto.columns import (
    Columns,
    EventColumns,
    MessageColumns,
    launch_starts,
    repair_times,
)
from evaluator.traces.readers.kineto.events import (
    ENGINE_STEP,
    ITERATION,
    WHOLE_IS_PUT_IN,
    DeviceProperties,
    EventKind,
    KinetoEvent,
    KinetoHeader,
    group_of,
    header_of,
    lane_text,
    only_group,
)
from evaluator.traces.readers.marks import collective_kind, counted, outermost
from records.errors import TraceError

_NOTHING, _UNKNOWN = -1, -1
_VAGUE = (CollectiveKind.OTHER, CollectiveKind.SEND_RECV)
_CARRIED_OUT_AS = {
    CollectiveKind.ALL_REDUCE: (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER),
    CollectiveKind.ALL_GATHER: (CollectiveKind.ALL_GATHER,),
}


def kernel_messages(
    events: EventColumns, names: Sequence[str], launched_ns: Nanoseconds
) -> MessageColumns:
    """What communication kernels do; `launched_ns` is when each row was launched, shape (events,).

    Their arguments say it, else their names. Kernels of older profilers have no such arguments, and
    of some the names say only that something is sent: those do what the `nccl:` call around their
    launch does. Where that call launched no other kernel, they move the bytes that it was given.
    """
    found = events.messages
    kind, size = found.kind.copy(), found.bytes.copy()
    call = _around(events, EventKind.DEVICE_COLLECTIVE_CALL, launched_ns[found.row])
    silent = np.flatnonzero((size == 0) & (call != _NOTHING))
    launched_count = np.bincount(call[call != _NOTHING], minlength=events.calls.row.size)
    for i in silent.tolist():
        does = collective_kind(names[events.name_id[events.calls.row[call[i]]]])
        if kind[i] in _VAGUE:
            kind[i] = does
        if kind[i] == does and does in WHOLE_IS_PUT_IN and launched_count[call[i]] == 1:
            size[i] = events.calls.bytes[call[i]]
    return replace(found, kind=kind, bytes=size)


def host_messages(
    events: EventColumns, names: Sequence[str], group: int, group_size: int | None
) -> MessageColumns:
    """What gloo's spans do, all in the one group that there is, as far as that is known.

    gloo carries a reduce-scatter out as an all-reduce, and states only what a rank puts into an
    all-gather. The `c10d::` call states both: spans belong to calls in the order of either, which
    is that of their numbers where the recorder gave them any, else of their starts.
    """
    calls = events.calls
    does, by_torch = _called(events, names)
    is_span = events.kind[calls.row] == EventKind.HOST_COLLECTIVE
    kind, size = does.copy(), calls.bytes.copy()
    gathers = is_span & (kind == CollectiveKind.ALL_GATHER)
    size[gathers] *= group_size or 0
    for carried_out_as, calls_do in _CARRIED_OUT_AS.items():
        spans = _in_order(events, is_span & (does == carried_out_as))
        called = _in_order(events, by_torch & np.isin(does, calls_do))
        # The first spans may be of calls before the profile, the last calls of spans after it.
        spans = spans[max(0, spans.size - called.size) :]
        called = called[: spans.size]
        kind[spans] = does[called]
        if carried_out_as is CollectiveKind.ALL_GATHER:
            size[spans] = np.maximum(size[spans], calls.largest_bytes[called])
    whole = ~gathers | (size > calls.bytes)
    row = calls.row[is_span]
    return MessageColumns(
        row=row,
        kind=kind[is_span],
        group=np.full(row.size, group, np.int32),
        bytes=np.where(whole, size, 0)[is_span],
        sequence=np.full(row.size, _UNKNOWN, np.int64),
    )


def _called(
    events: EventColumns, names: Sequence[str]
) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """What calls do by their names, and which are torch's own; both of shape (calls,)."""
    name_ids, of_call = np.unique(events.name_id[events.calls.row], return_inverse=True)
    different = [names[name_id] for name_id in name_ids]
    kind = np.array([collective_kind(name) for name in different], np.int8)
    by_torch = np.array([name.startswith("c10d::") for name in different], bool)
    return kind[of_call], by_torch[of_call]


def _in_order(events: EventColumns, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    calls = np.flatnonzero(chosen)
    start_ns = events.start_ns[events.calls.row[calls]]
    return calls[np.lexsort((start_ns, events.calls.function[calls]))]


def _around(events: EventColumns, kind: EventKind, moments_ns: Nanoseconds) -> NDArray[np.int64]:
    """Which call of a kind was under way at each moment, the latest begun; -1: none."""
    calls = np.flatnonzero(events.kind[events.calls.row] == kind)
    row = events.calls.row[calls]
    found = latest_window(events.start_ns[row], events.end_ns[row], moments_ns)
    return np.append(calls, _NOTHING)[found]


_KIND_OF_ITERATION = {
    "DECODE": StepKind.DECODE,
    "EXTEND": StepKind.PREFILL,
    "PREFILL": StepKind.PREFILL,
    "MIXED": StepKind.PREFILL,
}


def host_steps(events: EventColumns, names: Sequence[str]) -> StepWindows:
    """The steps on the host's side.

    `ProfilerStep#k` where the program marked its steps; else what vLLM and SGLang call theirs:
    `execute_..context_n(..)_generation_m(..)`, `step[EXTEND ..]`, or calls of the function that is
    one step. Those have no numbers: they count from 0, the outer of two where they are nested.
    """
    numbered = _numbered(events, names, EventKind.HOST_STEP)
    if numbered.count:
        return numbered
    kinds = (EventKind.ENGINE_STEP, EventKind.ITERATION, EventKind.FRAME_STEP)
    rows = next(filter(np.size, (_marks(events, kind) for kind in kinds)), np.empty(0, np.int64))
    rows = rows[outermost(events.start_ns[rows], events.end_ns[rows])]
    return StepWindows(
        number=np.arange(rows.size),
        start_ns=events.start_ns[rows],
        end_ns=events.end_ns[rows],
        kind=np.array([_kind(names[i]) for i in events.name_id[rows].tolist()], np.int8),
    )


def device_steps(
    events: EventColumns, names: Sequence[str], host: StepWindows, launched_ns: Nanoseconds
) -> StepWindows:
    """The steps on the device's side: windows from the first work of a step to its last.

    That is the work which the host launched within its step (it lags behind it), and what the
    profiler recorded as `ProfilerStep#k` on streams. The latter alone does not do: work within a
    range that has another name inside the step is not part of it. Nor does the host's window, but
    it stands for all steps where nothing shows any on the device.
    `launched_ns` is the start of the launch of each event, of shape (events,).
    """
    step = latest_window(host.start_ns, host.end_ns, launched_ns)
    work = np.flatnonzero((events.kind <= EventKind.FILL) & (step >= 0))
    step = step[work]
    recorded = _numbered(events, names, EventKind.DEVICE_STEP)
    found = _hulls(
        np.concatenate((host.number[step], recorded.number)),
        np.concatenate((events.start_ns[work], recorded.start_ns)),
        np.concatenate((events.end_ns[work], recorded.end_ns)),
        np.concatenate((host.kind[step], recorded.kind)),
    )
    return found if found.count else host


def _marks(events: EventColumns, kind: EventKind) -> NDArray[np.int64]:
    """The rows of the marks of a kind, by start."""
    rows = np.flatnonzero(events.kind == kind)
    return rows[np.argsort(events.start_ns[rows], kind="stable")]


def _numbered(events: EventColumns, names: Sequence[str], kind: EventKind) -> StepWindows:
    """One window per step number, over all streams that recorded the step."""
    rows = _marks(events, kind)
    texts = [names[name_id].partition("#")[2] for name_id in events.name_id[rows].tolist()]
    number, plain = np.array(list(map(int, texts)), np.int64), np.zeros(rows.size, np.int8)
    return _hulls(number, events.start_ns[rows], events.end_ns[rows], plain)


def _hulls(
    number: NDArray[np.int64], start_ns: Nanoseconds, end_ns: Nanoseconds, kind: NDArray[np.int8]
) -> StepWindows:
    """One window for each number, from the first start to the last end."""
    numbers, place = np.unique(number, return_inverse=True)
    first = np.full(numbers.size, np.iinfo(np.int64).max)
    last = np.full(numbers.size, np.iinfo(np.int64).min)
    kinds = np.zeros(numbers.size, np.int8)
    np.minimum.at(first, place, start_ns)
    np.maximum.at(last, place, end_ns)
    np.maximum.at(kinds, place, kind)
    return StepWindows(number=numbers, start_ns=first, end_ns=last, kind=kinds)


def _kind(name: str) -> StepKind:
    """A step that reads any prompt is a prefill, also when it decodes for other requests."""
    if match := ENGINE_STEP.fullmatch(name):
        prompts, answers = int(match[1]), int(match[2])
        return StepKind.PREFILL if prompts else StepKind.DECODE if answers else StepKind.PLAIN
    iteration = ITERATION.fullmatch(name)
    return _KIND_OF_ITERATION.get(iteration[1], StepKind.PLAIN) if iteration else StepKind.PLAIN


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

    def __init__(self, header: KinetoHeader, columns: Columns, events: EventColumns) -> None:
        self._header = header
        self._columns = columns
        self._names = tuple(columns.names)
        self._has_work = bool(np.any(events.kind <= EventKind.FILL))
        self._on_device = self._has_work or header.ran_on_devices
        calls_hip = any(name.startswith("hip") for name in self._names)
        is_rocm = header.is_rocm or (self._on_device and calls_hip)
        self._events, self._caveats = repair_times(events, header.base_ns, is_rocm)
        self._launched_ns = launch_starts(self._events)
        self._activity = self._activities()
        self._order = self._kept_in_order()

    def trace(self, rank: int, world_size: int | None, caveats: list[str]) -> RankTrace:
        """Everything that counts, with what else there is to know about the reading."""
        host = host_steps(self._events, self._names)
        idle = [_NO_WORK] if self._on_device and not self._has_work else []
        early = {
            "spans begin before they were launched": np.sum(
                self._events.start_ns < self._launched_ns  # nothing is before NEVER
            )
        }
        return RankTrace(
            rank=rank,
            world_size=world_size,
            backend=self._header.distributed.backend,
            device=self._device(),
            source="kineto",
            spans=self._spans(),
            collectives=self._collectives(),
            steps=self._device_steps(host),
            host_steps=host,
            memory=self._memory(),
            caveats=(*caveats, *self._caveats, *counted(early), *idle),
        )

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
        return Spans.build(
            start_ns=events.start_ns[order],
            end_ns=events.end_ns[order],
            name_id=events.name_id[order],
            lane_id=events.lane_id[order],
            activity=activity[events.kind[order]],
            correlation=events.work.correlation[order],
            bytes=events.work.bytes[order],
            blocks_per_sm=events.work.blocks_per_sm[order],
            occupancy=events.work.occupancy[order],
            names=self._names,
            lanes=[Lane(lane_text(pid), lane_text(tid)) for pid, tid in self._columns.lanes],
        )

    def _collectives(self) -> Collectives:
        known = {group.name: group for group in self._header.distributed.groups}
        keys = [*self._columns.groups, only_group(known)]
        parts = [kernel_messages(self._events, self._names, self._launched_ns)]
        if EventKind.HOST_COLLECTIVE in self._activity:
            parts.append(host_messages(self._events, self._names, len(keys) - 1, keys[-1][2]))
        messages = MessageColumns.concatenate(parts)
        span_of_row = np.full(self._events.count, -1)
        span_of_row[self._order] = np.arange(self._order.size)
        span = span_of_row[messages.row]
        order = np.argsort(span)
        messages = messages.select(order)
        used, used_id = np.unique(messages.group, return_inverse=True)
        return Collectives.build(
            span=span[order],
            kind=messages.kind,
            groups=[group_of(keys[i], known) for i in used],
            group=used_id,
            bytes=messages.bytes,
            sequence=messages.sequence,
        )

    def _device_steps(self, host: StepWindows) -> StepWindows:
        if not self._on_device:
            return host
        if not self._has_work:
            return StepWindows.none()
        return device_steps(self._events, self._names, host, self._launched_ns)

    def _device(self) -> Device | None:
        """The device that did most of the work."""
        if not self._on_device:
            return None
        events, lanes = self._events, tuple(self._columns.lanes)
        lane_ids = events.lane_id[events.kind <= EventKind.FILL]
        works = Counter[str]()
        for lane_id, count in enumerate(np.bincount(lane_ids, minlength=len(lanes)).tolist()):
            works[lane_text(lanes[lane_id][0])] += count
        (main, _), *_ = works.most_common(1) or [("", 0)]
        known = self._header.devices
        first = known[0] if known else DeviceProperties()
        described = next((one for one in known if str(one.id) == main), first)
        return Device(
            name=described.name,
            multiprocessor_count=described.multiprocessor_count,
            memory_bytes=described.memory_bytes,
        )

    def _memory(self) -> MemoryUse | None:
        reports = self._events.memory
        own = reports.select((reports.device != 0) == self._on_device)
        own = own.select(np.argsort(own.time_ns, kind="stable"))
        if not own.count:
            return None
        return MemoryUse(time_ns=own.time_ns, allocated_bytes=own.allocated_bytes)


_RANK_IN_NAME = re.compile(r"(?:rank|kineto_trace)[-_]?(\d{1,7})(?!\d)")
_LARGEST_WORLD = 10_000_000


def read_rank(
    path: Path, limits: ReadLimits = STANDARD_LIMITS, only_rank: int | None = None
) -> RankTrace:
    """The work, collectives and steps of one rank.

    Device work counts where the trace holds any, and the host's launches and waits with it; else
    the host's own work: ATen operators compute, `gloo:` spans communicate. The trace of a job on
    devices that holds none of their work has no work, as a caveat says. The rank is taken from the
    trace, else from `rank<r>` in the file's name, else it is `only_rank`: the one rank of a job of
    one.

    Single damaged events are repaired or left out, as caveats say. Raises TraceError when more of
    the file is damaged, or it passes a limit or names no rank.
    """
    file = ChromeFile(path, limits, KinetoEvent, repairs=True)
    columns = Columns(path)
    events = columns.read(file)
    header = header_of(path, file.header)
    rank, world_size = _place(path, header, only_rank)
    caveats = list(columns.caveats(file))
    return RankReading(header, columns, events).trace(rank, world_size, caveats)


def _place(path: Path, header: KinetoHeader, only_rank: int | None) -> tuple[int, int | None]:
    """Rank and world size."""
    rank, world_size = header.distributed.rank, header.distributed.world_size
    if rank is None:
        named = _RANK_IN_NAME.search(path.name)
        rank = int(named[1]) if named else only_rank
    if rank is None:
        raise TraceError(
            path, "names no rank, neither inside nor in its name; call it rank<number>.json"
        )
    if not 0 <= rank < (_LARGEST_WORLD if world_size is None else world_size) <= _LARGEST_WORLD:
        raise TraceError(path, f"is of rank {rank} in a world of {world_size}")
    return rank, world_size
