"""What ranks and the launcher agree on, without torch.

Progress: a rank appends its phase and heartbeats to a file. Sampling: how many steps are timed, a
function of the step times of the whole job, so that all ranks decide the same. Turns: where
several jobs share a machine, each rank waits at a gate, a named pipe, until its job may step; the
launcher holds both ends of all pipes open. Numbers: which rank a process is. Confinement: with whom
a process ends and how much it may take. Launches: what to start, and how it ended. Failures: the
exception of a rank, which `evaluator.failures` judges later. Rendezvous: a folder on a local disk
that lives as long as the launch, with the store of the process group, temporary files, a pipe for
each log, and a file for the stacks of each rank.
"""

import ctypes
import faulthandler
import json
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import comb
from pathlib import Path
from statistics import median
from typing import Literal, TypeAlias, TypedDict

from evaluator.rank.job import JobError, Measure, StrEnum

COMMAND_LOG = "job.log"
COMMAND_LOGS = "job*.log"
JOB_FILE = "job.json"
NO_SPY = "missing.stacks.txt"
"""A note in the place of stacks that nothing on the PATH of a job could take."""


class RankFile(StrEnum):
    """What a rank leaves in the folder of its job, by what its name ends with.

    In the folder of the launch its log is a pipe, and its stacks begin with the process's number.
    """

    LOG = "log"
    PROGRESS = "progress.jsonl"
    STEPS = "steps.json"
    ERROR = "error.json"
    STACKS = "stacks.txt"

    def of(self, rank: int) -> str:
        """What that of one rank is called."""
        return f"rank{rank}.{self}"


def command_log(first_rank: int) -> str:
    """Return what the log of the command is called on the node that begins with this rank."""
    return f"job{first_rank}.log" if first_rank else COMMAND_LOG


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Write one JSON document in a single rename."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(document, allow_nan=False), encoding="utf-8")
    partial.replace(path)


def read_lines(descriptor: int) -> Iterator[str]:
    """Yield lines as they arrive, until the other end closes."""
    pending = b""
    while data := os.read(descriptor, 1 << 16):
        *lines, pending = (pending + data).split(b"\n")
        yield from (line.decode() for line in lines)


def write_line(descriptor: int, document: Mapping[str, object]) -> None:
    """Write one JSON document as a line; it is lost where the other end has closed."""
    with suppress(BrokenPipeError):
        os.write(descriptor, json.dumps(document).encode() + b"\n")


class Phase(StrEnum):
    """The parts of a run, in order."""

    SETUP = "setup"
    WARMUP = "warmup"
    TIMED = "timed"
    PROFILE = "profile"
    DONE = "done"


class Progress:
    """The current phase, and one line per beat in the folder, `rank{r}.progress.jsonl`."""

    def __init__(self, folder: Path, *, rank: int) -> None:
        self.phase = Phase.SETUP
        self.memory_limited = False
        path = folder / RankFile.PROGRESS.of(rank)
        # Left open to the process's end: a beat is one write between two steps.
        self._beats = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def beat(self, phase: Phase, step: int | None = None) -> None:
        """Enter a phase, or begin a step (counted from 0 over all phases) in it.

        Without a step the rank is between steps, where it may take its time.
        """
        self.phase = phase
        line = {"phase": phase, "step": step, "at_ns": time.perf_counter_ns()}
        os.write(self._beats, json.dumps(line).encode() + b"\n")


TAIL = 0.025
"""Chance that the median is below its 95 % interval, and that it is above."""
LEAST_SLOWER_STEPS = 3
BLOCK_STEPS = 5


class Stop(StrEnum):
    """Why no more steps are timed."""

    PRECISE = "precise"
    MOST_STEPS = "most_steps"
    SLOWER = "slower"


def next_block(measure: Measure, timed_count: int) -> int:
    """How many steps to time before the next look; looks cost a collective of all ranks.

    Before the least number of steps there is nothing to find but that they are slower.
    """
    if timed_count >= measure.timed_steps:
        return min(BLOCK_STEPS, measure.most_timed_steps - timed_count)
    left = measure.timed_steps - timed_count
    return left if measure.stop_above_s is None else min(LEAST_SLOWER_STEPS, left)


def reason_to_stop(measure: Measure, step_times_s: Sequence[float]) -> Stop | None:
    """Judge the steps so far, each the time of its slowest rank; None to continue."""
    count, ordered = len(step_times_s), sorted(step_times_s)
    outside = _outside(count)
    if (
        measure.stop_above_s is not None
        and count >= LEAST_SLOWER_STEPS
        and ordered[outside or 0] > measure.stop_above_s
    ):
        return Stop.SLOWER
    if count >= measure.timed_steps and outside is not None:
        half_width_s = (ordered[-1 - outside] - ordered[outside]) / 2
        if half_width_s <= measure.step_precision * median(ordered):
            return Stop.PRECISE
    return Stop.MOST_STEPS if count >= measure.most_timed_steps else None


