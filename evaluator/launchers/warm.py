"""The process that has torch imported and forks ranks, as its supervisor sees it."""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypedDict

from evaluator.rank.confinement import die_with

FORK_LIMIT_S = 60.0
READ_BYTES = 1 << 16


class Answer(TypedDict):
    """The forked processes, or why there are none; neither when it has only become ready."""

    pids: list[int]
    error: str | None


class WarmProcess:
    """Started by its first use or before; knows which modules it has imported."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.modules = tuple(modules)
        self.ready = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open until the process has ended
        supervisor = os.getpid()
        # -P keeps a user's files of the same names out of its imports.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-m", "evaluator.rank.forkserver", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            bufsize=0,
            preexec_fn=lambda: die_with(supervisor),
        )
        self._pending = b""

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._process.pid

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def answer(self, wait_s: float) -> Answer | None:
        """The next thing it says, or None when nothing comes within `wait_s` or it has ended."""
        if self._process.stdout is None:
            raise ValueError("the pipe of its answers is not open")
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(wait_s):
                    return None
                data = os.read(self._process.stdout.fileno(), READ_BYTES)
                if not data:
                    return None
                self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        said: Answer = json.loads(line)
        return said

    def fork(self, request: Mapping[str, object]) -> Answer | None:
        """Ask for ranks, which become our children; None when it has ended."""
        if self._process.stdin is None:
            raise ValueError("the pipe of its requests is not open")
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        return self.answer(FORK_LIMIT_S)

    def end(self) -> str:
        """End it; gives the last line it wrote, or how it ended."""
        self._process.send_signal(signal.SIGKILL)
        status = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line), f"exit status {status}")
