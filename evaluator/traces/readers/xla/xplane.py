"""Read XLA's own profile, `.xplane.pb`: every event, where its JSON export stops at a million.

A file is an XSpace: planes (the host, each device) of lines of events. Names and arguments of
events are in tables of their plane, behind its lines. The schema is `xplane.proto` of XLA, of which
the fields below are read; messages are at most five deep, so nothing here recurses. The names of
processes, threads and arguments become those that XLA's export to JSON would give them.
"""

import re
import struct
from array import array
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evaluator.traces.readers.files import ReadLimits, read_bytes
from evaluator.traces.readers.protobuf import (
    BYTES,
    EIGHT_BYTES,
    MOST_FIELDS,
    NUMBER,
    DamagedMessageError,
    fields,
    fields_of_many,
)
from evaluator.traces.readers.xla.events import (
    LATEST_NS,
    Arguments,
    ArgumentValue,
    EventTable,
    LineId,
    Times,
    XlaEvents,
)
from records.errors import TraceError

_MESSAGE_BYTES = (1 << 31) - 1  # protobuf's own limit
_MOST_NAMES = 2_000_000
_MOST_LINES = 100_000
_BLOCK_EVENTS = 1 << 13
_UNNAMED: Final = -1 << 63

_HOST_PLANE = "/host:CPU"
_DEVICE_PLANES = ("/device:GPU:", "/device:TPU:", "/device:CUSTOM:")
_HOST_PROCESS, _FIRST_DEVICE_PROCESS = 701, 1
_STEP_NAME = "step_name"
_ARGUMENTS = {*Arguments.__struct_fields__, _STEP_NAME}

# Keys of fields: number * 8 + how the value is written.
_ID: Final = 1 << 3 | NUMBER  # of a plane or line; of an event or stat, that of its metadata
_NAME: Final = 2 << 3 | BYTES  # of a plane, line or metadata
_PLANE: Final = 1 << 3 | BYTES
_LINE: Final = 3 << 3 | BYTES
_EVENT_METADATA: Final = 4 << 3 | BYTES
_STAT_METADATA: Final = 5 << 3 | BYTES
_MAP_VALUE: Final = 2 << 3 | BYTES
_LINE_TIMESTAMP_NS: Final = 3 << 3 | NUMBER
_LINE_DISPLAY_ID: Final = 10 << 3 | NUMBER
_LINE_DISPLAY_NAME: Final = 11 << 3 | BYTES
_EVENT: Final = 4 << 3 | BYTES
_OFFSET_PS: Final = 2 << 3 | NUMBER
_DURATION_PS: Final = 3 << 3 | NUMBER
_EVENT_STAT: Final = 4 << 3 | BYTES
_OCCURRENCES: Final = 5 << 3 | NUMBER
_DISPLAY_NAME: Final = 4 << 3 | BYTES
_METADATA_STAT: Final = 5 << 3 | BYTES
_DOUBLE: Final = 2 << 3 | EIGHT_BYTES
_UNSIGNED: Final = 3 << 3 | NUMBER
_SIGNED: Final = 4 << 3 | NUMBER
_TEXT: Final = 5 << 3 | BYTES
_REFERENCE: Final = 7 << 3 | NUMBER

_LINE_HEADER: Final = (_ID, _NAME, _LINE_TIMESTAMP_NS, _LINE_DISPLAY_ID, _LINE_DISPLAY_NAME)

# The first field of the first plane, after its number if it has one: its name.
_BEGINNING = re.compile(
    rb"\x0a[\x80-\xff]{0,9}[\0-\x7f](?:\x08[\x80-\xff]{0,9}[\0-\x7f])?"
    rb"\x12[\x80-\xff]?[\x01-\x7f][!-~]"
)

Span: TypeAlias = tuple[int, int]
"""Where a message begins and ends in the file."""


@dataclass(frozen=True, slots=True)
class _EventKind:
    """What all events of one metadata share."""

    name: str
    arguments: dict[str, ArgumentValue]
    args: Arguments


_UNNAMED_KIND = _EventKind("", {}, Arguments())


def is_xspace(start: bytes) -> bool:
    """Whether a file that begins like this is an XSpace."""
    return _BEGINNING.match(start) is not None


