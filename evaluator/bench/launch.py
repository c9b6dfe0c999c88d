"""Starts the ranks of one launch of a benchmark and follows their points as they come."""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from evaluator.failures.classify import classify
from evaluator.job import Job
from evaluator.mpi import mpirun_command, mpirun_environment
from evaluator.ports import Launcher
from evaluator.rank.job import DeviceKind
from evaluator.rank.job_file import parse
from evaluator.torchrun import torchrun_command
from evaluator.workloads.collectives.adapters.adapter import AdapterName
from evaluator.workloads.collectives.points_file import POINTS_NAME
from evaluator.workloads.collectives.sweep_request import PointSamples, SweepFacts, SweepRequest
from records.codec import to_json
from records.trial import Failed

REQUEST_NAME = "sweep.json"
PROGRAM = (sys.executable, "-P", "-m", "evaluator.workloads.collectives.main", REQUEST_NAME)
START_LIMIT_S = 180.0
HANG_GRACE_S = 30.0
LOOK_EVERY_S = 0.5

Lines: TypeAlias = Sequence[SweepFacts | PointSamples]


def launch_job(request: SweepRequest, rank_count: int) -> Job:
    """Give the job of one launch: by mpirun for MPI, else by torchrun.

    Ranks end a point that takes too long themselves; the limits here are for ranks that cannot.
    """
    environment: Mapping[str, str] = {}
    if request.adapter is AdapterName.MPI:
        argv, environment = mpirun_command(rank_count, PROGRAM), mpirun_environment()
    else:
        argv = torchrun_command(rank_count, PROGRAM)
    return Job(
        argv=argv,
        world_size=rank_count,
        files={REQUEST_NAME: to_json(request)},
        timeout_s=START_LIMIT_S + len(request.operations) * request.timeout_s,
        hang_after_s=request.timeout_s + HANG_GRACE_S,
        maps_freely=request.device is DeviceKind.CUDA,
        environment=environment,
    )


def run_launch(
    launcher: Launcher, job: Job, workdir: Path, on_lines: Callable[[Lines], None]
) -> Failed | None:
    """Run a launch in an empty folder; gives why it failed, or None when every rank finished.

    What the ranks tell is passed on soon after it is known, from another thread, and in whole
    before this returns. Raises what `on_lines` raised first, once the launch has ended.
    """
    with _followed(workdir / POINTS_NAME, on_lines):
        result = launcher.run(job, workdir, lambda _phase: None)
    return classify(result)


@contextmanager
def _followed(path: Path, on_lines: Callable[[Lines], None]) -> Iterator[None]:
    """Pass on lines while they are written; looks are rare, for they disturb what is measured."""
    ended, faults = threading.Event(), list[Exception]()
    file = _GrowingFile(path)

    def look() -> None:
        try:
            while not ended.wait(LOOK_EVERY_S):
                on_lines(file.new_lines())
        except Exception as fault:  # noqa: BLE001 - the thread's boundary: it is raised below
            faults.append(fault)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if faults:
        raise faults[0]
    on_lines(file.new_lines())


class _GrowingFile:
    """Reads the lines of a file that came since the last look; a line that is not whole waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0

    def new_lines(self) -> Lines:
        if not self._path.exists():
            return ()
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            whole, newline, _ = file.read().rpartition(b"\n")
        is_first = self._read_bytes == 0
        self._read_bytes += len(whole) + len(newline)
        return tuple(
            _parsed(line.decode(), is_facts=is_first and not number)
            for number, line in enumerate(whole.splitlines())
        )


def _parsed(line: str, *, is_facts: bool) -> SweepFacts | PointSamples:
    return parse(SweepFacts, line) if is_facts else parse(PointSamples, line)
