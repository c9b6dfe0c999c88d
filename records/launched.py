"""How a job was started, where, and how each of its ranks ended: what it takes to do it again."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How one rank ended, and the first line with which it told of an error, if it did.

    `rank` is None for the command above the ranks. `status` and `signal` are None for each other,
    and both where only the rank's own words are known.
    """

    rank: int | None
    status: int | None
    signal: int | None
    first_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """One launch on record; home folders are written as `~`, secrets are left out.

    `environment` is what was added to the environment that every job has. `files` were put into the
    working folder first, and are among the artifacts; each of `folders` was made in it, and told
    the job by the variable that it is listed under. `machine` is the digest under which the store
    keeps a description of hardware and software. `cores` and `devices` are where the job was
    confined to, empty where it was not. `job_id` is the scheduler's, if any.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    folders: Mapping[str, str] = field(default_factory=dict)
    launcher: str = "local"
    job_id: str | None = None
    machine: str | None = None
    hosts: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    reason: str
    wall_s: float
    ranks: tuple[RankEnd, ...] = ()
