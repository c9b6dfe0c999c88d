"""Events and lines of an XLA trace: arguments that matter, and what each line is about.

The meaning of a line is in its name, which may come after its events, so nothing is judged
meanwhile except host frames: only those of functions that may be steps are kept.
"""

import math
import re
from array import array
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Self, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from evaluator.traces.model import Table, rows_by_number
from evaluator.traces.readers.chrome import ChromeFile
from evaluator.traces.readers.files import ReadLimits
from evaluator.traces.readers.marks import counted

ArgumentValue: TypeAlias = str | int | float | bool | None
LineId: TypeAlias = tuple[str, str]
"""Process and thread, by the numbers that the file has for them."""
Times: TypeAlias = tuple[int, int]
"""Start and end, ns."""

LATEST_NS = 1 << 61
_LARGEST = 1 << 60
_MOST_EVENTS = 1_000_000
_COLUMNS = (
    *("line", "name", "start_ns", "end_ns", "offset_ps", "duration_ps", "details", "ordinal"),
    *("correlation", "bytes", "step", "scope", "is_op"),
)
_MOST_FLOPS = 1e30

RENDEZVOUS = "Rendezvous"
"""A host that plays several devices has them meet in events of this name."""

# `$core.py:985 _process_engine_step`: a Python frame. Never by line: it moves with each release.
_FRAME = re.compile(r"\$\S* (?P<function>\S+)")
_STEP_FRAMES = {
    "step",
    "train_step",
    "training_step",
    "_process_engine_step",
    "run_batch",
    "execute_model",
}


class Arguments(msgspec.Struct, gc=False):
    """What an event says besides its name; TPUs write numbers as strings."""

    name: ArgumentValue = None
    device_offset_ps: ArgumentValue = None
    device_duration_ps: ArgumentValue = None
    hlo_category: ArgumentValue = None
    long_name: ArgumentValue = None
    model_flops: ArgumentValue = None
    bytes_accessed: ArgumentValue = None
    hlo_op: ArgumentValue = None
    device_ordinal: ArgumentValue = None
    correlation_id: ArgumentValue = None
    memcpy_details: ArgumentValue = None
    kernel_details: ArgumentValue = None
    step_num: ArgumentValue = None
    tf_op: ArgumentValue = None


class XlaEvent(msgspec.Struct, gc=False):
    """One event; the last one of a file is empty."""

    ph: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: ArgumentValue = None
    dur: ArgumentValue = None
    args: Arguments | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class XlaEvents(Table):
    """Columns of shape (events,) in file order, and the tables that they index.

    `offset_ps` and `duration_ps` are the device's own times; -1 or NaN stands for unknown.
    """

    line: NDArray[np.int64]
    name: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    offset_ps: NDArray[np.int64]
    duration_ps: NDArray[np.int64]
    details: NDArray[np.int64]
    ordinal: NDArray[np.int64]
    correlation: NDArray[np.int64]
    bytes: NDArray[np.int64]
    step: NDArray[np.int64]
    scope: NDArray[np.int64]
    is_op: NDArray[np.bool_]
    flops: NDArray[np.float64]
    names: tuple[str, ...]
    scopes: tuple[str, ...]
    """Where in the program an operation comes from, as JAX names it; empty: unknown."""
    all_details: tuple[tuple[str, str], ...]
    """Category of an operation and its text, or the details of a kernel or copy."""
    lines: tuple[tuple[str, str], ...]
    """Names of the process and of the thread of each line."""
    line_ids: tuple[tuple[str, str], ...]
    caveats: tuple[str, ...]


def read_events(path: Path, limits: ReadLimits) -> XlaEvents:
    """All complete events of a file. Raises TraceError when it is damaged or passes a limit."""
    file = ChromeFile(path, limits, XlaEvent)
    table = EventTable()
    event_count = 0
    with closing(file.batches()) as batches:
        for batch in batches:
            event_count += sum(map(table.add_json, batch))
    cut = (
        "events: XLA's export to JSON stops at a million without a word, so the end may be "
        "missing; read the .xplane.pb, which has all of them"
    )
    controls = "control characters inside strings were read as spaces"
    is_cut = event_count >= _MOST_EVENTS
    return table.events(counted({controls: file.control_count, cut: event_count * is_cut}))


