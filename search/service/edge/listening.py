"""The edge to the network: the socket that is listened at, and the server behind it."""

import logging
import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from records.errors import EnvironmentFault
from search.report_page.plain import plain
from search.service.config import Listen
from search.service.edge.connections import IDLE_S, MOST_CONNECTIONS, PatientProtocol

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
