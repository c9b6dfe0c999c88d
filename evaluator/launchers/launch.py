"""One launch from its first process to the last trace of it, by the process above all of them."""

import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import NoReturn, TypedDict

from evaluator.launchers import leftovers
from evaluator.launchers.beats import Beats
from evaluator.launchers.limits import Limits, memory_kill_count
from evaluator.launchers.logs import Log
from evaluator.launchers.stacks import take_stacks
from evaluator.launchers.warm import WarmProcess
from evaluator.launchers.watch import Over, Process, Terms, Watch
from evaluator.rank.confinement import confine, die_with
from evaluator.rank.files import error_name
from evaluator.rank.meeting import VARIABLE, log_name

COMMAND_LOG = "job.log"
TEMPORARY = "tmp"
NOT_STARTED = 127


class Launch(TypedDict):
    """What to run in `folder`: ranks, if there is a process to fork them, or the command.

    `meeting` is the folder that the launch makes for itself and removes.
    """

    argv: list[str]
    folder: str
    meeting: str
    world_size: int
    environment: dict[str, str]
    timeout_s: float
    hang_after_s: float | None
    disk_bytes: int
    maps_freely: bool
    cores: list[int]


class LostError(Exception):
    """The processes of a launch could not be started, by no fault of theirs."""


def run_launch(
    launch: Launch, forker: WarmProcess | None, *, owner: int, spared: int | None
) -> Mapping[str, object]:
    """Run a job to its end, with everything that it started; gives how it ended, as a document.

    It is told to end when the descriptor `owner` becomes readable; `spared` is a child of ours
    that is not the job's. Raises `TimeoutError` when a process of the job cannot be killed.
    """
    started_s, kill_count = time.monotonic(), memory_kill_count()
    beats = [Beats(Path(launch["folder"]), rank) for rank in range(launch["world_size"])]
    processes: Sequence[Process] = ()
    over = None
    with ExitStack() as opened:
        meeting = opened.enter_context(_meeting(launch))
        logs = _open_logs(launch, meeting, cold=forker is None)
        for log in logs:
            opened.callback(log.close)
        limits = Limits(
            [Path(launch["folder"]), meeting],
            launch["world_size"],
            launch["disk_bytes"],
            maps_freely=launch["maps_freely"],
            cores=launch["cores"],
        )
        try:
            processes = _start(launch, forker, meeting, limits)
        except LostError as error:
            over = Over(reason="launcher_lost", message=str(error))
        watch = opened.enter_context(
            closing(Watch(processes, logs=logs, beats=beats, owner=owner, spared=spared))
        )
        over = over or watch.until_over(_terms(launch, limits, started_s))
        signs = _signs(beats, over.at_s)
        if over.reason in ("hang", "timeout"):
            _take_stacks(launch, meeting, watch.living())
        watch.end()
    return {
        "reason": over.reason,
        "message": over.message,
        "ranks": _exits(processes, launch["world_size"]),
        "beats": signs,
        "wall_s": over.at_s - started_s,
        "memory_kill_count": _since(kill_count),
    }


@contextmanager
def _meeting(launch: Launch) -> Iterator[Path]:
    """A folder for the launch alone; what the job left elsewhere goes away with it."""
    folder, shared_memory = Path(launch["folder"]), leftovers.shared_memory()
    meeting = Path(launch["meeting"])
    meeting.mkdir(mode=0o700)
    try:
        (meeting / TEMPORARY).mkdir()
        yield meeting
    finally:
        leftovers.keep_elastic_errors(meeting / TEMPORARY, folder)
        leftovers.remove_special_files(folder)
        leftovers.remove_stale_shared_memory(shared_memory)
        shutil.rmtree(meeting, ignore_errors=True)


def _open_logs(launch: Launch, meeting: Path, *, cold: bool) -> list[Log]:
    """A log for every rank and for the command; there is a file for each that we start."""
    ranks = [log_name(rank) for rank in range(launch["world_size"])]
    folder = Path(launch["folder"])
    for name in [COMMAND_LOG] if cold else ranks:
        (folder / name).touch()
    return [Log(meeting / name, folder / name) for name in (*ranks, COMMAND_LOG)]


