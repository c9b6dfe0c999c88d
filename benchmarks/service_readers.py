"""Readers of the service: many open pages, each on connections of its own, in one thread."""

import asyncio
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from search.client.client import API, address_of

EVERY_S = 1.0
LOWEST_PRIORITY = 19
OTHERS_EVERY = 10
"""A reader asks for something else than the study each so many times."""
OTHERS = {
    "history": "{study}/history",
    "trials": "{study}/trials?limit=100&sort=score",
    "studies": f"{API}/studies",
}
HEAD_BYTES = 1 << 16


@dataclass
class Readers:
    """So many readers of a study, who ask and rest together; what they waited, by what for."""

    link: str
    study_id: str
    count: int
    waited_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    wrong: int = 0
    events: int = 0
    _pages: list["Page"] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _turn: int = 0

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
        """Leave every page and end the thread."""
        asyncio.run_coroutine_threadsafe(self._leave(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cpu_s(self) -> float:
        """Seconds of a core that the readers took so far."""
        return time.clock_gettime(self._clock_id)

    def open_pages(self, followed: str) -> None:
        """Open every reader's page; every other one follows the events of a study from now on."""
        asyncio.run_coroutine_threadsafe(self._open(followed), self._loop).result()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let readers ask for as long as this lasts; then their pages stay open and ask nothing."""
        work = asyncio.run_coroutine_threadsafe(self._ask_in_turns(), self._loop)
        try:
            yield
        finally:
            work.cancel()

    async def _open(self, followed: str) -> None:
        self._pages = [Page(number, await self._opened()) for number in range(self.count)]
        for _ in range(self.count // 2):
            connection = await self._opened()
            connection.writer.write(self._request(f"{API}/studies/{followed}/events"))
            self._start(self._follow(connection))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for page in self._pages:
            page.connection.close()

    async def _ask_in_turns(self) -> None:
        """Each reader asks once in `EVERY_S`, evenly spread; one who still waits is passed over."""
        due_s = time.perf_counter()
        while True:
            page = self._pages[self._turn % self.count]
            if not page.asks.locked():
                self._start(self._ask(page))
            self._turn += 1
            due_s += EVERY_S / self.count
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))

    async def _ask(self, page: "Page") -> None:
        async with page.asks:
            study = f"{API}/studies/{self.study_id}"
            await self._asked(page, "study", study)
            page.turns += 1
            others, rest = divmod(page.number + page.turns, OTHERS_EVERY)
            if not rest:
                name = list(OTHERS)[others % len(OTHERS)]
                await self._asked(page, name, OTHERS[name].format(study=study))

    async def _asked(self, page: "Page", name: str, path: str) -> None:
        began = time.perf_counter()
        reader, writer = page.connection.reader, page.connection.writer
        writer.write(self._request(path))
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = re.search(r"^content-length: (\d+)", head, re.MULTILINE)
        body = await reader.readexactly(int(length[1])) if length else b""
        self.waited_s[name].append(time.perf_counter() - began)
        status = head.split()[1]
        self.wrong += not (status == "200" and body.endswith((b"}", b"]")))

    async def _follow(self, connection: "Connection") -> None:
        try:
            while piece := await connection.reader.read(HEAD_BYTES):
                self.events += piece.count(b"event: ")
        finally:
            connection.close()

    def _request(self, path: str) -> bytes:
        head = f"GET {path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n"
        return f"{head}authorization: Bearer {self._token}\r\n\r\n".encode()

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


@dataclass(slots=True)
class Page:
    """An open page: its connection, what it has already, and whether it waits for an answer."""

    number: int
    connection: Connection
    turns: int = 0
    asks: asyncio.Lock = field(default_factory=asyncio.Lock)