def read_xspace(path: Path, limits: ReadLimits) -> XlaEvents:
    """All events of a file. Raises TraceError when it is damaged or passes a limit."""
    limits = replace(
        limits,
        file_bytes=min(limits.file_bytes, _MESSAGE_BYTES),
        decompressed_bytes=min(limits.decompressed_bytes, _MESSAGE_BYTES),
    )
    data = read_bytes(path, limits)
    try:
        return _Space(path, data, limits.event_count).events()
    except (DamagedMessageError, IndexError) as error:
        raise TraceError(path, "is a damaged or truncated XLA profile") from error


class _Space:
    """A file, plane by plane."""

    def __init__(self, path: Path, data: bytearray, most_events: int) -> None:
        self._path, self._data = path, data
        self._table = EventTable()
        self._left = {"events": most_events, "lines": _MOST_LINES, "names": _MOST_NAMES}
        self._most = dict(self._left)

    def events(self) -> XlaEvents:
        """Those of the host, and of the kind of devices that the job ran on."""
        data = self._data
        planes: list[tuple[str, Span]] = []
        for key, start, end in fields(data, 0, len(data)):
            if key == _PLANE:
                self._count("lines")
                planes.append((_name(data, (start, end)), (start, end)))
        kinds = (
            kind for kind in _DEVICE_PLANES if any(name.startswith(kind) for name, _ in planes)
        )
        devices = next(kinds, _HOST_PLANE)
        for name, span in planes:
            if name == _HOST_PLANE or name.startswith(devices):
                self._read_plane(name, span)
        return self._table.events()

    def _read_plane(self, name: str, span: Span) -> None:
        data = self._data
        lines: list[Span] = []
        kinds: dict[int, Span] = {}
        stats: dict[int, Span] = {}
        tables = {_EVENT_METADATA: kinds, _STAT_METADATA: stats}
        number = 0
        for key, start, end in fields(data, *span):
            if key == _LINE:
                self._count("lines")
                lines.append((start, end))
            elif key in tables:
                self._count("names")
                entry = _header(data, (start, end), _ID, _MAP_VALUE)
                tables[key][_signed(entry[_ID][0])] = entry[_MAP_VALUE]
            elif key == _ID:
                number = start
        process = _HOST_PROCESS if name == _HOST_PLANE else _FIRST_DEVICE_PROCESS + number
        self._table.process_names[str(process)] = name
        plane = _Plane(data, kinds, stats)
        for line in lines:
            self._read_line(str(process), plane, line)

    def _read_line(self, process: str, plane: "_Plane", span: Span) -> None:
        data = self._data
        header = dict.fromkeys(_LINE_HEADER, (0, 0))
        starts, ends, most = array("q"), array("q"), self._left["events"]
        for key, start, end in fields(data, *span):
            if key == _EVENT:
                starts.append(start)
                ends.append(end)
                if len(starts) > most:
                    break
            elif key in header:
                header[key] = start, end
        self._count("events", len(starts))
        place = process, str(header[_LINE_DISPLAY_ID][0] or header[_ID][0])
        name = _text(data, header[_LINE_DISPLAY_NAME]) or _text(data, header[_NAME])
        self._table.thread_names[place] = name
        line_ps = _signed(header[_LINE_TIMESTAMP_NS][0]) * 1000
        for first in range(0, len(starts), _BLOCK_EVENTS):
            block = slice(first, first + _BLOCK_EVENTS)
            self._add(place, line_ps, plane, np.array(starts[block]), np.array(ends[block]))

    def _add(
        self,
        place: LineId,
        line_ps: int,
        plane: "_Plane",
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
    ) -> None:
        """Keep what may matter of some events of a line, all fields of all of them in few steps."""
        row, key, value, end = fields_of_many(plane.bytes, starts, ends)

        def numbers(wanted: int) -> NDArray[np.int64]:
            column = np.zeros(starts.size, np.int64)
            column[row[key == wanted]] = value[key == wanted]
            return column

        stats = key == _EVENT_STAT
        own_arguments = plane.arguments_of(row[stats], value[stats], end[stats])
        offset_ps, duration_ps = numbers(_OFFSET_PS), numbers(_DURATION_PS)
        kind_numbers, kind = np.unique(numbers(_ID), return_inverse=True)
        kinds = [plane.kind(number) for number in kind_numbers.tolist()]
        matter = [self._table.matters(place[0], each.name, each.args) for each in kinds]
        may_matter = np.array(matter, bool)[kind]
        may_matter[list(own_arguments)] = True
        may_matter[row[key == _OCCURRENCES]] = False  # a sum of many, which is at no time
        for event in np.flatnonzero(may_matter).tolist():
            shared = kinds[kind[event]]
            name, args = shared.name, shared.args
            if own := own_arguments.get(event):
                arguments = shared.arguments | own
                name, args = str(arguments.pop(_STEP_NAME, name)), Arguments(**arguments)
                if not self._table.matters(place[0], name, args):
                    continue
            times_ns = _times_ns(line_ps + int(offset_ps[event]), int(duration_ps[event]))
            self._table.add(place, name, times_ns, args)

    def _count(self, what: str, count: int = 1) -> None:
        self._left[what] -= count
        if self._left[what] < 0:
            raise TraceError(self._path, f"holds more than {self._most[what]} {what}")


