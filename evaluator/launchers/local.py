"""Runs jobs on this machine, its ranks forked from a warm process."""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from evaluator.job import Job, JobResult, RankExit
from evaluator.ports import PhaseListener
from records.errors import EnvironmentFault

GRACE_S = 1.0
START_LIMIT_S = 120.0
OVERRUN_S = 15.0
EXIT_LIMIT_S = 10.0
POLL_S = 0.05
PROGRESS_READ_BYTES = 1 << 20


class Ready(msgspec.Struct, frozen=True, tag_field="event", tag="ready"):
    """The warm process has imported what it was asked to."""


class Ended(msgspec.Struct, frozen=True, tag_field="event", tag="ended"):
    """How a job ended, as the warm process saw it."""

    reason: Literal["finished", "rank_failed", "timeout"]
    ranks: tuple[RankExit, ...]
    wall_s: float
    memory_kill_count: int | None


class LocalLauncher:
    """Starts the warm process on first use and again whenever it was lost.

    `environment` is all that ranks see of ours; the caller has taken the secrets out. To it come
    thread counts, and in each rank RANK, LOCAL_RANK, WORLD_SIZE and CCLSEARCH_INIT_METHOD.
    """

    def __init__(self, environment: Mapping[str, str], threads_per_rank: int) -> None:
        threads = str(threads_per_rank)
        self._environment = {
            **environment,
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            # It starts its threads when it is imported; after that nothing can be forked safely.
            "OPENBLAS_NUM_THREADS": "1",
        }
        self._server: _ForkServer | None = None

    def run(self, job: Job, workdir: Path, on_phase: PhaseListener) -> JobResult:
        """Run a job; a Ctrl-C or any other exception kills its ranks before it leaves."""
        for name, text in job.files.items():
            (workdir / name).write_text(text, encoding="utf-8")
        try:
            server = self._warm(job.module)
            started = time.monotonic()
            ended = _follow(server, job, workdir, on_phase)
        except BaseException:
            self.close()
            raise
        if ended is None:
            self._server = None
            return JobResult(
                workdir=workdir,
                reason="launcher_lost",
                ranks=(),
                wall_s=time.monotonic() - started,
                message=f"the process that forks the ranks was lost: {server.end()}",
            )
        return JobResult(
            workdir=workdir,
            reason=ended.reason,
            ranks=ended.ranks,
            wall_s=ended.wall_s,
            memory_kill_count=ended.memory_kill_count,
        )

    def close(self) -> None:
        """End the warm process and with it every rank."""
        if self._server is not None:
            self._server.end()
            self._server = None

    def _warm(self, module: str) -> "_ForkServer":
        if self._server is None or not self._server.serves(module):
            self.close()
            self._server = server = _ForkServer(module, self._environment)
            if not server.await_ready():
                self._server = None
                raise EnvironmentFault(
                    f"ranks cannot be started here: {server.end()}; "
                    "is torch installed in this environment?"
                )
        return self._server


class _ForkServer:
    """The warm process as seen from here: requests in, events out."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._module = module
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open until the process has ended
        # A session of its own keeps the terminal's Ctrl-C from the ranks; -P keeps a user's files
        # of the same names out of its imports.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-m", "evaluator.rank.forkserver", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=dict(environment),
            start_new_session=True,
            bufsize=0,
        )
        self._pending = b""

    def serves(self, module: str) -> bool:
        """Whether it is alive and has the module imported."""
        return self._module == module and self._process.poll() is None

    def await_ready(self) -> bool:
        """Wait until torch is imported; False when that ended the process."""
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            for event in self.events(POLL_S):
                return event is not None
        raise EnvironmentFault(f"ranks cannot be started: torch took over {START_LIMIT_S:g} s")

    def ask(self, message: Mapping[str, object]) -> None:
        """Send one request line; nobody hears it when the process is gone."""
        if self._process.stdin is None:
            raise ValueError("the request pipe is not open")
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")

    def events(self, wait_s: float) -> Iterator[Ready | Ended | None]:
        """Events that arrive within `wait_s`; None when the process is gone."""
        if self._process.stdout is None:
            raise ValueError("the event pipe is not open")
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(wait_s):
                return
        data = self._process.stdout.read(1 << 16)
        if not data:
            yield None
            return
        *lines, self._pending = (self._pending + data).split(b"\n")
        yield from (msgspec.json.decode(line, type=Ready | Ended) for line in lines)

    def end(self) -> str:
        """End it and all it started; gives the last line it wrote, or how it ended.

        It kills its ranks when its input closes; when it was killed itself, they are killed here.
        """
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            status = self._process.wait(EXIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        if status != 0:
            _end_session(self._process.pid)
        if self._process.stdout is not None:
            self._process.stdout.close()
        with self._errors as errors:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else f"exit status {status}"


def _end_session(session: int) -> None:
    """Kill what is left of a session whose leader is gone, and wait until nothing is left."""
    deadline = time.monotonic() + EXIT_LIMIT_S
    while time.monotonic() < deadline and (members := list(_session_members(session))):
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)


def _session_members(session: int) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended while we looked
            # The name, in parentheses, may hold anything; after it: state, parent, group, session.
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if fields[0] != "Z" and int(fields[3]) == session:
                yield int(path.parent.name)


def _request(job: Job, workdir: Path) -> dict[str, object]:
    return {
        "folder": str(workdir.absolute()),
        "job": "job.json",
        "world_size": job.world_size,
        "environment": dict(job.environment),
        "timeout_s": job.timeout_s,
        "grace_s": GRACE_S,
    }


def _follow(server: _ForkServer, job: Job, workdir: Path, on_phase: PhaseListener) -> Ended | None:
    """Start a job and pass its phases on until it ended; None when the server is lost or late."""
    server.ask(_request(job, workdir))
    deadline = time.monotonic() + job.timeout_s + GRACE_S + OVERRUN_S
    phases = _Phases(workdir / "progress.jsonl")
    while time.monotonic() < deadline:
        events = list(server.events(POLL_S))
        for phase in phases.entered():
            on_phase(phase)
        for event in events:
            if not isinstance(event, Ready):
                return event
    return None


class _Beat(msgspec.Struct, frozen=True):
    phase: Literal["setup", "warmup", "timed", "profile", "done"]


class _Phases:
    """Phases as rank 0 notes them in its progress file, which a job may have filled with more."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0
        self._phase = ""

    def entered(self) -> Iterator[str]:
        """Phases entered since the last look."""
        if not self._path.is_file():
            return
        with self._path.open("rb") as beats:
            beats.seek(self._read_bytes)
            whole, newline, _ = beats.read(PROGRESS_READ_BYTES).rpartition(b"\n")
        self._read_bytes += len(whole) + len(newline)
        for line in whole.splitlines():
            with suppress(msgspec.MsgspecError):
                phase = msgspec.json.decode(line, type=_Beat).phase
                if phase != self._phase:
                    self._phase = phase
                    yield phase
