"""Runs jobs on this machine, its ranks forked from a warm process."""

import json
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from evaluator.job import Job, JobResult, RankExit
from evaluator.ports import PhaseListener
from records.errors import EnvironmentFault

GRACE_S = 1.0
START_LIMIT_S = 120.0
OVERRUN_S = 15.0
EXIT_LIMIT_S = 3.0
POLL_S = 0.05


class LocalLauncher:
    """Starts the warm process on first use and again whenever it was lost.

    `environment` is all that ranks see of ours; the caller has taken the secrets out.
    """

    def __init__(self, environment: Mapping[str, str], threads_per_rank: int) -> None:
        threads = str(threads_per_rank)
        self._environment = {
            **environment,
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
        }
        self._server: _ForkServer | None = None

    def run(self, job: Job, workdir: Path, on_phase: PhaseListener) -> JobResult:
        """Run a job; a Ctrl-C or any other exception kills its ranks before it leaves."""
        for name, text in job.files.items():
            (workdir / name).write_text(text, encoding="utf-8")
        server = self._warm(job.module)
        started = time.monotonic()
        server.ask(_request(job, workdir))
        try:
            ended = _follow(server, job, workdir, on_phase)
        except BaseException:
            server.stop_job()
            self.close()
            raise
        if ended is None:
            self.close()
            return JobResult(
                workdir=workdir,
                reason="launcher_lost",
                ranks=(),
                wall_s=time.monotonic() - started,
                message=f"the process that forks the ranks was lost: {server.last_words()}",
            )
        return _result(ended, workdir)

    def close(self) -> None:
        """End the warm process and with it every rank."""
        if self._server is not None:
            self._server.kill()
            self._server = None

    def _warm(self, module: str) -> "_ForkServer":
        if self._server is None or not self._server.serves(module):
            self.close()
            self._server = _ForkServer(module, self._environment)
            self._server.await_ready()
        return self._server


class _ForkServer:
    """The warm process as seen from here: requests in, events out."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._module = module
        # A session of its own keeps the terminal's Ctrl-C from the ranks; -P and a working folder
        # of its own keep a user's files of the same names out of its imports.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-m", "evaluator.rank.forkserver", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
            bufsize=0,
        )
        self._pending = b""

    def serves(self, module: str) -> bool:
        """Whether it is alive and has the module imported."""
        return self._module == module and self._process.poll() is None

    def await_ready(self) -> None:
        """Wait until torch is imported; raises `EnvironmentFault` when it cannot be."""
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            for event in self.events(POLL_S):
                if event is None:
                    raise EnvironmentFault(
                        f"ranks cannot be started here: {self.last_words()}; "
                        "is torch installed in this environment?"
                    )
                return
        self.kill()
        raise EnvironmentFault(f"ranks cannot be started: torch took over {START_LIMIT_S:g} s")

    def ask(self, message: Mapping[str, object]) -> None:
        """Send one request line."""
        if self._process.stdin is None:
            raise ValueError("the request pipe is not open")
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    def events(self, wait_s: float) -> Iterator[dict[str, object] | None]:
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
        yield from (json.loads(line) for line in lines)

    def stop_job(self) -> None:
        """Ask it to kill the job under way and wait for that, a few seconds at most."""
        try:
            self.ask({"stop": True})
        except BrokenPipeError:
            return
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            if any(event is None or event["event"] == "ended" for event in self.events(POLL_S)):
                return

    def kill(self) -> None:
        """End it: it kills its ranks when its input closes, or they die with it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(EXIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def last_words(self) -> str:
        """The last line it wrote to standard error, or how it ended."""
        status = self._process.wait()
        text = self._process.stderr.read().decode(errors="replace") if self._process.stderr else ""
        lines = [line for line in text.splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"exit status {status}"


def _request(job: Job, workdir: Path) -> dict[str, object]:
    return {
        "folder": str(workdir),
        "job": "job.json",
        "world_size": job.world_size,
        "environment": {**job.environment, "CCLSEARCH_INIT_METHOD": f"file://{workdir}/store"},
        "timeout_s": job.timeout_s,
        "grace_s": GRACE_S,
    }


def _follow(
    server: _ForkServer, job: Job, workdir: Path, on_phase: PhaseListener
) -> dict[str, object] | None:
    """Pass phases on until the job ended; None when the server was lost or overran its limit."""
    deadline = time.monotonic() + job.timeout_s + GRACE_S + OVERRUN_S
    phases = _Phases(workdir / "progress.jsonl")
    while time.monotonic() < deadline:
        for event in server.events(POLL_S):
            if event is None or event["event"] == "ended":
                return event
        for phase in phases.entered():
            on_phase(phase)
    server.kill()
    return None


class _Phases:
    """Phases as rank 0 notes them in its progress file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0
        self._phase = ""

    def entered(self) -> Iterator[str]:
        """Phases entered since the last look."""
        if not self._path.exists():
            return
        with self._path.open("rb") as beats:
            beats.seek(self._read_bytes)
            for line in beats:
                if not line.endswith(b"\n"):
                    return
                self._read_bytes += len(line)
                phase = json.loads(line)["phase"]
                if phase != self._phase:
                    self._phase = phase
                    yield phase


def _result(ended: Mapping[str, object], workdir: Path) -> JobResult:
    ranks = ended["ranks"]
    reason = ended["reason"]
    wall_s = ended["wall_s"]
    if not isinstance(ranks, list) or not isinstance(wall_s, float):
        raise TypeError(f"the fork server said {ended}")
    exits = tuple(RankExit(**rank) for rank in ranks)
    match reason:
        case "finished" | "rank_failed" | "timeout" | "stopped":
            return JobResult(workdir=workdir, reason=reason, ranks=exits, wall_s=wall_s)
        case _:
            raise TypeError(f"the fork server said {ended}")
