"""What every process of a job lives under: with whom it dies, and how much it may take."""

import ctypes
import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """The most that one process of a job may map of its own memory and write to one file.

    `memory_bytes` is None for a job that maps far more than it uses, as drivers of GPUs do. It may
    run on `cores` only; on all where none are given.
    """

    memory_bytes: int | None
    file_bytes: int
    cores: tuple[int, ...] = ()


def confine(limits: Confinement) -> None:
    """Put this process, and all that it starts, under limits that need no privileges.

    Only soft limits are set, so that a job with a memory budget of its own can set another.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # an ignored signal would be inherited
    # The kernel's out-of-memory killer takes a job before anything else of the user's.
    Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    if limits.memory_bytes is not None:
        _lower(resource.RLIMIT_DATA, mapped_bytes() + limits.memory_bytes)
    if limits.cores:
        os.sched_setaffinity(0, limits.cores)
    _lower(resource.RLIMIT_FSIZE, limits.file_bytes)
    _lower(resource.RLIMIT_CORE, 0)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; leave at once if that is gone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def mapped_bytes() -> int:
    """What this process has mapped of what RLIMIT_DATA counts."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(":")
        if key == "VmData":
            return int(value.removesuffix("kB")) * 1024
    raise OSError("/proc/self/status has no VmData")


def _lower(limit: int, to: int) -> None:
    soft, hard = resource.getrlimit(limit)
    in_force = [value for value in (soft, hard, to) if value != resource.RLIM_INFINITY]
    resource.setrlimit(limit, (min(in_force), hard))


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
