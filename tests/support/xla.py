"""XLA profiles as `.xplane.pb`, made from the events of their export to JSON, for tests."""

import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import TypeAlias, cast

Fields: TypeAlias = Mapping[str, object]

_HOST_PROCESS = 701
_SHARED = ("hlo_category", "model_flops", "bytes_accessed")
"""Arguments that XLA writes once for all events of an operation."""


def span(
    name: str, ts: object, dur: object, pid: int = 1, tid: int = 3, **args: object
) -> dict[str, object]:
    """A complete event; times in microseconds."""
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def named(kind: str, name: str, pid: int = 1, tid: int = 0) -> dict[str, object]:
    """What names a process or a thread."""
    return {"ph": "M", "name": f"{kind}_name", "pid": pid, "tid": tid, "args": {"name": name}}


def number(field: int, value: int) -> bytes:
    """A field that holds an integer."""
    return _varint(field << 3) + _varint(value)


def text(field: int, value: str | bytes) -> bytes:
    """A field that holds text, bytes or a message."""
    encoded = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(encoded)) + encoded


def xspace(events: Iterable[Fields]) -> bytes:
    """The profile whose export would be these events: names of processes and threads, and spans."""
    rows = sorted((event for event in events if event.get("ph") in {"M", "X"}), key=_process)
    planes = (_plane(pid, list(own)) for pid, own in groupby(rows, _process))
    return b"".join(text(1, plane) for plane in planes) + text(4, "host")


class _Tables:
    """Metadata of a plane, numbered as it is met."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str, tuple[tuple[str, str], ...]], int] = {}
        self._stats: dict[str, int] = {}

    def kind(self, name: str, long_name: str, shared: Fields) -> int:
        """The number of an event's metadata."""
        told = tuple((key, str(value)) for key, value in shared.items())
        return self._kinds.setdefault((name, long_name, told), len(self._kinds) + 1)

    def stat(self, name: str, value: object) -> bytes:
        """An argument, by the number of its own metadata."""
        own = number(1, self._stats.setdefault(name, len(self._stats) + 1))
        if isinstance(value, float):
            return own + _varint(2 << 3 | 1) + struct.pack("<d", value)
        if name == "hlo_op":
            return own + number(7, self._stats.setdefault(str(value), len(self._stats) + 1))
        if str(value).isdigit():
            return own + number(4, int(str(value)))
        return own + text(5, str(value))

    def written(self) -> Iterator[bytes]:
        """The entries of both tables."""
        for (name, long_name, shared), place in self._kinds.items():
            shown = text(2, long_name) + text(4, name) if long_name else text(2, name)
            stats = b"".join(text(5, self.stat(*told)) for told in shared)
            yield text(4, number(1, place) + text(2, number(1, place) + shown + stats))
        for name, place in self._stats.items():
            yield text(5, number(1, place) + text(2, number(1, place) + text(2, name)))


def _plane(pid: int, events: list[Fields]) -> bytes:
    named = [event for event in events if event["ph"] == "M" and "name" in _args(event)]
    names = {(event["name"], event.get("tid", 0)): _args(event)["name"] for event in named}
    tables = _Tables()
    spans = sorted((event for event in events if event["ph"] == "X"), key=_thread)
    lines = b"".join(
        text(3, _line(tid, str(names.get(("thread_name", tid), "")), own, tables))
        for tid, own in groupby(spans, _thread)
    )
    process = next((name for (kind, _), name in names.items() if kind == "process_name"), "")
    # A plane without a name is that of another tool; XLA's export knows the host by its number.
    plane = str(process or ("/host:CPU" if pid == _HOST_PROCESS else ""))
    own_number = b"" if pid == _HOST_PROCESS else number(1, pid - 1)
    return own_number + text(2, plane) + lines + b"".join(tables.written())


def _line(tid: int, name: str, events: Iterable[Fields], tables: _Tables) -> bytes:
    rows = [(round(float(str(event["ts"])) * 1e6), event) for event in events]
    first_ns = min(start_ps for start_ps, _ in rows) // 1000
    written = (text(4, _event(ps - first_ns * 1000, event, tables)) for ps, event in rows)
    return number(1, tid) + text(2, name) + number(3, first_ns) + b"".join(written)


def _event(offset_ps: int, event: Fields, tables: _Tables) -> bytes:
    args = {name: value for name, value in _args(event).items() if value is not None}
    shared = {name: args.pop(name) for name in _SHARED if name in args}
    kind = tables.kind(str(event["name"]), str(args.pop("long_name", "")), shared)
    duration_ps = round(float(str(event["dur"])) * 1e6)
    stats = b"".join(text(4, tables.stat(*told)) for told in args.items())
    return number(1, kind) + number(2, offset_ps) + number(3, duration_ps) + stats


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes([*written, value])


def _args(event: Fields) -> Fields:
    return cast(Fields, event.get("args") or {})


def _process(event: Fields) -> int:
    return cast(int, event["pid"])


def _thread(event: Fields) -> int:
    return cast(int, event.get("tid", 0))