class EventTable:
    """Collects the events that may matter.

    `process_names` and `thread_names` say what these are, before their events where possible.
    """

    def __init__(self) -> None:
        self.process_names: dict[str, str] = {}
        self.thread_names: dict[LineId, str] = {}
        self._names: dict[str, int] = {}
        self._details: dict[tuple[str, str], int] = {}
        self._lines: dict[tuple[str, str], int] = {}
        self._scopes: dict[str, int] = {"": 0}
        self._numbers = array("q")  # row by row, in the order of _COLUMNS
        self._flops = array("d")
        self._left_out_count = 0

    def matters(self, process: str, name: str, args: Arguments) -> bool:
        """Whether anything needs such an event."""
        if name.startswith("$"):
            frame = _FRAME.fullmatch(name)
            return frame is not None and frame["function"] in _STEP_FRAMES
        marks = (args.hlo_op, args.correlation_id, args.step_num)
        if name == RENDEZVOUS or marks != (None, None, None):
            return True
        # Most of what a host does is nothing but its own; what is no host may be a device.
        return not self.process_names.get(process, "").startswith("/host:")

    def add(self, place: LineId, name: str, times_ns: Times | None, args: Arguments) -> None:
        """Keep an event; without times only the count of it."""
        if times_ns is None:
            self._left_out_count += 1
            return
        text = args.long_name or args.kernel_details or args.memcpy_details
        if text is None and args.hlo_category is None:
            text = args.name  # of whom a host operation waits for
        details = str(args.hlo_category or ""), str(text or "")
        self._numbers.extend(
            (
                self._lines.setdefault(place, len(self._lines)),
                self._names.setdefault(name, len(self._names)),
                *times_ns,
                _whole(args.device_offset_ps),
                _whole(args.device_duration_ps),
                self._details.setdefault(details, len(self._details)),
                _whole(args.device_ordinal),
                _whole(args.correlation_id),
                _whole(args.bytes_accessed),
                _whole(args.step_num),
                self._scopes.setdefault(_scope(args), len(self._scopes)),
                args.hlo_op is not None,
            )
        )
        self._flops.append(_flops(args))

    def add_json(self, event: XlaEvent) -> bool:
        """Keep what may matter of an event; whether it counts as one in the file."""
        args, process = event.args or _NO_ARGUMENTS, str(event.pid)
        if event.ph == "M" and isinstance(args.name, str):
            if event.name == "process_name":
                self.process_names[process] = args.name
            elif event.name == "thread_name":
                self.thread_names[process, str(event.tid)] = args.name
        elif event.ph == "X" and self.matters(process, event.name, args):
            self.add((process, str(event.tid)), event.name, _times_ns(event), args)
        return event.ph not in {"M", ""}

    def events(self, caveats: Sequence[str] = ()) -> XlaEvents:
        """All that was added, of a file with these caveats."""
        left_out = "events without a proper start and duration were left out"
        rows = np.array(self._numbers, np.int64).reshape(-1, len(_COLUMNS))
        *columns, is_op = np.ascontiguousarray(rows.T)
        return XlaEvents(
            **dict(zip(_COLUMNS, columns, strict=False)),
            is_op=is_op > 0,
            flops=np.array(self._flops),
            names=tuple(self._names),
            scopes=tuple(self._scopes),
            all_details=tuple(self._details),
            lines=tuple(
                (self.process_names.get(place[0], ""), self.thread_names.get(place, ""))
                for place in self._lines
            ),
            line_ids=tuple(self._lines),
            caveats=(*caveats, *counted({left_out: self._left_out_count})),
        )


_NO_ARGUMENTS = Arguments()


def _times_ns(event: XlaEvent) -> Times | None:
    start_us, duration_us = _real(event.ts), _real(event.dur)
    # Nothing that compares with NaN is true.
    if not (abs(start_us) * 1000 < LATEST_NS and 0 <= duration_us * 1000 < LATEST_NS):
        return None
    start_ns = round(start_us * 1000)
    return start_ns, max(round((start_us + duration_us) * 1000), start_ns)


def _real(value: ArgumentValue) -> float:
    """A number, however it is written; NaN where it is none."""
    if value is None:
        return math.nan
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def _flops(args: Arguments) -> float:
    flops = _real(args.model_flops)
    # XLA cannot count what such an operation computes, and writes 0: a Pallas kernel, say.
    opaque = args.hlo_category == "custom-call" or " custom-call(" in str(args.long_name or "")
    return flops if 0 <= flops < _MOST_FLOPS and not (flops == 0 and opaque) else math.nan


