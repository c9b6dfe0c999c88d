"""What the processes of a job print: read from a pipe, kept in a file of bounded size."""

import os
from collections import deque
from contextlib import suppress
from fcntl import F_SETPIPE_SZ, fcntl
from pathlib import Path

HEAD_BYTES = 8 << 20
TAIL_BYTES = 1 << 20
READ_BYTES = 1 << 18
PIPE_BYTES = 1 << 20


class Log:
    """The first and the last part of what is written to a named pipe.

    The head is in the file as it arrives; the tail is added at the end, after a line that says how
    much was left out between them. Nobody waits for a slow disk longer than the pipe is deep.
    """

    def __init__(self, pipe: Path, path: Path) -> None:
        os.mkfifo(pipe, 0o600)
        # Open for writing too, so that it never ends while writers come and go.
        self.fileno = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        with suppress(OSError):  # the user's share of large pipes may be used up
            fcntl(self.fileno, F_SETPIPE_SZ, PIPE_BYTES)
        self._path = path
        self._head_bytes = 0
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._left_out_bytes = 0

    def take(self) -> bool:
        """Take what is in the pipe, or a part of it; False if there is nothing."""
        with suppress(BlockingIOError):
            self._keep(os.read(self.fileno, READ_BYTES))
            return True
        return False

    def close(self) -> None:
        """Take the rest, once nobody writes any more, and add the tail to the file."""
        while self.take():
            pass
        os.close(self.fileno)
        if self._left_out_bytes:
            self._write(f"\n[{self._left_out_bytes} bytes were left out here]\n".encode())
        for piece in self._tail:
            self._write(piece)

    def _keep(self, piece: bytes) -> None:
        head = piece[: HEAD_BYTES - self._head_bytes]
        if head:
            self._write(head)
            self._head_bytes += len(head)
        rest = piece[len(head) :]
        if not rest:
            return
        self._tail.append(rest)
        self._tail_bytes += len(rest)
        while self._tail_bytes - len(self._tail[0]) >= TAIL_BYTES:
            dropped = len(self._tail.popleft())
            self._tail_bytes -= dropped
            self._left_out_bytes += dropped

    def _write(self, piece: bytes) -> None:
        with suppress(OSError), self._path.open("ab") as file:  # a full disk ends no watch
            file.write(piece)