def _outside(count: int) -> int | None:
    """How many of the smallest samples, and of the largest, are outside the median's interval.

    A sample is below the median as often as a coin shows heads, whatever the distribution. None
    where even the whole range is not sure enough: for fewer than six.
    """
    below = 0
    for outside in range(count):
        below += comb(count, outside)
        if below > TAIL * 2**count:
            return outside - 1 if outside else None
    return None


TURNS_VARIABLE = "CCLSEARCH_TURNS"
ANSWERS = "answers"
READY = b"r"
GO = b"g"
NO_MORE = b"n"


class Gate:
    """One rank's gate, in the folder of its job's pipes."""

    def __init__(self, folder: Path, *, rank: int) -> None:
        self._answers = os.open(folder / ANSWERS, os.O_WRONLY | os.O_CLOEXEC)
        self._orders = os.open(folder / gate_name(rank), os.O_RDONLY | os.O_CLOEXEC)

    def wait(self) -> bool:
        """Say that this rank is at its gate, and wait there; whether it gets another turn."""
        os.write(self._answers, READY)
        return os.read(self._orders, 1) == GO


def open_gate(rank: int) -> Gate | None:
    """The gate that the environment names; None for a job that has the machine to itself."""
    folder = os.environ.get(TURNS_VARIABLE)
    return None if folder is None else Gate(Path(folder), rank=rank)


def gate_name(rank: int) -> str:
    """What the pipe to a rank is called."""
    return f"gate{rank}"


_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_LOCAL_RANK = (
    *("LOCAL_RANK", "PALS_LOCAL_RANKID", "MPI_LOCALRANKID"),
    *("OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"),
)
_WORLD_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNumbers:
    """The numbers that a launcher gives each rank in its environment."""

    rank: int
    local_rank: int
    world_size: int


def read_rank_numbers() -> RankNumbers:
    """Read what torchrun, mpirun or srun set; raises `JobError` if a number is missing."""
    return RankNumbers(
        rank=_number(_RANK), local_rank=_number(_LOCAL_RANK), world_size=_number(_WORLD_SIZE)
    )


def _number(names: Sequence[str]) -> int:
    """The number in the first of these variables that is set."""
    given = next((name for name in names if name in os.environ), names[0])
    try:
        return int(os.environ[given])
    except (KeyError, ValueError) as error:
        raise JobError(f"the environment gives no number in {given}") from error


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
AUTOGROUP = Path("/proc/self/autogroup")
"""Priority of the session. Where Linux groups sessions, a process's own counts only within it."""


class Confinement(TypedDict):
    """The most private memory that a process of a job may map, and write to one file.

    `memory_bytes` is None for a job that maps far more than it uses, as drivers of GPUs do. It may
    run on `cores` only; on all where none are given. With a `niceness` below 0 it takes
    precedence over other work on the machine.
    """

    memory_bytes: int | None
    file_bytes: int
    cores: Sequence[int]
    niceness: int


