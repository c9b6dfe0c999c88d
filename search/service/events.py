"""Live progress: the events that a search prints, streamed while they are written.

Everyone who follows a study shares one feed, which watches the file. A reader is an offset in it.
How far the running launches are is not in the file: only the latest state is sent.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from records.errors import CclsearchError

POLL_EVERY_S = 0.5
PROGRESS_EVERY = 2
"""Polls from one look at the running launches to the next."""
ALIVE_EVERY_S = 15.0
PIECE_BYTES = 1 << 16
MOST_LINE_BYTES = 1 << 20
"""A longer line is not an event; it is sent in parts, as noise."""
NOISE, END, PROGRESS = "noise", "end", "progress"
OURS = frozenset({END, PROGRESS})
"""Events that no search can print."""


class Feed:
    """The events of one study, for everyone who follows it; used by the event loop alone."""

    def __init__(
        self, path: Path, is_over: Callable[[], bool], progress: Callable[[], str]
    ) -> None:
        self.path = path
        self.progress = ""
        """How far the running launches are, as JSON; empty before the first look."""
        self.is_over = False
        """Whether the search has ended, so that the file no longer grows."""
        self.closes = False
        self.changed = asyncio.Event()
        """Set, and replaced by another, when the file grows or the search ends."""
        self._check_over = is_over
        self._read_progress = progress
        self._reading = asyncio.Lock()
        self._last_read = (-1, "", -1)

    async def read(self, offset: int) -> tuple[str, int]:
        """Return the next events as text, and the offset behind them.

        Readers at the same place share one look at the file.
        """
        async with self._reading:
            if self._last_read[0] != offset:
                text, end = await asyncio.to_thread(read_events, self.path, offset)
                if end == offset:
                    return "", offset
                self._last_read = offset, text, end
            return self._last_read[1:]

    async def watch(self) -> None:
        """Wake the readers whenever something changes; never return."""
        size, poll = -1, 0
        while True:
            before = size, self.is_over, self.progress
            over = await asyncio.to_thread(self._over)
            size = await asyncio.to_thread(line_start, self.path, 1 << 62)
            if not over and poll % PROGRESS_EVERY == 0:
                self.progress = await asyncio.to_thread(self._progress)
            self.is_over = over
            if before != (size, over, self.progress):
                self.notify()
            poll += 1
            await asyncio.sleep(POLL_EVERY_S)

    def close(self) -> None:
        """End all streams; the readers may connect to another service."""
        self.closes = True
        self.notify()

    def notify(self) -> None:
        """Wake all readers."""
        self.changed.set()
        self.changed = asyncio.Event()

    def _progress(self) -> str:
        try:
            return self._read_progress()
        except CclsearchError:
            return self.progress

    def _over(self) -> bool:
        try:
            return self._check_over()
        except CclsearchError:  # /health reports it; no stream ends because of it
            return False


class Feeds:
    """A feed for each study that has readers; used by the event loop alone."""

    def __init__(self) -> None:
        self._feeds: dict[Path, tuple[Feed, asyncio.Task[None]]] = {}
        self._readers: dict[Path, int] = {}
        self._closed = False

    @contextmanager
    def follow(
        self, path: Path, is_over: Callable[[], bool], progress: Callable[[], str] = str
    ) -> Iterator[Feed]:
        """Yield the feed of a file; it ends with its last reader."""
        if path not in self._feeds:
            feed = Feed(path, is_over, progress)
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
        """End all streams, now and later."""
        self._closed = True
        for feed, _ in self._feeds.values():
            feed.close()


async def stream_events(feed: Feed, offset: int) -> AsyncIterator[str]:
    """Yield server-sent events from a byte offset, or from -offset bytes before the end.

    The id of an event is the offset behind it, where a reader that reconnects continues. The last
    event is `end`, sent once the search has ended.
    """
    yield f"retry: {int(POLL_EVERY_S * 2000)}\n\n"
    offset = await asyncio.to_thread(line_start, feed.path, offset)
    progress = ""
    while not feed.closes:
        changed, over = feed.changed, feed.is_over
        text, end = await feed.read(offset)
        if end != offset:
            offset = end
            yield text
        elif progress != feed.progress:
            progress = feed.progress
            yield f"event: {PROGRESS}\ndata: {progress}\n\n"
        elif over:
            yield _sse(offset, END, "{}")
            return
        else:
            try:
                await asyncio.wait_for(changed.wait(), ALIVE_EVERY_S)
            except TimeoutError:
                yield ": alive\n\n"


def read_events(path: Path, offset: int) -> tuple[str, int]:
    """Return some whole lines from an offset on as events, and the offset behind them."""
    try:
        with path.open("rb") as file:
            file.seek(min(offset, os.fstat(file.fileno()).st_size))
            end = file.tell()
            piece = file.read(PIECE_BYTES)
            if b"\n" not in piece and len(piece) == PIECE_BYTES:
                piece += file.readline(MOST_LINE_BYTES - PIECE_BYTES)
    except OSError:
        return "", offset
    if len(piece) >= MOST_LINE_BYTES and not piece.endswith(b"\n"):
        end += len(piece)
        return _sse(end, NOISE, _noise("a very long line")), end
    events = list[str]()
    for line in piece.split(b"\n")[:-1]:
        end += len(line) + 1
        if line.strip():
            events.append(_sse(end, *_event(line)))
    return "".join(events), end


def line_start(path: Path, offset: int) -> int:
    """Return the offset limited to the file, or the start of the line -offset before the end."""
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
    """Return the name of an event and its data; any other line, as libraries print it, is noise."""
    text = line.decode("utf-8", "replace").replace("\r", " ")
    try:
        event = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return NOISE, _noise(text)
    name = event.get("event") if isinstance(event, dict) else None
    if isinstance(name, str) and name.isascii() and name.isidentifier() and name not in OURS:
        return name, text
    return NOISE, _noise(text)


def _refuse_constant(constant: str) -> None:
    """Refuse NaN and Infinity, which Python reads and browsers do not."""
    raise ValueError(constant)


def _noise(words: str) -> str:
    return json.dumps({"event": NOISE, "line": words})


def _sse(end: int, name: str, data: str) -> str:
    return f"id: {end}\nevent: {name}\ndata: {data}\n\n"