class _Plane:
    """The tables of a plane: what its events and their arguments are called."""

    def __init__(self, data: bytearray, kinds: dict[int, Span], stats: dict[int, Span]) -> None:
        self._data, self._kind_spans, self._stat_spans = data, kinds, stats
        self.bytes = np.frombuffer(data, np.uint8)
        self._kinds: dict[int, _EventKind] = {}
        self._texts: dict[int, str] = {}
        names = ((number, _name(data, span)) for number, span in stats.items())
        self._wanted = {number: name for number, name in names if name in _ARGUMENTS}

    def kind(self, number: int) -> _EventKind:
        """What the events of this metadata share."""
        found = self._kinds.get(number)
        if found is None:
            if number not in self._kind_spans:
                return _UNNAMED_KIND
            found = self._kinds[number] = self._read_kind(self._kind_spans[number])
        return found

    def arguments_of(
        self, owner: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> dict[int, dict[str, ArgumentValue]]:
        """The arguments that matter, by the row that each of these stats belongs to."""
        stat, key, value, end = fields_of_many(self.bytes, starts, ends)
        number = np.full(starts.size, _UNNAMED)
        number[stat[key == _ID]] = value[key == _ID]
        rows = np.flatnonzero((key != _ID) & np.isin(number, list(self._wanted))[stat])
        arguments: dict[int, dict[str, ArgumentValue]] = {}
        for row in rows.tolist():
            found = self._value(int(key[row]), int(value[row]), int(end[row]))
            if found is not None:
                own = arguments.setdefault(int(owner[stat[row]]), {})
                own[self._wanted[int(number[stat[row]])]] = found
        return arguments

    def _read_kind(self, span: Span) -> _EventKind:
        header = _header(self._data, span, _NAME, _DISPLAY_NAME)
        name, display_name = (_text(self._data, where) for where in header.values())
        found = fields(self._data, *span)
        stats = list(
            islice((where for key, *where in found if key == _METADATA_STAT), MOST_FIELDS + 1)
        )
        if len(stats) > MOST_FIELDS:
            raise DamagedMessageError
        starts, ends = np.array(stats, np.int64).reshape(-1, 2).T
        arguments = self.arguments_of(np.zeros_like(starts), starts, ends).get(0, {})
        if display_name:
            arguments["long_name"] = name
        shown = str(arguments.pop(_STEP_NAME, display_name or name))
        return _EventKind(shown, arguments, Arguments(**arguments))

    def _referred(self, number: int) -> ArgumentValue:
        """A text that stands once for many arguments."""
        if number not in self._texts and number in self._stat_spans:
            self._texts[number] = _name(self._data, self._stat_spans[number])
        return self._texts.get(number)

    def _value(self, key: int, start: int, end: int) -> ArgumentValue:
        if key == _REFERENCE:
            return self._referred(start)
        if key == _TEXT:
            return _text(self._data, (start, end))
        if key == _DOUBLE:
            return float(struct.unpack_from("<d", self._data, start)[0])
        return start if key in {_SIGNED, _UNSIGNED} else None


def _header(data: bytearray, span: Span, *keys: int) -> dict[int, Span]:
    """The last value of each of these fields: a number and 0, or where it lies; zeros if absent."""
    found = dict.fromkeys(keys, (0, 0))
    for key, start, end in fields(data, *span):
        if key in found:
            found[key] = start, end
    return found


def _name(data: bytearray, span: Span) -> str:
    return _text(data, _header(data, span, _NAME)[_NAME])


def _text(data: bytearray, span: Span) -> str:
    return data[span[0] : span[1]].decode(errors="replace")


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _times_ns(start_ps: int, duration_ps: int) -> Times | None:
    if not (abs(start_ps) < LATEST_NS * 1000 and 0 <= duration_ps < LATEST_NS * 1000):
        return None
    return (start_ps + 500) // 1000, (start_ps + duration_ps + 500) // 1000
