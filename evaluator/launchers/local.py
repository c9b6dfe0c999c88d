"""Run jobs on this machine through a supervisor: ranks of a warm process, or a cold command."""

import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from threading import Event

import msgspec

from evaluator.launchers.connection import Connection, kill_orphans
from evaluator.launchers.limits import DISK_BYTES
from evaluator.launchers.watch import Heartbeats
from evaluator.ports import Job, JobResult, NodePlace, PhaseListener
from evaluator.rank.protocol import Ended, Launch
from records.errors import EnvironmentFault

OVERRUN_S = 60.0
POLL_S = 0.05
ISOLATED = -15
"""Niceness that leaves other work about 3 % of a core that a job also wants."""


def may_isolate() -> bool:
    """Whether this user may start processes at the niceness `ISOLATED`."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, ISOLATED)
    except PermissionError:
        return False
    os.setpriority(os.PRIO_PROCESS, 0, before)
    return True


def thread_counts(threads_per_rank: int) -> Mapping[str, str]:
    """Return the variables that tell libraries how many threads a rank has."""
    return {
        "OMP_NUM_THREADS": str(threads_per_rank),
        "MKL_NUM_THREADS": str(threads_per_rank),
        # It starts its threads when it is imported; after that nothing can be forked safely.
        "OPENBLAS_NUM_THREADS": "1",
    }


def free_port() -> int:
    """Return a port that nothing listens at now."""
    with socket.create_server(("", 0)) as server:
        port: int = server.getsockname()[1]
        return port


class LocalLauncher:
    """Starts its supervisor on first use and again whenever it was lost.

    `environment` is all that jobs see of ours; the caller has taken the secrets out. To it come
    thread counts, a temporary folder for each launch, one for compiled code that outlives it, and
    in each warm rank RANK, LOCAL_RANK, WORLD_SIZE and CCLSEARCH_INIT_METHOD. The files of one job
    may take `disk_bytes`. With a `niceness` below 0, which `may_isolate` has to allow, jobs
    take precedence over other work on the machine.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        threads_per_rank: int,
        disk_bytes: int = DISK_BYTES,
        niceness: int = 0,
    ) -> None:
        self._temporary = environment.get("TMPDIR", tempfile.gettempdir())
        self._threads = thread_counts(threads_per_rank)
        self._environment = {
            # Temporary files go with each launch; what torch compiled, by its digest, may stay.
            "TORCHINDUCTOR_CACHE_DIR": f"{self._temporary}/torchinductor_{os.getuid()}",
            **environment,
            **self._threads,
        }
        self._disk_bytes, self._niceness = disk_bytes, niceness
        self._supervisor: Connection | None = None
        self._stopped = Event()

    def prepare(self, job: Job) -> None:
        """Begin to import what the job needs, without waiting for it."""
        self._connected().send(_request(job, None))

    def run(self, job: Job, workdir: Path, on_phase: PhaseListener) -> JobResult:
        """Run a job; a Ctrl-C or any other exception ends its processes before it leaves."""
        for name, text in job.files.items():
            (workdir / name).write_text(text, encoding="utf-8")
        started_s = time.monotonic()
        # Ranks meet through a file with locks, which a network's file system may lack: not in the
        # job's folder.
        rendezvous = Path(self._temporary, f"cclsearch-{uuid.uuid4().hex[:12]}").absolute()
        with ExitStack() as cut_short:
            cut_short.callback(self.close)
            supervisor = self._connected()
            launch = self._launch(job, workdir, rendezvous)
            supervisor.send(_request(job, launch))
            ended = _follow(supervisor, job, workdir, on_phase, self._stopped)
            cut_short.pop_all()
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
        return {
            "argv": job.argv_on(NodePlace(0, "127.0.0.1", free_port())),
            "folder": str(workdir.absolute()),
            "rendezvous": str(rendezvous),
            "world_size": job.world_size,
            "first_rank": 0,
            "rank_count": job.world_size,
            "init_method": None,
            "environment": self._connected().environment_of(job.environment),
            "timeout_s": job.timeout_s,
            "hang_after_s": job.hang_after_s,
            "disk_bytes": self._disk_bytes,
            "maps_freely": job.maps_freely,
            "cores": job.cores,
            "niceness": self._niceness,
        }


def _request(job: Job, launch: Launch | None) -> Mapping[str, object]:
    """What the supervisor is asked for: to import what the job needs, and to run it."""
    return {"modules": job.modules, "python": job.python, "launch": launch}


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
            if "ended" in event:
                return msgspec.convert(event["ended"], Ended)
            if "refused" in event:
                raise EnvironmentFault(
                    f"ranks cannot be started here: {event['refused']}; "
                    "is torch installed in this environment?"
                )
            deadline_s = time.monotonic() + job.timeout_s + OVERRUN_S
    return None
