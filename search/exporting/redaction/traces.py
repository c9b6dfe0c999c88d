"""Rewrites a trace event by event, in memory that does not grow with it."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from evaluator.readers.chrome.stream import open_chrome
from evaluator.readers.files import LARGE_LIMITS
from search.exporting.redaction.operators import HashedNames
from search.exporting.redaction.times import Perturbed
from search.exporting.redaction.words import Redactor

NOTE = "cclsearchExport"
_ABSOLUTE_TIMES = ("device_offset_ps", "device_duration_ps")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceChanges:
    """What is done to every trace of an export."""

    redactor: Redactor
    names: HashedNames | None = None
    times: Perturbed | None = None

    @property
    def note(self) -> dict[str, object]:
        """What was done, as the trace itself says it."""
        return {
            "redacted": True,
            "operator_names": "hashed" if self.names else "as recorded",
            "times_perturbed_by": self.times.share if self.times else 0,
        }


class _Event(msgspec.Struct):
    """Only its text is wanted."""


def rewrite_trace(path: Path, out: BinaryIO, changes: TraceChanges) -> None:
    """Write a trace of Chrome's format with these changes; raises `TraceError` if it is none."""
    trace = open_chrome(path, LARGE_LIMITS, _Event)
    out.write(b'{"traceEvents":[')
    first = True
    with closing(trace.batches()) as batches:
        for _ in batches:
            for event in msgspec.json.decode(trace.text, type=list[object]):
                out.write(b"\n" if first else b",\n")
                out.write(msgspec.json.encode(_changed(event, changes)))
                first = False
    out.write(b"\n]")
    for name, value in _fields(trace.header, changes):
        out.write(b",\n%b:%b" % (msgspec.json.encode(name), msgspec.json.encode(value)))
    out.write(b"}\n")


def _fields(header: dict[str, msgspec.Raw], changes: TraceChanges) -> Iterator[tuple[str, object]]:
    for name, value in header.items():
        told: object = msgspec.json.decode(value)
        if name == "host_name" and isinstance(told, str):
            told = changes.redactor.host(told)
        yield changes.redactor.text(name), changes.redactor.value(told)
    yield NOTE, changes.note


def _changed(event: object, changes: TraceChanges) -> object:
    if not isinstance(event, dict):
        return changes.redactor.value(event)
    changed = dict(event)
    if changes.times is not None:
        _move(changed, changes.times)
    if changes.names is not None and changed.get("ph") != "M":
        if isinstance(changed.get("name"), str):
            changed["name"] = changes.names.name(str(changed["name"]))
        if "args" in changed:
            changed["args"] = changes.names.arguments(changed["args"])
    return changes.redactor.value(changed)


def _move(event: dict[str, object], times: Perturbed) -> None:
    start, duration = event.get("ts"), event.get("dur")
    if not isinstance(start, int | float):
        return
    event["ts"] = moved = times.at(start)
    if isinstance(duration, int | float):
        event["dur"] = max(0.0, round(times.at(start + duration) - moved, 3))
    arguments = event.get("args")
    if isinstance(arguments, dict):
        event["args"] = {k: v for k, v in arguments.items() if k not in _ABSOLUTE_TIMES}
