"""What a job may take of the machine's memory and disk, and who watches that it does not."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from evaluator.launchers.descendants import resident_bytes
from evaluator.rank.confinement import Confinement

MEMORY_RESERVE_BYTES = 512 << 20
MEMORY_FLOOR_BYTES = 192 << 20
LEAST_SHARE_BYTES = 128 << 20
DISK_BYTES = 16 << 30
LOOK_SHARE = 0.02
_MEMORY_GROUPS = (
    # hierarchy, where it is mounted, limit, usage, what of it can be taken back at once
    ("", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    (
        "memory",
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


@dataclass(frozen=True, slots=True)
class Overrun:
    """A limit that a job went over, and how that is told."""

    reason: str
    message: str


class Limits:
    """The limits of one job, set by what is free when it starts."""

    def __init__(
        self,
        folders: Sequence[Path],
        world_size: int,
        disk_bytes: int,
        *,
        maps_freely: bool = False,
        cores: Sequence[int] = (),
    ) -> None:
        self._folders = folders
        usable = free_memory_bytes() - MEMORY_RESERVE_BYTES
        self._share_bytes = max(LEAST_SHARE_BYTES, usable // world_size)
        self._maps_freely = maps_freely
        self._cores = tuple(cores)
        free = os.statvfs(folders[0])
        self._disk_bytes = min(disk_bytes, free.f_bavail * free.f_frsize // 2)
        self._next_look_s = 0.0

    @property
    def each_process(self) -> Confinement:
        """What the kernel holds each process to."""
        memory_bytes = None if self._maps_freely else self._share_bytes
        return Confinement(
            memory_bytes=memory_bytes, file_bytes=self._disk_bytes, cores=self._cores
        )

    def overrun(self, living: Callable[[], Sequence[int]]) -> Overrun | None:
        """What the job has taken too much of; `living` gives its processes."""
        return self._memory_overrun(living) or self._disk_overrun()

    def _memory_overrun(self, living: Callable[[], Sequence[int]]) -> Overrun | None:
        free_bytes = free_memory_bytes()
        if free_bytes >= MEMORY_FLOOR_BYTES:
            return None
        held_bytes = sum(map(resident_bytes, living()))
        if held_bytes < self._share_bytes:
            return None  # somebody else took it
        return Overrun(
            "out_of_memory",
            f"the job held {_mebibytes(held_bytes)} of memory, "
            f"{_mebibytes(free_bytes)} were left on the machine",
        )

    def _disk_overrun(self) -> Overrun | None:
        started_s = time.monotonic()
        if started_s < self._next_look_s:
            return None
        taken_bytes = sum(size for folder in self._folders for size in _sizes_bytes(folder))
        now_s = time.monotonic()
        self._next_look_s = now_s + (now_s - started_s) / LOOK_SHARE
        if taken_bytes <= self._disk_bytes:
            return None
        return Overrun(
            "disk_quota",
            f"the job's files took {_mebibytes(taken_bytes)}, it may have "
            f"{_mebibytes(self._disk_bytes)}",
        )


def free_memory_bytes() -> int:
    """Memory that can be taken without swapping, also by the control groups we are in."""
    return min([_free_on_machine_bytes(), *_free_in_groups_bytes()])


def memory_kill_count() -> int | None:
    """How many processes the kernel has killed for want of memory; None where it does not say."""
    return _fields(Path("/proc/vmstat")).get("oom_kill")


def _free_on_machine_bytes() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(":")
        if key == "MemAvailable":
            return int(value.removesuffix("kB")) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")


def _free_in_groups_bytes() -> Iterator[int]:
    """What is left in each group above us that has a limit and lets us see it."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        for hierarchy, mount, limit, usage, reclaimable in _MEMORY_GROUPS:
            if hierarchy not in controllers.split(","):
                continue
            group = Path(mount + path)
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError):
                    left = _number(folder / limit) - _number(folder / usage)
                    yield left + _fields(folder / "memory.stat").get(reclaimable, 0)
                if folder == Path(mount):
                    break


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))


def _fields(path: Path) -> dict[str, int]:
    """The lines of a file of names and numbers."""
    with suppress(OSError):
        lines = (line.split() for line in path.read_text(encoding="ascii").splitlines())
        return {line[0]: int(line[1]) for line in lines if len(line) == 2}
    return {}


def _sizes_bytes(folder: Path) -> Iterator[int]:
    """What each file below a folder takes on disk; one that goes away meanwhile takes nothing."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _sizes_bytes(Path(entry.path))
            with suppress(OSError):
                yield entry.stat(follow_symlinks=False).st_blocks * 512


def _mebibytes(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.0f} MiB"
