"""Runs jobs on this machine: ranks forked from a warm process, or a command started cold."""

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from threading import Event

from evaluator.job import Job, JobResult
from evaluator.launchers.beats import Beats
from evaluator.launchers.connection import Connection, Ended, Refused, Started, kill_orphans
from evaluator.launchers.limits import DISK_BYTES
from evaluator.ports import PhaseListener
from records.errors import EnvironmentFault

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
        self,
        environment: Mapping[str, str],
        threads_per_rank: int,
        disk_bytes: int = DISK_BYTES,
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
        """Begin to import what the job needs; returns at once."""
        self._connected().ask({"modules": job.modules, "launch": None})

    def run(self, job: Job, workdir: Path, on_phase: PhaseListener) -> JobResult:
        """Run a job; a Ctrl-C or any other exception ends its processes before it leaves."""
        for name, text in job.files.items():
            (workdir / name).write_text(text, encoding="utf-8")
        started_s = time.monotonic()
        # Ranks meet through a file with locks, which a network's file system may lack: not in the
        # job's folder.
        meeting = Path(self._temporary, f"cclsearch-{uuid.uuid4().hex[:12]}").absolute()
        try:
            supervisor = self._connected()
            launch = self._launch(job, workdir, meeting)
            supervisor.ask({"modules": job.modules, "launch": launch})
            ended = _follow(supervisor, job, workdir, on_phase, self._stopped)
        except BaseException:
            self.close()
            raise
        if ended is None:
            self._supervisor = None
            last_words = supervisor.end()
            shutil.rmtree(meeting, ignore_errors=True)
            return JobResult(
                workdir=workdir,
                reason="launcher_lost",
                ranks=(),
                wall_s=time.monotonic() - started_s,
                message=f"the process above the job was lost: {last_words}",
                environment=self._threads,
            )
        return JobResult(
            workdir=workdir,
            reason=ended.reason,
            ranks=ended.ranks,
            wall_s=ended.wall_s,
            beats=ended.beats,
            memory_kill_count=ended.memory_kill_count,
            message=ended.message,
            environment=self._threads,
        )

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

    def _launch(self, job: Job, workdir: Path, meeting: Path) -> dict[str, object]:
        return {
            "argv": job.argv,
            "folder": str(workdir.absolute()),
            "meeting": str(meeting),
            "world_size": job.world_size,
            "environment": {**self._connected().environment, **job.environment},
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
    deadline_s, phase = float("inf"), ""
    first_rank = Beats(workdir, 0)
    while time.monotonic() < deadline_s:
        if stopped.is_set():
            raise KeyboardInterrupt
        events = list(supervisor.events(POLL_S))
        for sign in first_rank.read():
            if sign.phase != phase:
                phase = sign.phase
                on_phase(phase)
        for event in events:
            match event:
                case Started():
                    deadline_s = time.monotonic() + job.timeout_s + OVERRUN_S
                case Refused():
                    raise EnvironmentFault(
                        f"ranks cannot be started here: {event.message}; "
                        "is torch installed in this environment?"
                    )
                case _:
                    return event
    return None
