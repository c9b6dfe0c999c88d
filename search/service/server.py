"""uvicorn server and sockets.

Connections that nobody can hold for nothing: who asks nothing or reads nothing is let go.

Where there are too many, the one that has been idle longest gives way, so that whoever asks is
still heard.

The edge to the network: the socket that is listened at, and the server behind it.
"""

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from records.errors import EnvironmentFault
from search.service.config import Listen
from search.views.html import plain

IDLE_S = 30.0
"""For the whole head of a request to arrive, the first or the next one."""
STALLED_S = 60.0
"""For a reader to take some of what waits for it."""
MOST_CONNECTIONS = 2000
"""Beyond it the idle give way; when they are gone, only one round of new ones may be too many."""
ANSWERING = frozenset({h11.SEND_RESPONSE, h11.SEND_BODY})


class PatientProtocol(H11Protocol):
    """HTTP/1.1 in which every wait for the other side has an end."""

    idle_since_s: float | None = None
    """When the connection began to wait for a request; None while one is answered."""
    _idle: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request; one who waited too long makes room."""
        super().connection_made(transport)
        self.access_log = False  # addresses may hold tokens, whoever would log them
        self._watch()
        if len(self.connections) >= MOST_CONNECTIONS:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """Take what came; the head of a request must be whole before its time is up."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """Stop producing: the reader is slower; it has some time to go on."""
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on producing."""
        super().resume_writing()
        self._end_stall()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._end_idling()
        self._end_stall()

    def let_go(self) -> None:
        """Close a connection that waits; whatever it has not read yet is dropped."""
        self._end_idling()
        self.transport.abort()

    def _watch(self) -> None:
        if self.conn.our_state in ANSWERING:
            self._end_idling()
        elif self._idle is None:
            self.idle_since_s = self.loop.time()
            self._idle = self.loop.call_later(IDLE_S, self.let_go)

    def _end_idling(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle, self.idle_since_s = None, None

    def _end_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        self._stalled = None

    def _make_room(self) -> None:
        waiting = [
            (one.idle_since_s, id(one), one)
            for one in self.connections
            if isinstance(one, PatientProtocol) and one.idle_since_s is not None
        ]
        if waiting:
            min(waiting)[2].let_go()


GRACE_S = 3
NICENESS, LEAST_PRIORITY = 10, 19
AUTOGROUP = Path("/proc/self/autogroup")
WAITING_CONNECTIONS = 512
MOST_HEAD_BYTES = 1 << 15
OWN_FILES = 2000
"""For the records, the queue and what searches print, beside one for each connection."""


class PlainLines(logging.Formatter):
    """Lines of a log in which nothing can steer the terminal that shows them."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, with a mark in the place of whatever cannot be printed."""
        return plain(super().format(record))


class _Server(uvicorn.Server):
    """A server that steps back behind the searches on its machine."""

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop
        self._session_before = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and then give searches the right of way.

        That holds for this thread and those it starts from here on, not for the keeper: what that
        one starts, the searches, would inherit it.
        """
        await super().startup(sockets)
        now = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, min(LEAST_PRIORITY, now + NICENESS))
        self._session_before = _session_priority()
        _set_session_priority(NICENESS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let the last answers out, and end."""
        self._on_stop()
        await super().shutdown(sockets)
        _set_session_priority(self._session_before)


def _session_priority() -> int:
    """The priority of this session among others; 0 where Linux does not share cores between them.

    Searches have sessions of their own, and the priority of a thread counts within its own alone.
    """
    try:
        return int(AUTOGROUP.read_text(encoding="ascii").rpartition(" ")[2])
    except (OSError, ValueError):
        return 0


def _set_session_priority(niceness: int) -> None:
    with suppress(OSError):  # the kernel groups no sessions, or refuses
        AUTOGROUP.write_text(str(niceness), encoding="ascii")


def server_of(app: ASGIApp, listen: Listen, on_stop: Callable[[], None]) -> uvicorn.Server:
    """The server of an application; it runs over sockets that `listening` opened.

    Requests are not logged: their addresses may hold tokens. `on_stop` is called in the event loop
    once it is to end, and should send those away who stay.
    """
    return _Server(
        uvicorn.Config(
            app,
            http=PatientProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            # Whoever is on this machine could name any address, unless a proxy of ours does.
            proxy_headers=listen.https,
            timeout_keep_alive=int(IDLE_S),
            timeout_graceful_shutdown=GRACE_S,
            backlog=WAITING_CONNECTIONS,
            limit_concurrency=MOST_CONNECTIONS + 2 * WAITING_CONNECTIONS,
            h11_max_incomplete_event_size=MOST_HEAD_BYTES,
        ),
        on_stop,
    )


def log_plainly() -> None:
    """Print warnings of the server, and of ours, to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(PlainLines("%(asctime)s %(levelname)s %(message)s"))
    for name in ("uvicorn.error", "search"):
        log = logging.getLogger(name)
        log.handlers, log.propagate = [handler], False
        log.setLevel(logging.WARNING)


def allow_many_files() -> None:
    """Let this process have a file for each connection, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + OWN_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextmanager
def listening(listen: Listen) -> Iterator[socket.socket]:
    """A socket at the configured address and port; raises `EnvironmentFault` if it is taken."""
    family = socket.AF_INET6 if ":" in listen.address else socket.AF_INET
    # Told by its protocol: of others asyncio does not turn off the wait for fuller packets.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as at:
        at.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            at.bind((listen.address, listen.port))
        except OSError as error:
            raise EnvironmentFault(
                f"cannot listen at {listen.address} port {listen.port}: {error.strerror}; "
                "give another with --port"
            ) from error
        at.listen(WAITING_CONNECTIONS)
        yield at
