"""Chrome trace JSON of any layout and size as a stream of typed events in bounded batches.

Text is read in a window that slides over it. The meaning of an event is unknown here: the caller
gives the type of its events.
"""

import re
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from evaluator.traces.readers.files import ReadLimits, pieces
from records.errors import TraceError

E = TypeVar("E")
V = TypeVar("V")

_PIECE_BYTES = 2 << 20
_LARGEST_VALUE_BYTES = 8 << 20
_FIRST_WINDOW_BYTES = 1 << 16
_SPACE = re.compile(rb"[ \t\n\r]*")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_MALFORMED = re.compile(r"JSON is malformed: (.*) \(byte (\d+)\)")
_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_STEP_OF_BYTE = np.zeros(256, np.int32)
_STEP_OF_BYTE[list(b"[{")] = 1
_STEP_OF_BYTE[list(b"]}")] = -1
_STRUCTURAL = _STEP_OF_BYTE != 0
_STRUCTURAL[[_QUOTE, _COMMA]] = True
_CONTROLS_AS_SPACES = bytes(max(32, byte) for byte in range(256))
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_HEX = rb"[0-9A-Fa-f]"
# An escape that JSON has, halves of surrogate pairs together; else what stands in its place.
_ESCAPE = re.compile(
    rb'\\(?:["\\/bfnrt]|u[Dd][89ABab]%b{2}\\u[Dd][C-Fc-f]%b{2}|u(?![Dd][89A-Fa-f])%b{4})'
    rb"|(\\u[Dd][89A-Fa-f]%b{2}|\\)" % ((_HEX,) * 4)
)
_MAYBE_NO_NUMBER = re.compile(rb"[:\[,]\s*-?(?:nan|inf)", re.IGNORECASE)
# A string as a whole, so that no word inside one is taken; else a number that JSON has not.
_NO_NUMBER = re.compile(
    rb'"(?:[^"\\]|\\.)*"|(-?(?:nan|inf(?:inity)?)\b(?:\([^()"]{0,20}\))?)',
    re.IGNORECASE | re.DOTALL,
)