def confine(limits: Confinement) -> None:
    """Put this process, and all that it starts, under limits; only a niceness needs a privilege.

    Only soft limits are set, so that a job with its own memory budget can set another.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # an ignored signal would be inherited
    # The kernel's out-of-memory killer takes a job before anything else of the user's.
    Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    if limits["memory_bytes"] is not None:
        _lower(resource.RLIMIT_DATA, status_bytes("VmData") + limits["memory_bytes"])
    if limits["cores"]:
        os.sched_setaffinity(0, limits["cores"])
    if limits["niceness"]:
        os.setpriority(os.PRIO_PROCESS, 0, limits["niceness"])
        with suppress(OSError):  # the kernel does not group sessions, or another rank did it
            AUTOGROUP.write_text(str(limits["niceness"]), encoding="ascii")
    _lower(resource.RLIMIT_FSIZE, limits["file_bytes"])
    _lower(resource.RLIMIT_CORE, 0)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; exit immediately if that is gone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def status_bytes(name: str) -> int:
    """Return a size that the kernel reports for this process; RLIMIT_DATA counts `VmData`."""
    sizes = proc_sizes(Path("/proc/self/status"))
    if name not in sizes:
        raise OSError(f"/proc/self/status has no {name}")
    return sizes[name]


def proc_sizes(path: Path) -> Mapping[str, int]:
    """Return what a file of /proc gives in kB, in bytes by name; nothing if it cannot be read."""
    with suppress(OSError):
        text = path.read_text(encoding="utf-8", errors="replace")
        rows = re.findall(r"^(\w+): +(\d+) kB$", text.replace("\t", " "), re.MULTILINE)
        return {name: int(size) * 1024 for name, size in rows}
    return {}


def cpu_model(root: Path = Path("/")) -> str | None:
    """Return what the processor calls itself; None where /proc below `root` does not say."""
    with suppress(OSError):
        text = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        found = re.search(r"^model name\s*:(.*)$", text, re.MULTILINE)
        return found[1].strip() if found else None
    return None


def _lower(limit: int, to: int) -> None:
    soft, hard = resource.getrlimit(limit)
    in_force = [value for value in (soft, hard, to) if value != resource.RLIM_INFINITY]
    resource.setrlimit(limit, (min(in_force), hard))


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


class Launch(TypedDict):
    """What to run in `folder`: ranks, if there is a process to fork them, or the command.

    `rendezvous` is the folder that the launch makes for itself and removes. Of the ranks of a job
    these are `rank_count` from `first_rank` on, those of one node. They meet at `init_method`;
    where it is None, in a file of the rendezvous.
    """

    argv: Sequence[str]
    folder: str
    rendezvous: str
    world_size: int
    first_rank: int
    rank_count: int
    init_method: str | None
    environment: Mapping[str, str]
    timeout_s: float
    hang_after_s: float | None
    disk_bytes: int
    maps_freely: bool
    cores: Sequence[int]
    niceness: int


Reason: TypeAlias = Literal[
    "finished",
    "rank_failed",
    "timeout",
    "hang",
    "out_of_memory",
    "disk_quota",
    "launcher_lost",
    "not_scheduled",
    "preempted",
    "node_failed",
]
"""Why a job ended; from `timeout` on it was ended from outside, by its launcher or with it.

The last three are a cluster's: it gave no nodes in time, it took them back, or lost one.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """How one rank ended: an exit status, or the signal that killed it.

    `rank` is None for the command of a cold start that failed: how its ranks ended is then only in
    their own files. `ended_ns` is when it ended by itself, since the Unix epoch; None when it was
    made to end, with SIGTERM and after a grace with SIGKILL, and so may have any status.
    """

    rank: int | None
    status: int | None = None
    signal: int | None = None
    ended_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastHeartbeat:
    """A rank's last sign of life: what it had entered, and how long it was silent at the end.

    `step` counts from 0 over all phases; None outside of steps.
    """

    rank: int
    phase: Phase
    step: int | None
    silent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a job ended; `message` says what the launcher itself saw, empty if nothing.

    `ranks` has one entry per rank, or that of a command that failed. `memory_kill_count` is how
    many processes the kernel killed meanwhile for want of memory, on the whole machine; None where
    that is not known.
    """

    reason: Reason
    wall_s: float
    message: str = ""
    ranks: tuple[RankExit, ...] = ()
    heartbeats: tuple[LastHeartbeat, ...] = ()
    memory_kill_count: int | None = None


MESSAGE_CHARS = 10_000
TRACEBACK_CHARS = 100_000


def write_failure(
    folder: Path, error: Exception, *, rank: int, phase: Phase, memory_limited: bool
) -> None:
    """Leave `rank{r}.error.json`: where the rank was, what it raised, and when (`failed_ns`)."""
    thrown, *causes = (_words(link) for link in _chain(error))
    document = {
        "rank": rank,
        "phase": phase,
        "failed_ns": time.time_ns(),
        **thrown,
        "causes": causes,
        "memory_limited": memory_limited,
        "traceback": "".join(traceback.format_exception(error))[:TRACEBACK_CHARS],
    }
    write_json(folder / RankFile.ERROR.of(rank), document)


def _words(error: BaseException) -> dict[str, str]:
    kind = type(error)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return {"type": f"{module}{kind.__qualname__}", "message": str(error)[:MESSAGE_CHARS]}


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from or while, and so on; a pipeline wraps a stage's error."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        waiting += [link.__context__, link.__cause__]
        if sys.version_info >= (3, 11) and isinstance(link, BaseExceptionGroup):  # noqa: F821 - ruff does not see the version
            waiting += reversed(link.exceptions)


RENDEZVOUS_VARIABLE = "CCLSEARCH_RENDEZVOUS"
STACKS_SIGNAL = signal.SIGRTMAX - 3  # ordinary ones are the user's own


def join_rendezvous(folder: Path, rank: int) -> None:
    """Send what this process prints to its log, and let it be asked for its stacks."""
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(folder / RankFile.LOG.of(rank), os.O_WRONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    tempfile.tempdir = None  # a forked rank inherits that of its parent
    path = folder / RankFile.STACKS.of(rank)
    stacks = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
    os.write(stacks, f"{os.getpid()}\n".encode())  # now it may be asked
