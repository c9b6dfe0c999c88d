"""A job to launch and what came of it, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

Reason: TypeAlias = Literal[
    "finished", "rank_failed", "timeout", "hang", "out_of_memory", "disk_quota", "launcher_lost"
]
"""Why a job ended; from `timeout` on it was ended from outside, by its launcher or with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to start: `files` go to the working folder first; `argv` starts it cold, by hand.

    A warm process that has imported `modules` can fork the ranks instead; without any, only `argv`
    starts the job. A job that was inside its steps and whose ranks then give no sign of life for
    `hang_after_s` hangs; before its steps, and without signs of life, only `timeout_s` holds. Each
    of `folders` is made empty in the working folder, for the variable that it is listed under. The
    processes of a job that `maps_freely` are not held to a share of the host's memory: drivers of
    GPUs map far more than they use. Its processes stay on `cores`, if any are given.
    """

    argv: tuple[str, ...]
    world_size: int
    files: Mapping[str, str]
    folders: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    timeout_s: float
    hang_after_s: float | None = None
    maps_freely: bool = False
    threads_per_rank: int = 1
    cores: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """How one rank ended: an exit status, or the signal that killed it.

    `rank` is None for the command of a cold start that failed: how its ranks ended is then only in
    their own files. `ended_ns` is when it ended by itself, since the Unix epoch; None when it was
    told to end, with SIGTERM and after a grace with SIGKILL, and so may have any status.
    """

    rank: int | None
    status: int | None
    signal: int | None
    ended_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A rank's last sign of life: what it had entered, and how long it was silent at the end.

    `step` counts from 0 over all phases; None outside of steps.
    """

    rank: int
    phase: Literal["setup", "warmup", "timed", "profile", "done"]
    step: int | None
    silent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """How a job ended; its logs and results lie in `workdir`, which the caller owns.

    `ranks` has one entry per rank, or that of a command that failed. Logs are `rank{r}.log`, and
    `job.log` of a command; where ranks were ended for their silence or at the time limit,
    `rank{r}.stacks.txt` or `process{pid}.stacks.txt` say where they were. `message` says what the
    launcher itself saw, empty if nothing. `memory_kill_count` is how many processes the kernel
    killed meanwhile for want of memory, on the whole machine; None where that is not known.
    `environment` is what the launcher added to that of every job, beside what the job asked for.
    """

    workdir: Path
    reason: Reason
    ranks: tuple[RankExit, ...]
    wall_s: float
    beats: tuple[Beat, ...] = ()
    memory_kill_count: int | None = None
    message: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
