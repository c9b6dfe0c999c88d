"""Chrome trace JSON of any layout as a stream: typed events in bounded batches, fields around them.

Knows nothing of what an event means: the caller gives the type of its events.
"""

import re
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from evaluator.readers.chrome.text import ChromeText
from evaluator.readers.files import ReadLimits
from evaluator.traces.errors import TraceError

E = TypeVar("E", bound=msgspec.Struct)

_EVENTS = "traceEvents"
_LARGEST_EVENT_BYTES = 8 << 20
_LARGEST_HEADER_BYTES = 32 << 20
_MOST_FIELDS = 1000
_NEAR_BYTES = 1 << 16
_SEPARATOR = re.compile(rb"\}\s*(,)\s*\{")
_LAST_END = re.compile(rb"\}\s*(\])")
_MALFORMED = re.compile(r"JSON is malformed: (.*) \(byte (\d+)\)")
_SHAPE = re.compile(r"(.*?)(?: - at `\$\[(\d+)\](.*)`)?", re.DOTALL)


def open_chrome(path: Path, limits: ReadLimits, event_type: type[E]) -> "ChromeFile[E]":
    """A trace file to be read once; nothing is refused before its batches are read."""
    return ChromeFile(path, limits, event_type)


class ChromeFile(Generic[E]):
    """One file of trace events: an object with `traceEvents` anywhere in it, or a bare list.

    `header` holds every other field of the object as it is written, complete after the last batch,
    empty for a bare list. `text` is the list of events that the latest batch was decoded from.
    `control_count` is how many control characters inside strings were read as spaces: JSON has
    none, older profilers do.
    """

    def __init__(self, path: Path, limits: ReadLimits, event_type: type[E]) -> None:
        self.header: dict[str, msgspec.Raw] = {}
        self.text = b""
        self.control_count = 0
        self._path = path
        self._limits = limits
        self._decoder: msgspec.json.Decoder[list[E]] = msgspec.json.Decoder(list[event_type])  # type: ignore[valid-type]  # a type when it runs
        self._in = ChromeText(path, limits)
        self._event_count = 0
        self._header_bytes = 0

    def batches(self) -> Generator[list[E], None, None]:
        """All events in file order, some megabytes of text at a time.

        Whoever may stop early closes it, so that the file does not stay open.

        Raises TraceError naming the byte of the decompressed text where that is malformed, the
        number of an event that is of another shape, or the limit that the file passes.
        """
        with closing(self._in) as source:
            yield from self._events() if source.peek() == b"[" else self._object()
            if source.peek():
                raise source.error("more follows after its end")

    def _object(self) -> Iterator[list[E]]:
        source = self._in
        source.take(b"{")
        found, more = False, source.peek() != b"}"
        while more:
            name = self._name()
            source.take(b":")
            if name != _EVENTS:
                self._keep(name, source.value())
            elif found:
                raise source.error("a second list of events stands")
            else:
                found = True
                yield from self._events()
            more = source.peek() == b","
            if more:
                source.take(b",")
        source.take(b"}")
        if not found:
            raise TraceError(self._path, f"is no Chrome trace: it has no {_EVENTS}")

    def _name(self) -> str:
        source = self._in
        if not source.peek():
            raise source.cut_short()
        if source.peek() != b'"':
            raise source.error("the name of a field is missing")
        try:
            return msgspec.json.decode(source.value(), type=str)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise source.error(f"a field has no proper name ({error})") from error

    def _keep(self, name: str, value: bytes) -> None:
        self.header[name] = msgspec.Raw(value)
        self._header_bytes += len(value)
        if self._header_bytes > _LARGEST_HEADER_BYTES or len(self.header) > _MOST_FIELDS:
            raise self._in.error("more fields than any trace has stand")

    def _events(self) -> Iterator[list[E]]:
        source = self._in
        if source.peek() not in (b"[", b""):
            raise source.error(f"its {_EVENTS} is not a list")
        source.take(b"[")
        last = source.peek() == b"]"
        if last:
            source.take(b"]")
        while not last:
            events, last = self._batch()
            self._event_count += len(events)
            if self._event_count > self._limits.event_count:
                raise TraceError(self._path, f"holds more than {self._limits.event_count} events")
            yield events

    def _batch(self) -> tuple[list[E], bool]:
        """Decode from an event on to the end of a later one; and whether the list ends there.

        Where that is gets guessed from how events are written, and proved by decoding: text that
        starts at an event is a list of events only if it also ends with one. Where the guess is
        wrong the text is looked at bracket by bracket.
        """
        source = self._in
        source.fill()
        end = self._likely_end() or self._certain_end(None)
        while True:
            try:
                events = self._decoded(end[0])
                break
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                controls = source.controls_to_spaces()
                self.control_count += controls
                if controls:
                    continue
                width = source.left  # where it grows, places are counted anew
                certain = self._certain_end(error)
                if certain == end and source.left == width:
                    raise self._refusal(error) from error
                end = certain
        if not events:
            raise source.error("an event is missing")
        source.at = end[0] + 1
        return events, end[1]

    def _decoded(self, end: int) -> list[E]:
        self.text = b"".join((b"[", memoryview(self._in.window)[self._in.at : end], b"]"))
        try:
            return self._decoder.decode(self.text)
        except RecursionError as error:
            raise self._in.error("events nested too deeply stand") from error

    def _likely_end(self) -> tuple[int, bool] | None:
        """The last place of the window that looks like the end of an event, if there is one."""
        source = self._in
        pattern = _LAST_END if source.ended else _SEPARATOR
        for start in (max(source.at, len(source.window) - _NEAR_BYTES), source.at):
            *_, last = (None, *pattern.finditer(source.window, start))
            if last is not None:
                return last.start(1), source.ended
        return None

    def _certain_end(self, error: Exception | None) -> tuple[int, bool]:
        """The last end of an event, in a window as wide as it takes; else the refusal."""
        source = self._in
        while (found := source.list_end()) is None:
            if source.left > _LARGEST_EVENT_BYTES:
                raise self._refusal(error) if error else source.error("an event without end starts")
            if not source.more():
                raise self._refusal(error) if error else source.cut_short()
        return found

    def _refusal(self, error: Exception) -> TraceError:
        source = self._in
        malformed, shape = _MALFORMED.fullmatch(str(error)), _SHAPE.fullmatch(str(error))
        if isinstance(error, UnicodeDecodeError):
            return source.error("text that is not UTF-8 stands", source.at + self._not_text())
        if malformed:
            return source.error(malformed[1], source.at + int(malformed[2]) - 1)
        if isinstance(error, msgspec.ValidationError) and shape:
            number = self._event_count + int(shape[2] or 0)
            return TraceError(
                self._path,
                f"holds an event of another shape: {shape[1]} (event {number}{shape[3]})",
            )
        return source.cut_short()

    def _not_text(self) -> int:
        """Where the latest text is no UTF-8, counted from the window's place."""
        try:
            self.text.decode()
        except UnicodeDecodeError as error:
            return error.start - 1
        return 0
