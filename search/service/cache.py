"""Response and value cache.

Answers that many readers ask for at once, made once.

Every open page asks for the same few things again and again. What was answered last is sent again
until the records or the queue have changed, and for a second at most: what is not on record, such
as a lock that was let go, shows by then. Whoever has it already is told only that.

What is kept of things made that cost something, until what they depend on has changed.
"""

import asyncio
import re
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Generic, TypeVar

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from search.service.auth import Caller

ASKED_BY_MANY = re.compile(
    r"/api/v1/(leaderboard|studies(/[^/]+(/(history|front|knobs|policies|trials(/\d+)?))?)?)"
)
LONGEST_S = 1.0
MOST_ANSWERS = 256
MOST_BYTES = 1 << 18
SEEN, JSON = b"if-none-match", b"application/json"

Version = tuple[int, ...]


class Remembered:
    """An application whose answers to readers are sent again while nothing has changed.

    It stands behind whatever lets requests in: who has the same role is answered the same.
    """

    def __init__(self, app: ASGIApp, *, databases: Sequence[Path]) -> None:
        self._app = app
        self._versions = [_Version(path) for path in databases]
        self._places: OrderedDict[tuple[object, ...], _Place] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer again, or pass the request on."""
        version = self._version(scope)
        if version is None:
            await self._app(scope, receive, send)
            return
        place, seen = self._place(scope), _seen(scope)
        async with place.turn:  # who asks meanwhile waits for the same answer
            answer = place.kept(version)
            if answer is None:
                answer = _Answer()
                await self._app(_without(scope, SEEN), receive, answer.take)
                place.keep(version, answer)
        await answer.send(seen, send)

    def _version(self, scope: Scope) -> Version | None:
        """What answers depend on; None for requests that are not for many, and without records."""
        if scope["type"] != "http" or scope["method"] != "GET":
            return None
        if ASKED_BY_MANY.fullmatch(scope["path"]) is None:
            return None
        found = [version.now() for version in self._versions]
        return None if None in found else tuple(one for one in found if one is not None)

    def _place(self, scope: Scope) -> "_Place":
        caller: Caller | None = scope.get("state", {}).get("caller")
        key = (caller and caller.role, scope["path"], scope["query_string"])
        place = self._places.setdefault(key, _Place())
        self._places.move_to_end(key)
        while len(self._places) > MOST_ANSWERS:
            self._places.popitem(last=False)
        return place


@dataclass(slots=True)
class _Answer:
    """An answer as the application gave it."""

    start: Message = field(default_factory=dict)
    body: bytes = b""
    tag: bytes = b""
    """What names exactly this content."""

    async def take(self, message: Message) -> None:
        """The next message of the application."""
        if message["type"] == "http.response.start":
            self.start = message
        else:
            self.body += message.get("body", b"")
            if not message.get("more_body", False):
                digest = sha256(self.body).hexdigest()[:32].encode()
                self.tag = self.headers.get(b"etag") or b'"%s"' % digest

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """Its headers, by their names in lower case."""
        return dict(self.start["headers"])

    @property
    def can_be_kept(self) -> bool:
        """Whether it says something that others may want, too."""
        is_json = self.headers.get(b"content-type", b"").startswith(JSON)
        return self.start["status"] == 200 and is_json and len(self.body) <= MOST_BYTES

    async def send(self, seen: bytes, send: Send) -> None:
        """Send it, or that it is what the reader has."""
        if self.start["status"] != 200:
            await send(_copy(self.start))
            await send({"type": "http.response.body", "body": self.body})
            return
        has_it = self.tag in seen
        start = _copy(self.start, status=304) if has_it else _copy(self.start)
        headers = MutableHeaders(scope=start)
        headers["etag"] = self.tag.decode("latin-1")
        headers["cache-control"] = "private, no-cache"
        if has_it:
            del headers["content-length"]
        await send(start)
        await send({"type": "http.response.body", "body": b"" if has_it else self.body})


@dataclass(slots=True)
class _Place:
    """Where the last answer to one question is."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    answer: _Answer | None = None
    version: Version = ()
    at_s: float = 0.0

    def kept(self, version: Version) -> _Answer | None:
        """The answer, where it is still right."""
        is_right = self.version == version and monotonic() - self.at_s < LONGEST_S
        return self.answer if is_right else None

    def keep(self, version: Version, answer: _Answer) -> None:
        """Put an answer here that others may want."""
        self.answer = answer if answer.can_be_kept else None
        self.version, self.at_s = version, monotonic()


class _Version:
    """A number that changes whenever anybody else writes to a database."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None

    def now(self) -> int | None:
        """The number; None where it cannot be told, without ever waiting for a writer."""
        with suppress(sqlite3.Error):
            if self._db is None:
                address = f"{self._path.absolute().as_uri()}?mode=ro"
                self._db = sqlite3.connect(address, uri=True, timeout=0, check_same_thread=False)
            (number,) = self._db.execute("PRAGMA data_version").fetchone()
            return int(number)
        return None


def _seen(scope: Scope) -> bytes:
    return b",".join(value for name, value in scope["headers"] if name == SEEN)


def _without(scope: Scope, left_out: bytes) -> Scope:
    headers = [(name, value) for name, value in scope["headers"] if name != left_out]
    return {**scope, "headers": headers}


def _copy(start: Message, **changed: object) -> Message:
    return {**start, **changed, "headers": [*start["headers"]]}


T = TypeVar("T")


class Kept(Generic[T]):
    """The latest values by key, each made by one thread while the others wait for it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._slots: OrderedDict[Hashable, _Slot[T]] = OrderedDict()

    def get(self, key: Hashable, version: Hashable, make: Callable[[], T]) -> T:
        """The value of this version, made now unless it is there."""
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
            while len(self._slots) > self._most:
                self._slots.popitem(last=False)
        with slot.lock:
            if slot.made is None or slot.made[0] != version:
                slot.made = version, make()
            return slot.made[1]


@dataclass(slots=True)
class _Slot(Generic[T]):
    lock: Lock = field(default_factory=Lock)
    made: tuple[Hashable, T] | None = None
