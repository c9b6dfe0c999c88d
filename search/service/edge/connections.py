"""Connections that nobody can hold for nothing: who asks nothing or reads nothing is let go.

Where there are too many, the one that has been idle longest gives way, so that whoever asks is
still heard.
"""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

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
