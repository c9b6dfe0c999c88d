"""Events of an XLA trace as columns: the arguments that matter, and what processes and threads are.

What a line is about stands only in its name, which may come after its events, so nothing is judged
here but host frames: only those of functions that may be steps are kept.
"""

import math
import re
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from evaluator.readers.chrome.stream import open_chrome
from evaluator.readers.files import ReadLimits

Told: TypeAlias = str | int | float | bool | None

_LATEST_NS = 1 << 60
_MOST_EVENTS = 1_000_000
_MOST_FLOPS = 1e30

MEETING = "Rendezvous"
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
    """What is told beside a name; TPUs write numbers as strings."""

    name: Told = None
    device_offset_ps: Told = None
    device_duration_ps: Told = None
    hlo_category: Told = None
    long_name: Told = None
    model_flops: Told = None
    bytes_accessed: Told = None
    hlo_op: Told = None
    device_ordinal: Told = None
    correlation_id: Told = None
    memcpy_details: Told = None
    kernel_details: Told = None
    step_num: Told = None


class Event(msgspec.Struct, gc=False):
    """One event; the last one of a file is empty."""

    ph: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: Told = None
    dur: Told = None
    args: Arguments | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Events:
    """Columns of shape (events,) in file order, and the tables that they index.

    `offset_ps` and `duration_ps` are the device's own times; -1 or NaN stands for what is not told.
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
    is_op: NDArray[np.bool_]
    flops: NDArray[np.float64]
    names: tuple[str, ...]
    all_details: tuple[tuple[str, str], ...]
    """Category of an operation and its text, or the details of a kernel or copy."""
    lines: tuple[tuple[str, str], ...]
    """Names of the process and of the thread of each line."""
    line_ids: tuple[tuple[str, str], ...]
    caveats: tuple[str, ...]

    @property
    def count(self) -> int:
        """Number of events."""
        return int(self.line.size)


def read_events(path: Path, limits: ReadLimits) -> Events:
    """All complete events of a file. Raises TraceError when it is damaged or passes a limit."""
    file = open_chrome(path, limits, Event)
    table = _Table()
    with closing(file.batches()) as batches:
        for batch in batches:
            table.add(batch)
    return table.events(file.control_count)


class _Table:
    """Collects events batch by batch."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._details: dict[tuple[str, str], int] = {}
        self._lines: dict[tuple[str, str], int] = {}
        self._process_names: dict[str, str] = {}
        self._thread_names: dict[tuple[str, str], str] = {}
        self._blocks: list[NDArray[np.int64]] = [np.empty((0, 12), np.int64)]
        self._flops: list[NDArray[np.float64]] = [np.empty(0)]
        self._event_count = 0
        self._left_out_count = 0

    def add(self, batch: list[Event]) -> None:
        """Keep what may matter of a batch."""
        rows: list[tuple[int, ...]] = []
        flops: list[float] = []
        for event in batch:
            if event.ph == "M":
                self._note(event)
                continue
            self._event_count += event.ph != ""
            if event.ph != "X" or not self._matters(event):
                continue
            row = self._row(event)
            if row is None:
                self._left_out_count += 1
                continue
            rows.append(row)
            flops.append(_flops(event.args))
        self._blocks.append(np.array(rows, np.int64).reshape(-1, 12))
        self._flops.append(np.array(flops))

    def _note(self, event: Event) -> None:
        name = event.args.name if event.args else None
        if event.name == "process_name" and isinstance(name, str):
            self._process_names[str(event.pid)] = name
        elif event.name == "thread_name" and isinstance(name, str):
            self._thread_names[str(event.pid), str(event.tid)] = name

    def _matters(self, event: Event) -> bool:
        if event.name.startswith("$"):
            frame = _FRAME.fullmatch(event.name)
            return frame is not None and frame["function"] in _STEP_FRAMES
        args = event.args or _NO_ARGUMENTS
        told = (args.hlo_op, args.correlation_id, args.step_num)
        if event.name == MEETING or told != (None, None, None):
            return True
        # Most of what a host does is nothing but its own; what is no host may be a device.
        return not self._process_names.get(str(event.pid), "").startswith("/host:")

    def _row(self, event: Event) -> tuple[int, ...] | None:
        start_us, duration_us = _real(event.ts), _real(event.dur)
        # Nothing that compares with NaN is true.
        if not (abs(start_us) * 1000 < _LATEST_NS and 0 <= duration_us * 1000 < _LATEST_NS):
            return None
        args = event.args or _NO_ARGUMENTS
        place = (str(event.pid), str(event.tid))
        start_ns = round(start_us * 1000)
        return (
            self._lines.setdefault(place, len(self._lines)),
            self._names.setdefault(event.name, len(self._names)),
            start_ns,
            max(round((start_us + duration_us) * 1000), start_ns),
            _whole(args.device_offset_ps),
            _whole(args.device_duration_ps),
            self._details_of(args),
            _whole(args.device_ordinal),
            _whole(args.correlation_id),
            _whole(args.bytes_accessed),
            _whole(args.step_num),
            args.hlo_op is not None,
        )

    def _details_of(self, args: Arguments) -> int:
        text = args.long_name or args.kernel_details or args.memcpy_details
        if text is None and args.hlo_category is None:
            text = args.name  # of whom a host operation waits for
        details = str(args.hlo_category or ""), str(text or "")
        return self._details.setdefault(details, len(self._details))

    def events(self, control_count: int) -> Events:
        """All that was added; of a file with so many control characters inside strings."""
        columns = np.ascontiguousarray(np.concatenate(self._blocks).T)
        return Events(
            line=columns[0],
            name=columns[1],
            start_ns=columns[2],
            end_ns=columns[3],
            offset_ps=columns[4],
            duration_ps=columns[5],
            details=columns[6],
            ordinal=columns[7],
            correlation=columns[8],
            bytes=columns[9],
            step=columns[10],
            is_op=columns[11] > 0,
            flops=np.concatenate(self._flops),
            names=tuple(self._names),
            all_details=tuple(self._details),
            lines=tuple(
                (self._process_names.get(place[0], ""), self._thread_names.get(place, ""))
                for place in self._lines
            ),
            line_ids=tuple(self._lines),
            caveats=self._caveats(control_count),
        )

    def _caveats(self, control_count: int) -> tuple[str, ...]:
        told = (
            (control_count, "control characters inside strings were read as spaces"),
            (self._left_out_count, "events without a proper start and duration were left out"),
            (
                self._event_count if self._event_count >= _MOST_EVENTS else 0,
                "events: XLA's export stops at a million without a word, so the end may be missing",
            ),
        )
        return tuple(f"{count} {what}" for count, what in told if count)


_NO_ARGUMENTS = Arguments()


def _real(told: Told) -> float:
    """A number, however it is written; NaN where it is none."""
    if told is None:
        return math.nan
    try:
        number = float(told)
    except (ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def _flops(args: Arguments | None) -> float:
    flops = _real(args.model_flops) if args else math.nan
    return flops if 0 <= flops < _MOST_FLOPS else math.nan


def _whole(told: Told) -> int:
    """A count from 0 to a limit that sums cannot overflow, however it is written; else -1."""
    if told is None:
        return -1
    number = _real(told)
    return int(number) if 0 <= number < _LATEST_NS else -1