def _environment(launch: Launch, meeting: Path) -> dict[str, str]:
    """What the launch adds to the environment that it was asked to have."""
    return {
        **launch["environment"],
        "TMPDIR": str(meeting / TEMPORARY),
        VARIABLE: str(meeting),
    }


def _start(
    launch: Launch, forker: WarmProcess | None, meeting: Path, limits: Limits
) -> Sequence[Process]:
    if forker is None:
        return [Process(None, _start_command(launch, meeting, limits))]
    return [Process(rank, pid) for rank, pid in enumerate(_fork(forker, launch, meeting, limits))]


def _fork(forker: WarmProcess, launch: Launch, meeting: Path, limits: Limits) -> Sequence[int]:
    confinement = limits.each_process
    answer = forker.fork(
        {
            "folder": launch["folder"],
            "meeting": str(meeting),
            "job": "job.json",
            "world_size": launch["world_size"],
            "environment": _environment(launch, meeting),
            "memory_bytes": confinement.memory_bytes,
            "file_bytes": confinement.file_bytes,
            "cores": confinement.cores,
        }
    )
    if answer is None:
        raise LostError(f"the process that forks the ranks was lost: {forker.end()}")
    if answer["error"] is not None:
        raise LostError(f"the ranks could not be forked: {answer['error']}")
    return answer["pids"]


def _start_command(launch: Launch, meeting: Path, limits: Limits) -> int:
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become_command(launch, meeting, limits, supervisor)
    return pid


def _become_command(launch: Launch, meeting: Path, limits: Limits, supervisor: int) -> NoReturn:
    try:
        os.setsid()
        die_with(supervisor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        log = os.open(meeting / COMMAND_LOG, os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for number in (signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        confine(limits.each_process)
        os.chdir(launch["folder"])
        os.execvpe(launch["argv"][0], launch["argv"], _environment(launch, meeting))
    except OSError as error:
        with suppress(OSError):
            os.write(2, f"{launch['argv'][0]}: {error.strerror}\n".encode())
    finally:
        os._exit(NOT_STARTED)


def _terms(launch: Launch, limits: Limits, started_s: float) -> Terms:
    folder = Path(launch["folder"])
    errors = [folder / error_name(rank) for rank in range(launch["world_size"])]
    return Terms(
        deadline_s=started_s + launch["timeout_s"],
        hang_after_s=launch["hang_after_s"],
        limits=limits,
        all_failed=lambda: all(error.exists() for error in errors),
    )


def _take_stacks(launch: Launch, meeting: Path, processes: Sequence[int]) -> None:
    take_stacks(
        processes,
        meeting=meeting,
        folder=Path(launch["folder"]),
        world_size=launch["world_size"],
        environment=launch["environment"],
    )


def _signs(beats: Sequence[Beats], now_s: float) -> list[Mapping[str, object]]:
    """The last sign of life of each rank that gave one."""
    for rank in beats:
        for _ in rank.read():
            pass
    return [
        {
            "rank": rank.rank,
            "phase": rank.last.phase,
            "step": rank.last.step,
            "silent_s": max(0.0, rank.silent_s(now_s)),
        }
        for rank in beats
        if rank.last is not None
    ]


def _exits(processes: Sequence[Process], world_size: int) -> list[Mapping[str, object]]:
    """How each rank ended; a command that ended well by itself answers for all of its ranks."""
    exits = [process.exit() for process in processes]
    command = next((process for process in processes if process.rank is None), None)
    if command is not None and command.code == 0 and command.ended_at_ns is not None:
        return [{**exits[0], "rank": rank} for rank in range(world_size)]
    return exits


def _since(kill_count: int | None) -> int | None:
    now_count = memory_kill_count()
    return None if now_count is None or kill_count is None else now_count - kill_count
