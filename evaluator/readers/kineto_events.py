"""The Kineto JSON format as it lies on disk: typed events, read in bounded batches, exact times."""

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import numpy as np

from evaluator.intervals import Nanoseconds
from evaluator.traces import TraceError

Number = TypeVar("Number", float, Decimal)

_BATCH_BYTES = 4 << 20
_LARGEST_BATCH_BYTES = 32 << 20
_EMPTY_LIST = re.compile(rb"\[\s*\]")
_EVENT_SEPARATOR = re.compile(rb"\}\s*,\s*\{")

# Below 2^43 us a float64 is at most 0.49 ns from the decimal text, so rounding restores it.
_FLOAT_EXACT_BELOW_US = float(1 << 43)
# In nanoseconds a quarter of what int64 holds: base + start + duration cannot overflow.
_LARGEST_US = float(1 << 51)


class Arguments(msgspec.Struct, gc=False):
    """The few event arguments that classification needs."""

    collective: str | None = msgspec.field(name="Collective name", default=None)
    name: str | None = None


class Event(msgspec.Struct, Generic[Number], gc=False):
    """One trace event; `ts` and `dur` in microseconds, None where the event has none."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: Number | None = None
    dur: Number | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    args: Arguments | None = None


class DistributedInfo(msgspec.Struct):
    """What the process group said about itself."""

    backend: str | None = None
    rank: int | None = None
    world_size: int | None = None


class Document(msgspec.Struct):
    """The top level of a trace file; events stay raw until they are read in batches."""

    events: msgspec.Raw = msgspec.field(name="traceEvents")
    base_ns: int = msgspec.field(name="baseTimeNanoseconds", default=0)
    distributed: DistributedInfo | None = msgspec.field(name="distributedInfo", default=None)
    devices: msgspec.Raw = msgspec.field(name="deviceProperties", default=msgspec.Raw(b"[]"))

    @property
    def has_devices(self) -> bool:
        """Whether the process saw accelerators, profiled or not."""
        return _EMPTY_LIST.fullmatch(self.devices) is None


_DOCUMENT = msgspec.json.Decoder(Document)
_EVENTS = msgspec.json.Decoder(list[Event[float]])
_EXACT_EVENTS = msgspec.json.Decoder(list[Event[Decimal]])


class Batch:
    """Some consecutive events of a trace, decoded."""

    __slots__ = ("_path", "_text", "events")

    def __init__(self, path: Path, text: bytes) -> None:
        self._path = path
        self._text = text
        self.events = _EVENTS.decode(text)

    def times_ns(self, chosen: Sequence[int]) -> tuple[Nanoseconds, Nanoseconds]:
        """Start and duration of the events at these indices, int64 ns of shape (chosen,).

        Raises TraceError when one has no time, a negative duration or an absurd value.
        """
        events = [self.events[i] for i in chosen]
        start_us = np.array([event.ts for event in events], np.float64)
        duration_us = np.array([event.dur for event in events], np.float64)
        for what, values in (("start", start_us), ("duration", duration_us)):
            if not np.all(np.abs(values) < _LARGEST_US):
                raise TraceError(self._path, f"an event has no {what} or an absurd one")
        if np.any(duration_us < 0):
            raise TraceError(self._path, "an event lasts less than nothing")
        if np.any(np.abs(start_us) >= _FLOAT_EXACT_BELOW_US):
            exact = _EXACT_EVENTS.decode(self._text)
            start_ns = np.array([_exact_ns(exact[i].ts) for i in chosen], np.int64)
        else:
            start_ns = _float_ns(start_us)
        return start_ns, _float_ns(duration_us)


def _float_ns(microseconds: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Nanoseconds:
    whole = np.floor(microseconds)
    fraction_ns = np.rint((microseconds - whole) * 1000)
    return whole.astype(np.int64) * 1000 + fraction_ns.astype(np.int64)


def _exact_ns(microseconds: Decimal | None) -> int:
    assert microseconds is not None  # the float pass has refused events without a start
    return int((microseconds * 1000).to_integral_value())


def decode_document(path: Path, content: bytearray) -> Document:
    """The top level of a trace. Raises TraceError when it is not Kineto JSON from end to end."""
    try:
        return _DOCUMENT.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(path, f"is no Kineto trace: {error}") from error


def batches(path: Path, document: Document, event_limit: int) -> Iterator[Batch]:
    """All events in file order, some megabytes at a time, so that memory stays bounded.

    Raises TraceError when an event has a wrong type or there are more than the limit.
    """
    text = memoryview(document.events)
    if text[0] != ord("["):
        raise TraceError(path, "traceEvents is not a list")
    position, count = 1, 0
    while position < len(text) - 1:
        batch, position = _next_batch(path, text, position)
        count += len(batch.events)
        if count > event_limit:
            raise TraceError(path, f"holds more than {event_limit} events")
        yield batch


def _next_batch(path: Path, text: memoryview, start: int) -> tuple[Batch, int]:
    """Decode from an event boundary to a later one; return the batch and where to go on.

    Where one event ends and the next begins is guessed from `},{` and proved by decoding: text
    that starts at a boundary is a whole list of events only if it also ends at one.
    """
    size = _BATCH_BYTES
    while True:
        separator = _EVENT_SEPARATOR.search(text, start + size)
        end = separator.start() + 1 if separator else len(text) - 1
        if end - start > _LARGEST_BATCH_BYTES:
            raise TraceError(path, f"no event ends within {_LARGEST_BATCH_BYTES} bytes")
        following = separator.end() - 1 if separator else len(text)
        try:
            return Batch(path, b"".join((b"[", text[start:end], b"]"))), following
        except msgspec.ValidationError as error:
            raise TraceError(path, f"holds an event of another shape: {error}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if separator is None:
                raise TraceError(path, f"is no Kineto trace: {error}") from error
            size *= 2  # the guess was wrong: `},{` stood inside an event