def _scope(args: Arguments) -> str:
    texts = (str(text) for text in (args.tf_op, args.name) if text is not None)
    return next((text.rstrip(":") for text in texts if "/" in text), "")


def _whole(value: ArgumentValue) -> int:
    """A count from 0 to a limit that sums cannot overflow, however it is written; else -1."""
    if value is None:
        return -1
    number = _real(value)
    return int(number) if 0 <= number < _LARGEST else -1


_DEVICE = re.compile(r"(?P<host>.*)/device:(?P<kind>[A-Za-z_]+):(?P<number>\d{1,9})")
_HOST_DEVICE = "CPU"
_MOST_DEVICES = 4096


class LineRole(IntEnum):
    """What the events of a line show."""

    NOTHING = 0
    OPERATIONS = 1
    ASYNC_OPERATIONS = 2
    """Whole spans of what is started and ended on another line."""
    KERNELS = 3
    STEPS = 4
    MODULES = 5
    HOST = 6


@dataclass(frozen=True, slots=True, order=True)
class Chip:
    """A device: its host, where a file holds several hosts, and its kind and number there."""

    host: str
    kind: str
    number: int

    @property
    def is_host(self) -> bool:
        """Whether it is a part of the host that plays a device."""
        return self.kind == _HOST_DEVICE


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """For each event, shape (events,), its role and its device, an index of `chips`; -1: none."""

    role: NDArray[np.int64]
    chip: NDArray[np.int64]
    chips: tuple[Chip, ...]

    def only(self, kept: NDArray[np.bool_]) -> Self:
        """Without the other devices; `kept` has shape (chips,)."""
        renumbered = np.append(np.where(kept, np.cumsum(kept) - 1, -1), -1)
        chips = tuple(chip for chip, stays in zip(self.chips, kept, strict=True) if stays)
        return type(self)(self.role, renumbered[self.chip], chips)

    def rows(self) -> list[NDArray[np.int64]]:
        """The events of each device, in the order they stand."""
        return rows_by_number(self.chip, len(self.chips))


def lines_of(events: XlaEvents) -> Lines:
    """What each event is part of.

    Devices are processes called `/device:TPU:0`. Where no device did anything, operations of the
    host are those of the devices that it plays, by their ordinal: only events that name an `hlo_op`
    are, for a Python frame may be called `all_gather` too.
    """
    found = [_line(*names) for names in events.lines]
    role = np.array([role for role, _ in found], np.int64)[events.line]
    chips = sorted({chip for _, chip in found if chip})[:_MOST_DEVICES]
    numbers = {chip: number for number, chip in enumerate(chips)}
    chip = np.array([numbers.get(chip, -1) if chip else -1 for _, chip in found], np.int64)
    chip = chip[events.line]
    working = np.unique(chip[np.isin(role, (LineRole.OPERATIONS, LineRole.KERNELS)) & (chip >= 0)])
    if working.size:
        return Lines(role, chip, tuple(chips)).only(np.isin(np.arange(len(chips)), working))
    played = events.is_op & (events.ordinal >= 0) & (role == LineRole.HOST)
    ordinals, place = np.unique(events.ordinal[played], return_inverse=True)
    chip = np.full(events.count, -1, np.int64)
    chip[played] = np.where(place < _MOST_DEVICES, place, -1)
    return Lines(
        np.where(played, LineRole.OPERATIONS, role),
        chip,
        tuple(Chip("", _HOST_DEVICE, number) for number in ordinals[:_MOST_DEVICES].tolist()),
    )


def _line(process: str, thread: str) -> tuple[LineRole, Chip | None]:
    match = _DEVICE.match(process)
    if not match:
        return LineRole.HOST, None
    chip = Chip(match["host"], match["kind"], int(match["number"]))
    if thread.startswith("XLA Modules"):
        return LineRole.MODULES, chip
    if thread == "Steps" or thread.startswith("Steps -"):
        return LineRole.STEPS, chip
    if chip.kind == "GPU":
        # Every other line of a GPU is derived from these.
        return (LineRole.KERNELS if thread.startswith("Stream #") else LineRole.NOTHING), chip
    roles = {"XLA Ops": LineRole.OPERATIONS, "Async XLA Ops": LineRole.ASYNC_OPERATIONS}
    return roles.get(thread, LineRole.NOTHING), chip
