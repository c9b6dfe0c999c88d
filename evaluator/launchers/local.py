"""Run jobs on this machine through a supervisor: ranks of a warm process, or a cold command."""

import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from threading import Event

import msgspec

from evaluator.launchers.limits import DISK_BYTES, send_signal, stat_fields
from evaluator.launchers.supervisor import LineProcess
from evaluator.launchers.watch import Heartbeats
from evaluator.ports import Job, JobResult, PhaseListener
from evaluator.rank.protocol import Ended, Launch
from records.errors import EnvironmentFault

MARKER = "CCLSEARCH_LAUNCH_OF"
EXIT_LIMIT_S = 30.0


class SupervisorEvent(msgspec.Struct, frozen=True):
    """How a job ended, or why it cannot be started; with neither it begins: its ranks are warm."""

    refused: str | None = None
    ended: Ended | None = None


class Connection(LineProcess):
    """A supervisor that runs; `environment` is all that it and the jobs see of ours."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        # Everything below it inherits the marker, so that it can be found when we are gone.
        marker = f"{os.getpid()}-{_start_ticks(os.getpid())}-{uuid.uuid4().hex}"
        self.environment = {**environment, MARKER: marker}
        super().__init__("-m", "evaluator.launchers.supervisor", environment=self.environment)

    def events(self, wait_s: float) -> Iterator[SupervisorEvent | None]:
        """Events that arrive within `wait_s`; None when the supervisor is gone."""
        lines = self.lines(wait_s)
        if lines is None:
            yield None
            return
        yield from (msgspec.json.decode(line, type=SupervisorEvent) for line in lines)

    def end(self, grace_s: float = EXIT_LIMIT_S) -> str:
        """End it and all it started; return the last line it wrote, or how it ended.

        It ends what runs when its input closes; what it left because it was killed, we kill.
        """
        last_words = super().end(grace_s)
        _kill_marked({self.environment[MARKER]})
        return last_words


def kill_orphans() -> None:
    """Kill what is left of launchers that were killed together with their supervisors."""
    orphaned = set()
    for _, marker in _marked():
        pid, start_ticks, *_ = marker.split("-")
        if not pid.isdecimal() or _start_ticks(int(pid)) != start_ticks:
            orphaned.add(marker)
    if orphaned:
        _kill_marked(orphaned)


def _kill_marked(markers: set[str]) -> None:
    """Kill until none is left: one may have been forking while we looked."""
    deadline_s = time.monotonic() + EXIT_LIMIT_S
    while time.monotonic() < deadline_s:
        found = [pid for pid, marker in _marked() if marker in markers]
        if not found:
            return
        for pid in found:
            send_signal(pid, signal.SIGKILL, lambda pid: _marker(pid) in markers)
        time.sleep(0.01)


def _marked() -> Iterator[tuple[int, str]]:
    """Living processes of launches, and whose."""
    for path in Path("/proc").glob("[0-9]*"):
        marker = _marker(int(path.name))
        if marker is not None:
            yield int(path.name), marker


def _marker(pid: int) -> str | None:
    """The marker in the environment that a process was started with; an ended one has none."""
    with suppress(OSError):
        prefix = f"{MARKER}=".encode()
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if variable.startswith(prefix):
                return variable.removeprefix(prefix).decode(errors="replace")
    return None


def _start_ticks(pid: int) -> str | None:
    fields = stat_fields(pid)
    return fields[19] if fields else None


OVERRUN_S = 60.0
POLL_S = 0.05


class LocalLauncher:
    """Starts its supervisor on first use and again whenever it was lost.

    `environment` is all that jobs see of ours; the caller has taken the secrets out. To it come
    thread counts, a temporary folder for each launch, one for compiled code that outlives it, and
    in each warm rank RANK, LOCAL_RANK, WORLD_SIZE and CCLSEARCH_INIT_METHOD. The files of one job
    may take `disk_bytes`.
    """

    def __init__(
        self, environment: Mapping[str, str], threads_per_rank: int, disk_bytes: int = DISK_BYTES
    ) -> None:
        threads = str(threads_per_rank)
        self._temporary = environment.get("TMPDIR", tempfile.gettempdir())
        self._threads = {
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            # It starts its threads when it is imported; after that nothing can be forked safely.
            "OPENBLAS_NUM_THREADS": "1",
        }
        self._environment = {
            # Temporary files go with each launch; what torch compiled, by its digest, may stay.
            "TORCHINDUCTOR_CACHE_DIR": f"{self._temporary}/torchinductor_{os.getuid()}",
            **environment,
            **self._threads,
        }
        self._disk_bytes = disk_bytes
        self._supervisor: Connection | None = None
        self._stopped = Event()

    def prepare(self, job: Job) -> None:
        """Begin to import what the job needs, without waiting for it."""
        self._connected().send({"modules": job.modules, "launch": None})

    def run(self, job: Job, workdir: Path, on_phase: PhaseListener) -> JobResult:
        """Run a job; a Ctrl-C or any other exception ends its processes before it leaves."""
        for name, text in job.files.items():
            (workdir / name).write_text(text, encoding="utf-8")
        started_s = time.monotonic()
        # Ranks meet through a file with locks, which a network's file system may lack: not in the
        # job's folder.
        rendezvous = Path(self._temporary, f"cclsearch-{uuid.uuid4().hex[:12]}").absolute()
        try:
            supervisor = self._connected()
            launch = self._launch(job, workdir, rendezvous)
            supervisor.send({"modules": job.modules, "launch": launch})
            ended = _follow(supervisor, job, workdir, on_phase, self._stopped)
        except BaseException:
            self.close()
            raise
        if ended is None:
            self._supervisor = None
            last_words = supervisor.end()
            shutil.rmtree(rendezvous, ignore_errors=True)
            ended = Ended(
                reason="launcher_lost",
                wall_s=time.monotonic() - started_s,
                message=f"the process above the job was lost: {last_words}",
            )
        how = {each.name: getattr(ended, each.name) for each in fields(ended)}
        return JobResult(workdir=workdir, environment=self._threads, **how)

    def stop(self) -> None:
        """End the job that another thread waits for, whose `run` raises KeyboardInterrupt."""
        self._stopped.set()

    def close(self) -> None:
        """End the supervisor and with it everything below."""
        if self._supervisor is not None:
            self._supervisor.end()
            self._supervisor = None

    def _connected(self) -> Connection:
        if self._supervisor is None or not self._supervisor.lives:
            self.close()
            kill_orphans()
            self._supervisor = Connection(self._environment)
        return self._supervisor

    def _launch(self, job: Job, workdir: Path, rendezvous: Path) -> Launch:
        ours = self._connected().environment
        both = [given["PYTHONPATH"] for given in (job.environment, ours) if "PYTHONPATH" in given]
        paths = {"PYTHONPATH": os.pathsep.join(both)} if both else {}
        return {
            "argv": job.argv,
            "folder": str(workdir.absolute()),
            "rendezvous": str(rendezvous),
            "world_size": job.world_size,
            "environment": {**ours, **job.environment, **paths},
            "timeout_s": job.timeout_s,
            "hang_after_s": job.hang_after_s,
            "disk_bytes": self._disk_bytes,
            "maps_freely": job.maps_freely,
            "cores": job.cores,
        }


def _follow(
    supervisor: Connection, job: Job, workdir: Path, on_phase: PhaseListener, stopped: Event
) -> Ended | None:
    """Pass the phases of a job on until it ended; None when the supervisor is lost or late."""
    deadline_s, phase = None, ""
    first_rank = Heartbeats(workdir, 0)
    while deadline_s is None or time.monotonic() < deadline_s:
        if stopped.is_set():
            raise KeyboardInterrupt
        events = list(supervisor.events(POLL_S))
        for beat in first_rank.read():
            if beat.phase != phase:
                phase = beat.phase
                on_phase(phase)
        for event in events:
            if event is None:
                return None
            if event.ended is not None:
                return event.ended
            if event.refused is not None:
                raise EnvironmentFault(
                    f"ranks cannot be started here: {event.refused}; "
                    "is torch installed in this environment?"
                )
            deadline_s = time.monotonic() + job.timeout_s + OVERRUN_S
    return None
