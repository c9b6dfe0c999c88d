"""Reads trace files in processes side by side, each of which reads one after the other."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from tempfile import TemporaryDirectory

import msgspec

from evaluator.readers.columns import read_columns, read_header
from evaluator.readers.files import ReadLimits
from evaluator.readers.worker import Reply, Request
from evaluator.traces.errors import TraceError
from evaluator.traces.rank import RankTrace


def read_in_processes(
    files: Sequence[Path], limits: ReadLimits, *, use_cache: bool, count: int
) -> Generator[tuple[Path, tuple[RankTrace, ...]], None, None]:
    """Each file with its traces, the last ones first. Every process ends with this iterator.

    Raises TraceError for the first file that is refused, or whose process ends on its own.
    """
    waiting = list(files)
    with ExitStack() as opened, DefaultSelector() as selector:
        try:
            folder = Path(opened.enter_context(TemporaryDirectory(prefix="cclsearch-")))
            for number in range(min(count, len(files))):
                process = _Process(folder / str(number), limits, use_cache)
                opened.callback(process.end)
                selector.register(process.replies, EVENT_READ, process)
        except OSError as error:
            raise TraceError(
                waiting[-1], f"no process can be started to read it: {error}"
            ) from error
        for key in selector.get_map().values():
            key.data.begin(waiting.pop())
        while selector.get_map():
            for key, _ in selector.select():
                process = key.data
                file, traces = process.finish()
                if waiting:
                    process.begin(waiting.pop())
                else:
                    selector.unregister(process.replies)
                yield file, traces


class _Process:
    """A process that reads files on request; it dies with this one."""

    def __init__(self, place: Path, limits: ReadLimits, use_cache: bool) -> None:
        self._columns = place.with_suffix(".columns")
        self._log = place.with_suffix(".log")
        self._limits = limits
        self._use_cache = use_cache
        self._file = place
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "evaluator.readers.worker", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self.replies = self._process.stdin, self._process.stdout

    def begin(self, file: Path) -> None:
        """Have a file read; its reply can be read when it is."""
        self._file = file
        request = Request(
            os.fsencode(file), self._limits, self._use_cache, os.fsencode(self._columns)
        )
        with suppress(BrokenPipeError):  # the missing reply tells
            self._requests.write(msgspec.json.encode(request) + b"\n")
            self._requests.flush()

    def finish(self) -> tuple[Path, tuple[RankTrace, ...]]:
        """The traces of the file."""
        line = self.replies.readline()
        if not line.endswith(b"\n"):
            raise TraceError(self._file, self._end_in_words())
        reply = msgspec.json.decode(line, type=Reply)
        if reply.columns is None:
            raise TraceError(self._file, reply.refusal)
        try:
            with Path(os.fsdecode(reply.columns)).open("rb") as columns:
                return self._file, read_columns(columns, read_header(columns))
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise TraceError(self._file, f"what was read of it is lost: {error}") from error
        finally:
            self._columns.unlink(missing_ok=True)

    def end(self) -> None:
        """Kill it, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._requests.close()
        self.replies.close()

    def _end_in_words(self) -> str:
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return "the process that read it was killed, as happens when memory runs out"
        if code < 0:
            return f"the process that read it was ended by {signal.Signals(-code).name}"
        said = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"the process that read it failed: {said[-1] if said else f'exit code {code}'}"
