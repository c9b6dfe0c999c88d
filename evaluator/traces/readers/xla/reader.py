"""Read the traces of all devices of one XLA trace: its own profile, or the export to JSON.

The text of an HLO instruction says what it does, how large its result is and who takes part.
Asynchronous operations are spans from start to done.
"""

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, compress
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evaluator.traces.intervals import Nanoseconds
from evaluator.traces.model import (
    Activity,
    CollectiveKind,
    Collectives,
    Device,
    Lane,
    RankGroup,
    RankTrace,
    Spans,
    Table,
    distinct_rows,
)
from evaluator.traces.readers.files import STANDARD_LIMITS, ReadLimits, pieces
from evaluator.traces.readers.marks import (
    RENUMBERED,
    MarkedSteps,
    collective_kind,
    communicates,
    longest_steps,
)
from evaluator.traces.readers.xla.events import (
    RENDEZVOUS,
    Chip,
    LineRole,
    Lines,
    XlaEvents,
    lines_of,
    read_events,
)
from evaluator.traces.readers.xla.xplane import is_xspace, read_xspace
from records.errors import TraceError

# XLA's own names with `-`, and the primitives after which newer JAX names operations, with `_`.
_COLLECTIVE = re.compile(
    r"all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?to[-_]?all|collective|nccl|rccl"
    r"|psum|ppermute|p(?:max|min)\b|(?:^|[^a-z])(?:send|recv)\b"
)
# What only contains other operations, each with a separate span.
_CONTAINER = re.compile(r"(?:while|conditional|call)(?:[.\d]*)")
_COPY = re.compile(r"(?:copy|slice|dynamic-slice|dynamic-update-slice)-(?:start|done)")
_HOST_COPIES = {"infeed", "outfeed", "host send", "host recv"}
_ENDS = re.compile(r"(?P<what>.+?)-(?P<end>start|done)(?P<number>[.\d]*)")
_ITS_START = re.compile(r"-done\([^%]*%(?P<start>[\w.-]+)")
_SHAPE = re.compile(r"\b(?P<type>\w+)\[(?P<sides>[\d,]*)\]")
_BITS = re.compile(r"[a-z]+(?P<bits>\d{1,4})")
_EXPLICIT = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{} ]*\})\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LARGEST_BYTES = 1 << 50
_MOST_RANKS = 1 << 16


def activity_of(name: str, category: str, text: str) -> Activity | None:
    """What an operation does; None where it only contains others.

    `category` is `hlo_category`, empty where there is none; then the name decides.
    """
    what = category or name.lower()
    if _CONTAINER.fullmatch(what):
        return None
    if what in _HOST_COPIES or "is_host_transfer=true" in text:
        return Activity.COPY
    if category in {"async-start", "async-done"}:
        # It wraps anything: the name of the instruction says what, or the computation's.
        wrapped = f"{name} {text.rpartition('calls=')[2]}" if "calls=" in text else name
        return Activity.COMMUNICATION if _COLLECTIVE.search(wrapped) else Activity.COPY
    if _COLLECTIVE.search(what):
        return Activity.COMMUNICATION
    return Activity.COPY if _COPY.match(what) else Activity.COMPUTE


def start_of(name: str, text: str) -> str | None:
    """The name of the start of an asynchronous operation, for that start and its done."""
    match = _ENDS.fullmatch(name)
    if not match:
        return None
    if match["end"] == "start":
        return name
    start = _ITS_START.match(text, max(text.find("-done("), 0))  # found once: texts may be large
    return start["start"] if start else f"{match['what']}-start{match['number']}"


