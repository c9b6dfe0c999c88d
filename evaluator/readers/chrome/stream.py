"""Chrome trace JSON of any layout as a stream: typed events in bounded batches, fields around them.

Knows nothing of what an event means: the caller gives the type of its events.
"""

import re
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from evaluator.readers.chrome.text import ChromeText, mended
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
_CATEGORY, _NAME = (re.compile(rb'"%b"\s*:\s*"([^"\\]{0,100})' % key) for key in (b"cat", b"name"))
_MOST_DAMAGES = 100_000
_SHAPE = re.compile(r"(.*?)(?: - at `\$\[(\d+)\](.*)`)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Damage:
    """An event that cannot be read: what it was, as far as its text says, and its fault.

    The fault continues a sentence that begins with the event.
    """

    category: str
    name: str
    fault: str


def open_chrome(
    path: Path, limits: ReadLimits, event_type: type[E], *, mends: bool = False
) -> "ChromeFile[E]":
    """A trace file to be read once; nothing is refused before its batches are read.

    One that `mends` reads damaged events as far as it can and leaves out the others.
    """
    return ChromeFile(path, limits, event_type, mends=mends)


class ChromeFile(Generic[E]):
    """One file of trace events: an object with `traceEvents` anywhere in it, or a bare list.

    `header` holds every other field of the object as it is written, complete after the last batch,
    empty for a bare list. `text` is the list of events that the latest batch was decoded from.
    `control_count` is how many control characters inside strings were read as spaces: JSON has
    none, older profilers do. `mended_count` is how many events were read from text set right, and
    `damages` are those left out.
    """

    def __init__(
        self, path: Path, limits: ReadLimits, event_type: type[E], *, mends: bool = False
    ) -> None:
        self.header: dict[str, msgspec.Raw] = {}
        self.text = b""
        self.control_count = 0
        self.mended_count = 0
        self.damages: list[Damage] = []
        self.event_count = 0
        self._mends = mends
        self._path = path
        self._limits = limits
        self._decoder: msgspec.json.Decoder[list[E]] = msgspec.json.Decoder(list[event_type])  # type: ignore[valid-type]  # a type when it runs
        self._in = ChromeText(path, limits)
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
            self.event_count += len(events)
            if self.event_count > self._limits.event_count:
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
                    events = self._one_by_one(end[0], error)
                    break
                end = certain
        if not events and not self.damages:
            raise source.error("an event is missing")
        source.at = end[0] + 1
        return events, end[1]

    def _decoded(self, end: int) -> list[E]:
        self.text = b"".join((b"[", memoryview(self._in.window)[self._in.at : end], b"]"))
        try:
            return self._decoder.decode(self.text)
        except RecursionError as error:
            raise self._in.error("events nested too deeply stand") from error

    def _one_by_one(self, end: int, error: Exception) -> list[E]:
        """Events of which some are damaged: those that can be mended, and a note of the others."""
        pieces = self._in.elements(end) if self._mends else []
        if not all(piece.lstrip().startswith(b"{") for piece in pieces) or not pieces:
            raise self._refusal(error) from error
        read = [one for one in map(self._single, pieces) if one is not None]
        self.text = b"[%b]" % b",".join(text for _, text in read)
        if len(self.damages) > _MOST_DAMAGES:
            raise TraceError(self._path, f"holds more than {_MOST_DAMAGES} damaged events")
        return [event for event, _ in read]

    def _single(self, piece: bytes) -> tuple[E, bytes] | None:
        """One event and its text, mended where that is needed; None where that does not help."""
        fault = ""
        for made in (bytes, mended):
            text = made(piece)
            try:
                (event,) = self._decoder.decode(b"[%b]" % text)
            except msgspec.ValidationError as error:
                fault = f"is of another shape: {str(error).partition(' - at ')[0]}"
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                fault = f"is no JSON: {error}"
            except RecursionError as error:
                raise self._in.error("events nested too deeply stand") from error
            else:
                self.mended_count += made is mended
                return event, text
        self.damages.append(Damage(_said(_CATEGORY, piece), _said(_NAME, piece), fault))
        return None

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
            number = self.event_count + int(shape[2] or 0)
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


def _said(field: re.Pattern[bytes], piece: bytes) -> str:
    """What a damaged event says in a field; empty where that cannot be told."""
    found = field.search(piece)
    return found[1].decode(errors="replace") if found else ""
