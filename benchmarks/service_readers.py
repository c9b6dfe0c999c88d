"""Readers of the service: many open pages, each on connections of its own, in one thread."""

import asyncio
import itertools
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from search.remote.connection import API, address_of

EVERY_S = 1.0
LOWEST_PRIORITY = 19
OTHERS_EVERY = 10
"""A reader asks for something else than the study each so many times."""
HEAD_BYTES = 1 << 16


@dataclass
class Readers:
    """So many readers of a study, who come and go together; what they waited, by what for."""

    link: str
    study_id: str
    count: int
    waited_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    wrong: int = 0
    events: int = 0

    def __post_init__(self) -> None:
        address, self._token = address_of(self.link)
        at = urlsplit(address)
        self._host, self._port = str(at.hostname), int(at.port or 80)
        self._loop = asyncio.new_event_loop()
        self._clock_id = 0
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        self._clock_id = time.pthread_getcpuclockid(threading.get_ident())
        self._loop.call_soon(started.set)
        self._loop.run_forever()

    def close(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cpu_s(self) -> float:
        """Seconds of a core that the readers took so far."""
        return time.clock_gettime(self._clock_id)

    @contextmanager
    def reading(self, followed: str) -> Iterator[None]:
        """Read for as long as this lasts; every other reader follows a study's events, too."""
        work = asyncio.run_coroutine_threadsafe(self._all(followed), self._loop)
        try:
            yield
        finally:
            work.cancel()
            done = asyncio.run_coroutine_threadsafe(asyncio.sleep(0.1), self._loop)
            done.result()

    async def _all(self, followed: str) -> None:
        """Readers open their pages one after the other within a second."""
        async with asyncio.TaskGroup() as group:
            for number in range(self.count):
                group.create_task(self._reader(number))
                if number % 2:
                    group.create_task(self._follower(f"{API}/studies/{followed}/events", number))

    async def _reader(self, number: int) -> None:
        study = f"{API}/studies/{self.study_id}"
        others = itertools.cycle(
            [
                ("history", f"{study}/history"),
                ("trials", f"{study}/trials?limit=100&sort=score"),
                ("studies", f"{API}/studies"),
            ]
        )
        tags: dict[str, str] = {}
        await asyncio.sleep(EVERY_S * number / self.count)
        with closing(await self._opened()) as connection:
            for turn in itertools.count(number):
                began = time.perf_counter()
                await self._asked(connection, "study", study, tags)
                if turn % OTHERS_EVERY == 0:
                    await self._asked(connection, *next(others), tags)
                await asyncio.sleep(max(0.0, EVERY_S - (time.perf_counter() - began)))

    async def _asked(
        self, connection: "Connection", name: str, path: str, tags: dict[str, str]
    ) -> None:
        """Ask as a browser does: what it has already is not sent again."""
        began = time.perf_counter()
        known = f"if-none-match: {tags[path]}\r\n" if path in tags else ""
        connection.writer.write(self._request(path, known))
        head = (await connection.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = re.search(r"^content-length: (\d+)", head, re.MULTILINE)
        body = await connection.reader.readexactly(int(length[1])) if length else b""
        self.waited_s[name].append(time.perf_counter() - began)
        status = head.split()[1]
        self.wrong += not (status == "304" or (status == "200" and body.endswith((b"}", b"]"))))
        if tag := re.search(r"^etag: (\S+)", head, re.MULTILINE):
            tags[path] = tag[1]

    async def _follower(self, path: str, number: int) -> None:
        await asyncio.sleep(EVERY_S * number / self.count)
        with closing(await self._opened()) as connection:
            connection.writer.write(self._request(path, ""))
            while piece := await connection.reader.read(HEAD_BYTES):
                self.events += piece.count(b"event: ")

    def _request(self, path: str, more: str) -> bytes:
        head = f"GET {path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n"
        return f"{head}authorization: Bearer {self._token}\r\n{more}\r\n".encode()

    async def _opened(self) -> "Connection":
        return Connection(*await asyncio.open_connection(self._host, self._port, limit=1 << 20))


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection of a page."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def close(self) -> None:
        """Close it as a page that is left does."""
        with suppress(ConnectionError):
            self.writer.close()