class ChromeText:
    """The decompressed text of a file from where it is read on; `window[at:]` is to be read next.

    `ended` says that nothing follows the window.
    """

    def __init__(self, path: Path, limits: ReadLimits) -> None:
        self.window = b""
        self.at = 0
        self.ended = False
        self._path = path
        self._pieces = _split(pieces(path, limits, _PIECE_BYTES))
        self._dropped = 0

    def close(self) -> None:
        """Let go of the file."""
        self._pieces.close()

    @property
    def left(self) -> int:
        """Bytes of the window that are still to be read."""
        return len(self.window) - self.at

    def error(self, what: str, position: int | None = None) -> TraceError:
        """The refusal of this text because of what stands at a position of the window."""
        byte = self._dropped + (self.at if position is None else position)
        return TraceError(self._path, f"is not a Chrome trace: {what} at byte {byte} of the text")

    def cut_short(self) -> TraceError:
        """The refusal of a text that ends before it is complete."""
        return self.error("it is truncated", len(self.window))

    def more(self) -> bool:
        """Widen the window by a piece, forgetting what has been read; False at the end."""
        piece = next(self._pieces, None)
        if piece is None:
            self.ended = True
            return False
        if not self._dropped and not self.window and piece.startswith(_BYTE_ORDER_MARK):
            self._dropped, piece = len(_BYTE_ORDER_MARK), piece[len(_BYTE_ORDER_MARK) :]
        self.window = self.window[self.at :] + piece
        self._dropped += self.at
        self.at = 0
        return True

    def fill(self, size: int) -> None:
        """Widen the window until so much is to be read, or all that there is."""
        while self.left < size and self.more():
            pass

    def peek(self) -> bytes:
        """The next byte that is no white space; empty at the end."""
        while True:
            space = _SPACE.match(self.window, self.at)
            assert space is not None  # it matches nothing, too
            self.at = space.end()
            if self.left or not self.more():
                return self.window[self.at : self.at + 1]

    def take(self, expected: bytes) -> None:
        """Go past the next byte, which must be this one."""
        found = self.peek()
        if found != expected:
            raise self.error(f"{expected.decode()} is missing") if found else self.cut_short()
        self.at += 1

    def name(self) -> str:
        """Go past the name of a field, and return it."""
        found = self.peek()
        self.fill(_FIRST_WINDOW_BYTES)
        text = _STRING.match(self.window, self.at)
        if not found or (found == b'"' and not text and self.ended):
            raise self.cut_short()
        if not text:
            raise self.error("the name of a field is missing")
        self.at = text.end()
        return self._decoded(text[0], str)

    def value(self) -> msgspec.Raw:
        """Go past the next JSON value of an object, and return its text, repaired."""
        self.peek()
        size = _FIRST_WINDOW_BYTES
        while (end := self._value_end(size)) is None:
            if self.ended and self.left <= size:
                raise self.cut_short()
            if size >= _LARGEST_VALUE_BYTES:
                raise self.error(f"it has a field of more than {_LARGEST_VALUE_BYTES} bytes")
            size = min(4 * size, _LARGEST_VALUE_BYTES)
        text = self.window[self.at : end].translate(_CONTROLS_AS_SPACES)
        value = self._decoded(repair_text(text), msgspec.Raw)
        self.at = end
        return value

    def _value_end(self, size: int) -> int | None:
        """What the value ends before, within this size; None where more text is needed."""
        self.fill(size)
        text = np.frombuffer(self.window, np.uint8)[self.at : self.at + size]
        places, depth, commas = _structure(text)
        behind = places[(depth < 0) | ((depth == 0) & commas)]
        return self.at + int(behind[0]) if behind.size else None

    def _decoded(self, text: bytes, kind: type[V]) -> V:
        try:
            return msgspec.json.decode(text, type=kind)
        except RecursionError as error:
            raise self.error("it is nested too deeply") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            malformed = _MALFORMED.fullmatch(str(error))
            what, behind = (malformed[1], int(malformed[2])) if malformed else (str(error), 0)
            raise self.error(what, self.at + behind) from error

    def controls_to_spaces(self) -> int:
        """Make spaces of control characters inside the strings of the window; how many."""
        text = np.frombuffer(self.window, np.uint8)[self.at :]
        controls = np.flatnonzero(text < ord(" "))
        inside = np.searchsorted(_quotes(text), controls) % 2
        self.window = self.window.translate(_CONTROLS_AS_SPACES)
        return int(inside.sum())

    def list_end(self) -> tuple[int, bool] | None:
        """Where the last whole element of a list ends, and whether the list itself ends there.

        The window must stand in the list between two elements; None: no element ends within it.
        """
        places, depth, commas = _structure(np.frombuffer(self.window, np.uint8)[self.at :])
        closing = np.flatnonzero(depth < 0)
        if closing.size:
            return self.at + int(places[closing[0]]), True
        between = places[(depth == 0) & commas]
        return (self.at + int(between[-1]), False) if between.size else None

    def elements(self, end: int) -> list[bytes]:
        """The elements of a list from the next byte to that position, which is behind the last."""
        text = self.window[self.at : end]
        places, depth, commas = _structure(np.frombuffer(text, np.uint8))
        between = places[(depth == 0) & commas].tolist()
        starts = [0, *(place + 1 for place in between)]
        return [text[a:b] for a, b in zip(starts, [*between, len(text)], strict=True)]


def repair_text(text: bytes) -> bytes:
    """Text as JSON allows it, where a profiler wrote what it does not.

    Bytes that are no UTF-8 become question marks, backslashes that escape nothing (paths of
    Windows) become slashes, and `nan` and `inf` become null.
    """
    text = _NOT_UTF8.sub("?", text.decode("utf-8", "surrogateescape")).encode()
    text = _ESCAPE.sub(lambda found: b"/" if found[1] else found[0], text)
    if not _MAYBE_NO_NUMBER.search(text):
        return text
    return _NO_NUMBER.sub(lambda found: b"null" if found[1] else found[0], text)


def _split(whole: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
    """Pieces of one size at most, whatever an archive unfolds to."""
    with closing(whole):
        for piece in whole:
            for start in range(0, len(piece), _PIECE_BYTES):
                yield piece[start : start + _PIECE_BYTES]


def _structure(
    text: NDArray[np.uint8],
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.bool_]]:
    """Brackets and commas outside strings: where, how deep behind each, and which are commas."""
    places = np.flatnonzero(_STRUCTURAL[text])
    places = places[np.searchsorted(_quotes(text), places, side="right") % 2 == 0]
    depth = np.cumsum(_STEP_OF_BYTE[text[places]], dtype=np.int32)
    return places, depth, text[places] == _COMMA


