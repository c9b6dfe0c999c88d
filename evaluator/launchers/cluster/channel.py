"""A connection between a search and an agent: authenticated by a secret, with JSON for messages.

Standard library only: agents travel without anything else.
"""

import json
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import TypeAlias

STALL_LIMIT_S = 30
"""How long the other end may take over one message, or to show that it has the secret."""
MOST_BYTES = 64 << 20
_LENGTH = struct.Struct(">I")

Message: TypeAlias = dict[str, object]
"""A JSON object, checked where it is used."""


class ChannelLost(Exception):
    """The other end is gone, stalls, or sends what is no message."""


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Where agents of one request find the search, as their file says.

    Without a word from the search for `silence_s` it is taken for gone; agents then wait `grace_s`
    for it to come back. `version` is that of the agent which the request started.
    """

    name: str
    addresses: tuple[str, ...]
    port: int
    secret: str = field(repr=False)
    version: str
    grace_s: float = 60.0
    silence_s: float = 30.0

    @classmethod
    def of(cls, text: str) -> "Meeting":
        """Read what `text` has; raises `ValueError` for anything else."""
        try:
            given = json.loads(text)
            return cls(**{**given, "addresses": tuple(given["addresses"])})
        except (TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"no file of a meeting: {error}") from error

    @property
    def text(self) -> str:
        """What `of` reads."""
        return json.dumps(vars(self))


class Channel:
    """One connection; several threads may send, one receives.

    Raises `ChannelLost`, also where the other end does not have the secret.
    """

    def __init__(self, connected: socket.socket, secret: str, *, answers: bool) -> None:
        self._sending = threading.Lock()
        self.own_address: str = connected.getsockname()[0].removeprefix("::ffff:")
        connected.settimeout(None)
        limit = struct.pack("ll", STALL_LIMIT_S, 0)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connected.setsockopt(socket.SOL_SOCKET, option, limit)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = Connection(connected.detach())
        steps = (answer_challenge, deliver_challenge)
        try:
            for step in steps if answers else reversed(steps):
                step(self._connection, secret.encode())
        except (AuthenticationError, AssertionError, EOFError, OSError, ValueError) as error:
            self.close()
            raise ChannelLost(str(error) or type(error).__name__) from error

    @classmethod
    def to(cls, address: str, port: int, secret: str, limit_s: float) -> "Channel":
        """Connect to who listens there."""
        try:
            return cls(socket.create_connection((address, port), limit_s), secret, answers=True)
        except OSError as error:
            raise ChannelLost(f"{address}:{port}: {error.strerror or error}") from error

    def fileno(self) -> int:
        """Return what becomes readable when there is a message, or the other end is gone."""
        return self._connection.fileno()

    def send(self, message: Mapping[str, object], data: bytes = b"") -> None:
        """Send one message, and bytes with it."""
        text = json.dumps(message).encode()
        try:
            with self._sending:
                self._connection.send_bytes(_LENGTH.pack(len(text)) + text + data)
        except OSError as error:
            raise ChannelLost(str(error)) from error

    def receive(self) -> tuple[Message, bytes]:
        """Wait for the next message; return it and the bytes with it."""
        try:
            whole = self._connection.recv_bytes(MOST_BYTES)
            (length,) = _LENGTH.unpack_from(whole)
            end = _LENGTH.size + length
            message = json.loads(whole[_LENGTH.size : end])
        except (EOFError, OSError, ValueError, RecursionError, struct.error) as error:
            raise ChannelLost(str(error) or "its connection was closed") from error
        if not isinstance(message, dict):
            raise ChannelLost("it sends no messages")
        return message, whole[end:]

    def close(self) -> None:
        """Close this end."""
        with suppress(OSError):
            self._connection.close()