def result_bytes(text: str) -> int:
    """Size of what an instruction gives, `%name = type operation(...)`; 0 where it is unknown."""
    result = _result_type(text.partition(" = ")[2])
    total_bits = 0
    for shape in _SHAPE.finditer(result):
        sides = [int(side[:19]) for side in shape["sides"].split(",") if side]
        total_bits += prod(sides[:16]) * _bits(shape["type"])
    return min((total_bits + 7) // 8, _LARGEST_BYTES)


def buffer_bytes(kind: CollectiveKind, text: str, rank_count: int | None) -> int:
    """S of a collective from its result: that is the part of one rank of a reduce-scatter."""
    size = result_bytes(text)
    if kind == CollectiveKind.REDUCE_SCATTER:
        size *= rank_count or 0
    return min(size, _LARGEST_BYTES)


def participants(text: str, device: int) -> tuple[int, ...] | None:
    """The devices, in order, that an instruction makes communicate, this one among them.

    None where the text does not say, as where all devices of the job take part.
    """
    explicit = _EXPLICIT.search(text)
    if explicit:
        groups = [
            [int(number[:9]) for number in re.findall(r"\d+", group)]
            for group in explicit[1].split("}")
        ]
        if "source_target_pairs" in explicit[0]:
            groups = [[device for pair in groups for device in pair]]
    else:
        groups = _iota_groups(text, device)
    return next((tuple(sorted(set(group))) for group in groups if device in group), None)


def _iota_groups(text: str, device: int) -> list[list[int]]:
    """A device's group. `[2,4]<=[4,2]T(1,0)`: 0 to 7 as 4 x 2, transposed, as 2 groups of 4."""
    iota = _IOTA.search(text)
    if not iota:
        return []
    shape, sides, order = (
        [int(number[:9]) for number in (numbers or "").split(",") if number]
        for numbers in iota.groups()
    )
    if not 0 < prod(sides) <= _MOST_RANKS or prod(shape) != prod(sides) or len(shape) != 2:
        return []
    if order and sorted(order) != list(range(len(sides))):
        return []
    devices = np.arange(prod(sides)).reshape(sides).transpose(order or None).reshape(shape)
    groups: list[list[int]] = devices[np.any(devices == device, axis=1)].tolist()
    return groups


def _result_type(text: str) -> str:
    """The type at the beginning, `f32[2,3]{1,0}` or `(f32[2], (u32[], s32[4]))`."""
    if not text.startswith("("):
        return text.partition(" ")[0]
    depth = 0
    for bracket in re.finditer(r"[()]", text):
        depth += 1 if bracket[0] == "(" else -1
        if not depth:
            return text[: bracket.end()]
    return text


def _bits(type_name: str) -> int:
    """Bits of one element: the number in the name; a truth value takes a byte, a token nothing."""
    if type_name == "pred":
        return 8
    number = _BITS.match(type_name)
    return min(int(number["bits"]), 128) if number else 0


_NOTHING = -1
_OPERATIONS = (LineRole.OPERATIONS, LineRole.ASYNC_OPERATIONS, LineRole.KERNELS)
_ASYNCHRONOUS = (Activity.COPY, Activity.COMMUNICATION)
_COPY_KERNEL = re.compile(r"memcpy|copyBuffer", re.IGNORECASE)
_FILL_KERNEL = re.compile(r"memset|fillBuffer", re.IGNORECASE)
_COPY_SIZE = re.compile(r"size:(\d{1,18})")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operations(Table):
    """Columns of shape (operations,), in order of start.

    `event` is the row of the event, `done` that of the event that states the result: another one
    where an operation was started and done.
    """

    event: NDArray[np.int64]
    done: NDArray[np.int64]
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    activity: NDArray[np.int64]
    bytes: NDArray[np.int64]


def times_ns(events: XlaEvents, rows: NDArray[np.int64]) -> tuple[Nanoseconds, Nanoseconds]:
    """Starts and ends of events of one device.

    The device's own picoseconds where all of them state these, brought to the file's clock by the
    first of them, so that spans that touch do so after rounding.
    """
    offset_ps, duration_ps = events.offset_ps[rows], events.duration_ps[rows]
    if not rows.size or np.any(offset_ps < 0) or np.any(duration_ps < 0):
        return events.start_ns[rows], events.end_ns[rows]
    shift_ns = events.start_ns[rows[0]] - offset_ps[0] // 1000
    return offset_ps // 1000 + shift_ns, (offset_ps + duration_ps) // 1000 + shift_ns


def operations_of(
    events: XlaEvents, rows: NDArray[np.int64], role: NDArray[np.int64]
) -> Operations:
    """The operations among these events of one device.

    Operations that contain others are left out, for each of those has its own span. A start and the
    done that waits for it are one span. Where a line shows such spans whole, they are taken from
    there.
    """
    working = np.isin(role, _OPERATIONS)
    rows, role = rows[working], role[working]
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
    whole = role[order] == LineRole.ASYNC_OPERATIONS
    return _joined(events, found, whole)


def _activities(
    events: XlaEvents, rows: NDArray[np.int64], role: NDArray[np.int64]
) -> NDArray[np.int64]:
    """What each event does; -1 where it only contains others. Judged once for each distinct one."""
    distinct, index = distinct_rows(
        events.name[rows], events.details[rows], role == LineRole.KERNELS
    )
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


def _joined(events: XlaEvents, found: Operations, whole: NDArray[np.bool_]) -> Operations:
    """With each start and its done made one, or left out where the whole is there as well."""
    halves = np.isin(found.activity, _ASYNCHRONOUS) & ~whole
    has_whole = bool(whole.any())
    waiting: dict[str, deque[int]] = {}

    @cache
    def its_start(name: int, details: int) -> str | None:
        return start_of(events.names[name], events.all_details[details][1])

    kept = np.ones(found.event.size, bool)
    for row in np.flatnonzero(halves).tolist():
        event = found.event[row]
        name = its_start(int(events.name[event]), int(events.details[event]))
        if name is None:
            continue
        if has_whole:
            kept[row] = False
        elif name == events.names[events.name[event]]:
            waiting.setdefault(name, deque()).append(row)
        elif waiting.get(name):
            start = waiting[name].popleft()
            kept[row] = False
            found.done[start] = event
            found.end_ns[start] = found.end_ns[row]
    _size_copies(events, found)
    return found.select(kept)


def _size_copies(events: XlaEvents, found: Operations) -> None:
    """A copy moves what it gives; what it accesses counts reading and writing."""
    rows = np.flatnonzero(found.activity == Activity.COPY)
    details, index = np.unique(events.details[found.done[rows]], return_inverse=True)
    texts = [events.all_details[number][1] for number in details.tolist()]
    sizes = [_COPY_SIZE.search(text) for text in texts]
    stated = np.array([int(size[1]) if size else -1 for size in sizes], np.int64)[index]
    given = np.array([result_bytes(text) for text in texts], np.int64)[index]
    whole = found.done[rows] != found.event[rows]
    found.bytes[rows] = np.where(stated >= 0, stated, np.where(whole, given, found.bytes[rows]))


# `jit_step_fun(5120112285394406626)`, `jit_train_step(3)`, `pmap_step(1)`: the compiled function of
# a step, among those that only prepare or finish one.
_STEP_MODULE = re.compile(r"(?:jit|pjit|pmap|xmap)?_*(?:[a-z]+_)*?step(?:_[a-z]+)*(?:[.(].*)?")

_LONGEST_NAME = 200


def host_steps(events: XlaEvents, role: NDArray[np.int64]) -> MarkedSteps:
    """Steps that the program marked with a number, else frames of functions that are steps.

    Of several threads or functions, the one that covers most time.
    """
    on_host = role == LineRole.HOST
    marked = np.flatnonzero(on_host & (events.step >= 0))
    if marked.size:
        return _longest(events, marked, events.step[marked])
    frames = np.array([name.startswith("$") for name in events.names], bool)
    rows = np.flatnonzero(on_host & frames[events.name]) if frames.any() else marked
    return _longest(events, rows, np.full(rows.size, -1))


def device_steps(
    events: XlaEvents, rows: NDArray[np.int64], role: NDArray[np.int64]
) -> MarkedSteps:
    """Steps that a device shows: its line of steps, else its runs of the function of a step.

    Runs are counted, for their numbers differ between devices.
    """
    shown = rows[role == LineRole.STEPS]
    if shown.size:
        texts = [events.names[name] for name in events.name[shown].tolist()]
        numbers = [int(text) if re.fullmatch(r"\d{1,18}", text) else -1 for text in texts]
        same = np.zeros(shown.size, np.int64)
        return _longest(events, shown, np.array(numbers, np.int64), same)
    is_step = np.array(
        [
            len(name) <= _LONGEST_NAME and _STEP_MODULE.fullmatch(name) is not None
            for name in events.names
        ],
        bool,
    )
    runs = rows[role == LineRole.MODULES]
    runs = runs[is_step[events.name[runs]]]
    return _longest(events, runs, np.full(runs.size, -1), events.name[runs])


def _longest(
    events: XlaEvents,
    rows: NDArray[np.int64],
    number: NDArray[np.int64],
    source: NDArray[np.int64] | None = None,
) -> MarkedSteps:
    if source is None:
        _, source = distinct_rows(events.line[rows], events.name[rows])
    start_ns, end_ns = times_ns(events, rows)
    order = np.argsort(start_ns, kind="stable")
    return longest_steps(source[order], number[order], start_ns[order], end_ns[order])


_PARTICIPANTS = re.compile(r"global_devices=\[([\d, ]{1,100000})\]")


class Rendezvous:
    """Which devices met inside the operations of a host that plays several devices."""

    def __init__(self, events: XlaEvents, role: NDArray[np.int64]) -> None:
        named = np.array([name == RENDEZVOUS for name in events.names], bool)
        rows = np.flatnonzero(named[events.name] & (role == LineRole.HOST))
        rows = rows[np.lexsort((events.start_ns[rows], events.line[rows]))]
        self._line, self._start_ns = events.line[rows], events.start_ns[rows]
        self._details = events.details[rows]
        self._texts = events.all_details
        self._met = cache(_met)

    def inside(self, line: int, start_ns: int, end_ns: int) -> tuple[int, ...] | None:
        """The devices that met on this line during this time; None where nothing says."""
        first, behind = np.searchsorted(self._line, (line, line + 1))
        row = first + np.searchsorted(self._start_ns[first:behind], start_ns)
        if row >= behind or self._start_ns[row] >= end_ns:
            return None
        return self._met(self._texts[self._details[row]][1])


def _group(devices: tuple[int, ...], ranks: Mapping[int, int]) -> RankGroup:
    """Devices as ranks; by their own numbers, as a name, where the file lacks some of them."""
    if all(device in ranks for device in devices):
        return RankGroup("", tuple(sorted(ranks[device] for device in devices)), len(devices))
    return RankGroup(",".join(map(str, devices)), None, len(devices))


def _met(text: str) -> tuple[int, ...] | None:
    listed = _PARTICIPANTS.search(text)
    numbers = re.findall(r"\d+", listed[1]) if listed else []
    return tuple(sorted({int(number[:9]) for number in numbers})) or None


_WORK = (Activity.COMPUTE, Activity.COMMUNICATION)


def read_devices(path: Path, limits: ReadLimits = STANDARD_LIMITS) -> tuple[RankTrace, ...]:
    """The trace of each device that computed, as ranks from 0 in order of their numbers.

    Devices that neither compute nor communicate are left out where others do: a host moves data to
    each GPU that it sees, even if another process works on it.
    The world is as large as there are devices, unless a collective names others. Steps are those
    that a device shows, else runs of its step function, else what the program marked as steps,
    else Python functions that are steps.

    Raises TraceError when the file is damaged, passes a limit, or holds no operation of a device.
    """
    start = next(pieces(path, limits, 1 << 10), b"")
    events = (read_xspace if is_xspace(start) else read_events)(path, limits)
    lines = lines_of(events)
    if not lines.chips:
        raise TraceError(path, "holds no operation of a device")
    trace = _Trace(events, lines)
    traces = tuple(trace.of(rank) for rank in range(trace.rank_count))
    groups = chain.from_iterable(trace.collectives.groups for trace in traces)
    known = all(group.ranks is not None or not group.name for group in groups)
    return traces if known else tuple(replace(one, world_size=None) for one in traces)


class _Trace:
    """All events of a file, and what its devices share."""

    def __init__(self, events: XlaEvents, lines: Lines) -> None:
        self._events, self._lines = events, lines
        self._host_steps = host_steps(events, lines.role)
        self._meetings = Rendezvous(events, lines.role)
        self._rows = lines.rows()
        self._operations = [operations_of(events, rows, lines.role[rows]) for rows in self._rows]
        self._caveats = events.caveats
        ids = zip(events.line_ids, events.lines, strict=True)
        self._lanes = tuple(Lane(*place, thread_name) for place, (_, thread_name) in ids)
        self._leave_out_movers()
        called = np.flatnonzero((lines.role == LineRole.HOST) & (events.correlation > 0))
        numbers, first = np.unique(events.correlation[called], return_index=True)
        self._called, self._calls = numbers, called[first]

    @property
    def rank_count(self) -> int:
        """How many devices there are."""
        return len(self._lines.chips)

    def _leave_out_movers(self) -> None:
        """Leave out the devices that only copy and fill, unless all do."""
        kept = np.array([np.isin(each.activity, _WORK).any() for each in self._operations], bool)
        if kept.all() or not kept.any():
            return
        self._lines = self._lines.only(kept)
        self._rows = list(compress(self._rows, kept))
        self._operations = list(compress(self._operations, kept))
        left_out = f"{np.sum(~kept)} of {kept.size} devices, which only copied, were left out"
        self._caveats = (*self._caveats, left_out)

    def of(self, rank: int) -> RankTrace:
        """The trace of one device."""
        events, chip = self._events, self._lines.chips[rank]
        rows = self._rows[rank]
        operations, role = self._operations[rank], self._lines.role[rows]
        spans = self._spans(operations)
        shown = device_steps(events, rows, role)
        steps = shown if shown.windows.count else self._host_steps
        same = np.array_equal(steps.windows.number, self._host_steps.windows.number)
        marked = self._host_steps if same else shown
        return RankTrace(
            rank=rank,
            world_size=self.rank_count,
            backend=None,
            device=None if chip.is_host else Device(name=chip.kind),
            source="xla",
            spans=spans,
            collectives=self._collectives(chip, operations, spans),
            steps=steps.windows,
            host_steps=marked.windows,
            caveats=self._caveats + ((RENUMBERED,) if steps.renumbered else ()),
        )

    def _spans(self, operations: Operations) -> Spans:
        """All spans of a device: its operations, and the host's calls that launched any of them."""
        events = self._events
        launched = np.isin(self._called, events.correlation[operations.event])
        calls = self._calls[launched]
        launches = Operations(
            event=calls,
            done=calls,
            start_ns=events.start_ns[calls],
            end_ns=events.end_ns[calls],
            activity=np.full(calls.size, Activity.LAUNCH),
            bytes=np.zeros_like(calls),
        )
        rows = Operations.concatenate((operations, launches))
        return Spans.build(
            start_ns=rows.start_ns,
            end_ns=rows.end_ns,
            name_id=events.name[rows.event],
            lane_id=events.line[rows.event],
            activity=rows.activity,
            names=events.names,
            lanes=self._lanes,
            correlation=np.maximum(events.correlation[rows.event], 0),
            bytes=rows.bytes,
            flops=events.flops[rows.event],
            scope_id=events.scope[rows.event],
            scopes=events.scopes,
        )

    def _collectives(self, chip: Chip, operations: Operations, spans: Spans) -> Collectives:
        """What a device communicates.

        Kind, size of the result and who takes part stand in the text of an instruction.
        """
        events, found = self._events, []
        chips = enumerate(self._lines.chips)
        ranks = {other.number: rank for rank, other in chips if other.host == chip.host}

        @cache
        def described(name: int, details: int, done: int) -> tuple[CollectiveKind, RankGroup, int]:
            (category, text), (_, result) = events.all_details[details], events.all_details[done]
            kind = collective_kind(category) or collective_kind(events.names[name])
            devices = participants(text, chip.number)
            group = _group(devices, ranks) if devices else RankGroup("")
            return kind, group, buffer_bytes(kind, result, group.size)

        own = operations.select(operations.activity == Activity.COMMUNICATION)
        times_ns = zip(own.start_ns.tolist(), own.end_ns.tolist(), strict=True)
        for event, done, within_ns in zip(own.event, own.done, times_ns, strict=True):
            details = events.details[event], events.details[done]
            kind, group, size = described(events.name[event], *details)
            if events.is_op[event]:
                met = self._meetings.inside(events.line[event], *within_ns)
                group = _group(met, ranks) if met else group
            found.append((kind, group, size))
        return Collectives.build(
            span=np.flatnonzero(spans.activity == Activity.COMMUNICATION),
            kind=[kind for kind, _, _ in found],
            groups=[group for _, group, _ in found],
            bytes=[size for _, _, size in found],
        )