def _quotes(
    text: NDArray[np.uint8],
) -> NDArray[np.int64]:
    """Where strings begin and end, in turns: quotes that no backslash escapes."""
    quotes = np.flatnonzero(text == _QUOTE)
    backslashes = np.flatnonzero(text == _BACKSLASH)
    if not backslashes.size:
        return quotes
    # A quote is escaped by an odd number of backslashes right before it.
    runs = backslashes[np.diff(backslashes, prepend=-2) != 1]
    escapable = (quotes > 0) & (text[quotes - 1] == _BACKSLASH)
    run_of_quote = runs[np.maximum(np.searchsorted(runs, quotes) - 1, 0)]
    escaped = escapable & ((quotes - run_of_quote) % 2 == 1)
    return np.delete(quotes, escaped)


_EVENTS = "traceEvents"
_LARGEST_EVENT_BYTES = 8 << 20
_LARGEST_HEADER_BYTES = 32 << 20
_MOST_FIELDS = 1000
_NEAR_BYTES = 1 << 16
_SEPARATOR = re.compile(rb"\}\s*(,)\s*\{")
_LAST_END = re.compile(rb"\}\s*(\])")
_CATEGORY, _NAME = (re.compile(rb'"%b"\s*:\s*"([^"\\]{0,100})' % key) for key in (b"cat", b"name"))
_MOST_DAMAGES = 100_000
_SHAPE = re.compile(r"(.*?)(?: - at `\$\[(\d+)\](.*)`)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class DamagedEvent:
    """An event that cannot be read: what it was, as far as its text says, and its fault.

    The fault continues a sentence that begins with the event.
    """

    category: str
    name: str
    fault: str


class ChromeFile(Generic[E]):
    """One file of trace events: an object with `traceEvents` anywhere in it, or a bare list.

    It is read once, and nothing is refused before its batches are read. One that `repairs` reads
    damaged events as far as it can and leaves out the others.
    `header` holds every other field of the object as it is written, complete after the last batch,
    empty for a bare list. `text` is the list of events that the latest batch was decoded from.
    `control_count` is how many control characters inside strings were read as spaces: JSON has
    none, older profilers do. `repaired_count` is how many events were read from text set right, and
    `damages` are those left out.
    """

    def __init__(
        self, path: Path, limits: ReadLimits, event_type: type[E], *, repairs: bool = False
    ) -> None:
        self.header: dict[str, msgspec.Raw] = {}
        self.text = b""
        self.control_count = 0
        self.repaired_count = 0
        self.damages: list[DamagedEvent] = []
        self.event_count = 0
        self._repairs = repairs
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
            name = source.name()
            source.take(b":")
            if name != _EVENTS:
                self._keep(name, source.value())
            elif found:
                raise source.error("it has a second list of events")
            else:
                found = True
                yield from self._events()
            more = source.peek() == b","
            if more:
                source.take(b",")
        source.take(b"}")
        if not found:
            raise TraceError(self._path, f"is not a Chrome trace: it has no {_EVENTS}")

    def _keep(self, name: str, value: msgspec.Raw) -> None:
        self.header[name] = value
        self._header_bytes += len(bytes(value))
        if self._header_bytes > _LARGEST_HEADER_BYTES or len(self.header) > _MOST_FIELDS:
            raise self._in.error("it has too many fields")

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
        source.fill(_PIECE_BYTES)
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
                width = source.left  # where it grows, places are counted again
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
            raise self._in.error("its events are nested too deeply") from error

    def _one_by_one(self, end: int, error: Exception) -> list[E]:
        """Events of which some are damaged: those that can be mended, and a note of the others."""
        pieces = self._in.elements(end) if self._repairs else []
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
        for made in (bytes, repair_text):
            text = made(piece)
            try:
                (event,) = self._decoder.decode(b"[%b]" % text)
            except msgspec.ValidationError as error:
                fault = f"is of another shape: {str(error).partition(' - at ')[0]}"
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                fault = f"is not valid JSON: {error}"
            except RecursionError as error:
                raise self._in.error("its events are nested too deeply") from error
            else:
                self.repaired_count += made is repair_text
                return event, text
        self.damages.append(
            DamagedEvent(_field_text(_CATEGORY, piece), _field_text(_NAME, piece), fault)
        )
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
            return source.error("it has text that is not UTF-8", source.at + self._not_text())
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


def _field_text(field: re.Pattern[bytes], piece: bytes) -> str:
    """What a damaged event says in a field; empty where that is unknown."""
    found = field.search(piece)
    return found[1].decode(errors="replace") if found else ""
