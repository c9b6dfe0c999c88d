"""JSON text of unknown size as a window that slides over it: where it is read, and what is near."""

import json
import re
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evaluator.readers.files import ReadLimits, pieces
from evaluator.traces.errors import TraceError

_PIECE_BYTES = 2 << 20
_LARGEST_VALUE_BYTES = 8 << 20
_FIRST_WINDOW_BYTES = 1 << 16
_SPACE = re.compile(rb"[ \t\n\r]*")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DECODER = json.JSONDecoder(strict=False)  # not strict: it takes control characters inside strings
_NO_ESCAPE = "Invalid \\escape"
_MOST_SLASHES = 100
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
        self._slash_count = 0

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
        return TraceError(self._path, f"is no Chrome trace: {what} at byte {byte} of the text")

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

    def fill(self) -> None:
        """Widen the window until a piece is to be read, or all that there is."""
        while self.left < _PIECE_BYTES and self.more():
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

    def value(self) -> bytes:
        """Go past the next JSON value, and give its text."""
        self.peek()
        size = _FIRST_WINDOW_BYTES
        while True:
            while self.left < size and self.more():
                pass
            whole = self.ended and self.left <= size
            end = self._value_end(size, whole)
            if end is not None:
                self.at += end
                return self.window[self.at - end : self.at]
            if size >= _LARGEST_VALUE_BYTES:
                raise self.error(f"a field of more than {_LARGEST_VALUE_BYTES} bytes stands")
            size = min(4 * size, _LARGEST_VALUE_BYTES)

    def _value_end(self, size: int, whole: bool) -> int | None:
        """How long the value is, within this size; None where more text is needed to tell."""
        # One character for each byte: positions in the one are positions in the other.
        text = self.window[self.at : self.at + size].decode("latin-1")
        try:
            _, end = _DECODER.raw_decode(text)
        except json.JSONDecodeError as error:
            if error.msg.startswith(_NO_ESCAPE) and self._slash_count < _MOST_SLASHES:
                self._slash_at(self.at + error.pos)
                return self._value_end(size, whole)
            if not whole:
                return None
            if error.pos >= len(text):
                raise self.cut_short() from error
            raise self.error(error.msg, self.at + error.pos) from error
        except RecursionError as error:
            raise self.error("it is nested too deeply") from error
        except ValueError as error:
            raise self.error("an absurd number stands") from error
        return end if whole or end < len(text) else None

    def _slash_at(self, position: int) -> None:
        """Make a slash of a backslash that escapes nothing, as in the path of a Windows file."""
        self._slash_count += 1
        self.window = b"%b/%b" % (self.window[:position], self.window[position + 1 :])

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


def mended(text: bytes) -> bytes:
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
