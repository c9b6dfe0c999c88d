"""The listening socket, and the uvicorn server that runs on it with a lower priority."""

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from evaluator.rank.protocol import AUTOGROUP
from records.errors import EnvironmentFault
from search.service.config import Listen
from search.views.html import printable

IDLE_S = 30
MOST_CONNECTIONS = 3000
GRACE_S = 3
NICENESS, LEAST_PRIORITY = 10, 19
SESSION_ATTEMPTS = 20
"""Linux lets unprivileged processes change a value every 0.1 s, all of them together."""
WAITING_CONNECTIONS = 512
MOST_HEAD_BYTES = 1 << 15
OWN_FILES = 2000
"""Open files for the store, the queue and the output of searches."""


class PlainLines(logging.Formatter):
    """Formats log lines without terminal control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line with unprintable characters replaced."""
        return printable(super().format(record))


class _Server(uvicorn.Server):
    """A server that yields the processor to searches on the same machine."""

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop
        self._session_before = NICENESS

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then lower the priority of this thread and of those it starts later.

        The scheduler thread runs already, so the searches that it starts do not inherit this.
        """
        await super().startup(sockets)
        if not self.started:  # `shutdown` does not follow
            return
        now = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, min(LEAST_PRIORITY, now + NICENESS))
        self._session_before = _session_priority()
        await self._set_session_priority(NICENESS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish the responses under way and stop."""
        self._on_stop()
        try:
            await super().shutdown(sockets)
        finally:
            await self._set_session_priority(self._session_before)

    async def _set_session_priority(self, niceness: int) -> None:
        """Set the priority of this session, unless it was as low before this server started.

        Then another service in the same session has lowered it, and restores it.
        """
        if self._session_before >= NICENESS:
            return
        for _ in range(SESSION_ATTEMPTS):
            try:
                AUTOGROUP.write_text(str(niceness), encoding="ascii")
            except BlockingIOError:
                await asyncio.sleep(0.1)
            except OSError:  # the kernel does not group sessions, or refuses
                return
            else:
                return


def _session_priority() -> int:
    """Return the scheduling priority of this session; 0 where Linux does not group sessions.

    Searches run in separate sessions, and a thread's priority counts only within its session.
    """
    try:
        return int(AUTOGROUP.read_text(encoding="ascii").rpartition(" ")[2])
    except (OSError, ValueError):
        return 0


def server_of(app: ASGIApp, listen: Listen, on_stop: Callable[[], None]) -> uvicorn.Server:
    """Return the server of an application, to run on a socket from `listening`.

    Requests are not logged: their addresses may hold tokens. `on_stop` is called in the event loop
    before shutdown and should end the responses that never end by themselves.
    """
    logging.getLogger("uvicorn.access").disabled = True
    return _Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            log_config=None,
            server_header=False,
            # Without a proxy any local process could claim any client address.
            proxy_headers=listen.https,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=GRACE_S,
            backlog=WAITING_CONNECTIONS,
            limit_concurrency=MOST_CONNECTIONS,
            h11_max_incomplete_event_size=MOST_HEAD_BYTES,
        ),
        on_stop,
    )


def log_plainly() -> None:
    """Print warnings of uvicorn and of cclsearch to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(PlainLines("%(asctime)s %(levelname)s %(message)s"))
    for name in ("uvicorn.error", "search"):
        log = logging.getLogger(name)
        log.handlers, log.propagate = [handler], False
        log.setLevel(logging.WARNING)


def allow_many_files() -> None:
    """Raise the limit of open files to fit all connections, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + OWN_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextmanager
def listening(listen: Listen) -> Iterator[socket.socket]:
    """Yield a socket bound to the configured address; raise `EnvironmentFault` if it is in use."""
    family = socket.AF_INET6 if ":" in listen.address else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets whose protocol is named.
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
