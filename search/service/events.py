"""Live progress: what a search printed as events, stream_events while it is written.

The file of a study is looked at once for all who follow it. The newest events are kept for them,
within a bound; who is too slow for that reads the file on from where they are, which is all that
is kept of a reader.
"""

import asyncio
import json
import os
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from records.errors import CclsearchError

POLL_EVERY_S = 0.5
ALIVE_EVERY_S = 15.0
PIECE_BYTES = 1 << 16
KEPT_BYTES = 1 << 18
MOST_LINE_BYTES = 1 << 20
"""What is longer than this is no event; it comes in parts, as noise."""
NOISE, END = "noise", "end"


@dataclass(frozen=True, slots=True)
class Line:
    """An event between two offsets of its file, as it is sent; its id is where the next begins."""

    start: int
    end: int
    text: str


class Feed:
    """The newest events of one study, for all who follow it; used by the event loop alone."""

    def __init__(self, path: Path, is_over: Callable[[], bool]) -> None:
        self.path = path
        self.is_over = False
        """Whether nothing comes after what has come."""
        self.closes = False
        self.changed = asyncio.Event()
        """Set, and replaced by another, when something comes or ends."""
        self._ask_over = is_over
        self._kept: list[Line] = []
        self._end = 0

    def after(self, offset: int) -> list[Line] | None:
        """Some of what is kept from an offset on; None where that is in the file alone."""
        if offset >= self._end:
            return []
        if not self._kept or offset < self._kept[0].start:
            return None
        first = bisect_left(self._kept, offset, key=lambda line: line.start)
        last, size = first, 0
        while last < len(self._kept) and size < PIECE_BYTES:
            size += len(self._kept[last].text)
            last += 1
        return self._kept[first:last]

    async def watch(self) -> None:
        """Take in what is written, for ever."""
        self._end = await asyncio.to_thread(line_start, self.path, -KEPT_BYTES)
        while True:
            over = await asyncio.to_thread(self._over)  # before reading: all that came is read
            while await self._read():
                pass
            if over != self.is_over:
                self.is_over = over
                self.notify()
            await asyncio.sleep(POLL_EVERY_S)

    def close(self) -> None:
        """Send everyone away who follows; they may come back to another service."""
        self.closes = True
        self.notify()

    def notify(self) -> None:
        """Wake everyone who follows."""
        self.changed.set()
        self.changed = asyncio.Event()

    async def _read(self) -> bool:
        lines, end = await asyncio.to_thread(read_lines, self.path, self._end)
        if end == self._end:
            return False
        self._end = end
        self._kept += lines
        over, first = sum(len(line.text) for line in self._kept) - KEPT_BYTES, 0
        while over > 0:
            over -= len(self._kept[first].text)
            first += 1
        del self._kept[:first]
        self.notify()
        return True

    def _over(self) -> bool:
        try:
            return self._ask_over()
        except CclsearchError:  # health tells; nobody is sent away for it
            return False


class Feeds:
    """A feed for each study that somebody follows; used by the event loop alone."""

    def __init__(self) -> None:
        self._feeds: dict[Path, tuple[Feed, asyncio.Task[None]]] = {}
        self._readers: dict[Path, int] = {}
        self._closed = False

    @contextmanager
    def follow(self, path: Path, is_over: Callable[[], bool]) -> Iterator[Feed]:
        """The feed of a file, while somebody is in here."""
        if path not in self._feeds:
            feed = Feed(path, is_over)
            feed.closes = self._closed
            self._feeds[path] = feed, asyncio.create_task(feed.watch())
        self._readers[path] = self._readers.get(path, 0) + 1
        try:
            yield self._feeds[path][0]
        finally:
            self._readers[path] -= 1
            if not self._readers[path]:
                del self._readers[path]
                self._feeds.pop(path)[1].cancel()

    def close(self) -> None:
        """Send everyone away, now and later."""
        self._closed = True
        for feed, _ in self._feeds.values():
            feed.close()


async def stream_events(feed: Feed, offset: int) -> AsyncIterator[str]:
    """Server-sent events from a byte offset on, or from so many bytes before the end.

    The id of an event is the offset behind it, so that whoever comes back goes on there. Ends with
    an event `end` once nothing more will come.
    """
    yield f"retry: {int(POLL_EVERY_S * 2000)}\n\n"
    offset = await asyncio.to_thread(line_start, feed.path, offset)
    while not feed.closes:
        changed, over = feed.changed, feed.is_over
        kept = feed.after(offset)
        lines, behind = kept or [], offset
        if kept is None or (over and not kept):
            lines, behind = await asyncio.to_thread(read_lines, feed.path, offset)
        if lines or behind != offset:
            offset = lines[-1].end if lines else behind
            yield "".join(line.text for line in lines)
        elif over:
            yield _sse(offset, END, "{}")
            return
        elif not await _within(changed, ALIVE_EVERY_S):
            yield ": alive\n\n"


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


def read_lines(path: Path, offset: int) -> tuple[list[Line], int]:
    """Whole lines from an offset on, some at a time, and the offset behind them."""
    try:
        with path.open("rb") as file:
            file.seek(min(offset, os.fstat(file.fileno()).st_size))
            start = file.tell()
            piece = file.read(PIECE_BYTES)
            if b"\n" not in piece and len(piece) == PIECE_BYTES:
                piece += file.readline(MOST_LINE_BYTES - PIECE_BYTES)
    except OSError:
        return [], offset
    if len(piece) >= MOST_LINE_BYTES and not piece.endswith(b"\n"):
        end = start + len(piece)
        return [Line(start, end, _sse(end, NOISE, _noise("a very long line")))], end
    found = list[Line]()
    for line in piece.split(b"\n")[:-1]:
        end = start + len(line) + 1
        if line.strip():
            found.append(Line(start, end, _sse(end, *_event(line))))
        start = end
    return found, start


def line_start(path: Path, offset: int) -> int:
    """The offset, within the file; a negative one is where a line begins so near its end."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if offset >= 0:
                return min(offset, size)
            if size + offset <= 0:
                return 0
            file.seek(size + offset - 1)
            file.readline(MOST_LINE_BYTES)
            return file.tell()
    except OSError:
        return 0


def _event(line: bytes) -> tuple[str, str]:
    """The name of an event and what to send; a line without one is noise, as libraries print it."""
    text = line.decode("utf-8", "replace").replace("\r", " ")
    try:
        event = json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return NOISE, _noise(text)
    name = event.get("event") if isinstance(event, dict) else None
    if isinstance(name, str) and name.isascii() and name.isidentifier() and name != END:
        return name, text
    return NOISE, _noise(text)


def _refused(constant: str) -> None:
    """Python would read NaN, which browsers do not."""
    raise ValueError(constant)


def _noise(words: str) -> str:
    return json.dumps({"event": NOISE, "line": words})


def _sse(end: int, name: str, data: str) -> str:
    return f"id: {end}\nevent: {name}\ndata: {data}\n\n"
