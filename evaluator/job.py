"""A job to launch and what came of it, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to start: `files` go to the working folder first; `argv` starts it cold, by hand."""

    argv: tuple[str, ...]
    world_size: int
    files: Mapping[str, str]
    module: str
    timeout_s: float
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """How one rank ended: an exit status, or the signal that killed it.

    `ended_s` is when it ended by itself, seconds after the start; None when it had to be killed.
    """

    rank: int
    status: int | None
    signal: int | None
    ended_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """How a job ended; its logs and results lie in `workdir`, which the caller owns.

    `memory_kill_count` is how many processes the kernel killed meanwhile for want of memory, on
    the whole machine; None where that is not known.
    """

    workdir: Path
    reason: Literal["finished", "rank_failed", "timeout", "launcher_lost"]
    ranks: tuple[RankExit, ...]
    wall_s: float
    memory_kill_count: int | None = None
    message: str = ""
