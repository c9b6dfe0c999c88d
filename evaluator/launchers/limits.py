"""Limits on the memory and disk of a job, its processes, and cleanup of what it leaves behind."""

import os
import re
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from evaluator.rank.protocol import Confinement, Reason, proc_sizes

SHARED_MEMORY = Path("/dev/shm")
ERROR_BYTES = 1 << 20
# What torch, multiprocessing, NCCL, OpenMP and named semaphores call theirs; files that a user
# keeps there have other names.
_OURS = re.compile(r"torch_|psm_|nccl-|sem\.|__KMP_REGISTERED_LIB_|cuda\.shm\.")


def shared_memory() -> frozenset[str]:
    """Names of the shared memory that there is, of the kinds that a job makes."""
    with suppress(OSError):
        names = (path.name for path in SHARED_MEMORY.iterdir())
        return frozenset(name for name in names if _OURS.match(name))
    return frozenset()


def remove_stale_shared_memory(before: frozenset[str]) -> None:
    """Remove what was made since, belongs to us and is in no living process's use."""
    made = (SHARED_MEMORY / name for name in shared_memory() - before)
    stale = {path: inode for path in made if (inode := _own_inode(path)) is not None}
    if stale:
        used = _inodes_in_use()
        for path, inode in stale.items():
            if inode not in used:
                path.unlink(missing_ok=True)


def remove_special_files(folder: Path) -> None:
    """Remove sockets, pipes and devices below a folder: who reads its files would wait at them."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with suppress(OSError):
                mode = path.lstat().st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                    path.unlink()


def keep_elastic_errors(temporary: Path, folder: Path, first_rank: int = 0) -> None:
    """Copy the error file that torchrun has from each rank to `rank{r}.torchelastic.json`.

    torchrun counts the ranks of its node, which begin with `first_rank`.
    """
    for path in sorted(temporary.glob("torchelastic_*/*/attempt_*/*/error.json")):
        local_rank = path.parent.name
        if local_rank.isdecimal() and path.is_file() and path.stat().st_size <= ERROR_BYTES:
            rank = first_rank + int(local_rank)
            with suppress(OSError):
                shutil.copyfile(path, folder / f"rank{rank}.torchelastic.json")


def _own_inode(path: Path) -> int | None:
    with suppress(OSError):
        status = path.lstat()
        return status.st_ino if status.st_uid == os.getuid() else None
    return None


def _inodes_in_use() -> set[int]:
    """Shared memory that a process which we may look into has mapped or open.

    Names would not do: a named semaphore is mapped under one name and then gets another.
    """
    used: set[int] = set()
    prefix = f"{SHARED_MEMORY}/"
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for line in (process / "maps").read_text(errors="replace").splitlines():
                if prefix in line:
                    used.add(int(line.split()[4]))
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()).startswith(prefix):
                        used.add(descriptor.stat().st_ino)
    return used


def children(pid: int) -> Iterator[int]:
    """Processes that this one, or one of its threads, is the parent of, ended ones included."""
    with suppress(OSError):  # it ended while we looked
        for task in Path(f"/proc/{pid}/task").iterdir():
            listing = (task / "children").read_text(encoding="ascii")
            yield from (int(child) for child in listing.split())


def descendants(pid: int, *, spared: int | None = None) -> list[int]:
    """All processes below this one, without the spared one and what is below that."""
    found = [child for child in children(pid) if child != spared]
    for parent in found:
        found += [child for child in children(parent) if child not in found]
    return found


def is_below_us(pid: int) -> bool:
    """Whether a process is a descendant of this one."""
    ancestor = pid
    while ancestor and ancestor != os.getpid():
        fields = stat_fields(ancestor)
        ancestor = int(fields[1]) if fields else 0
    return ancestor == os.getpid()


def send_signal(
    pid: int, number: signal.Signals, is_meant: Callable[[int], bool] = is_below_us
) -> None:
    """Send a signal to the process that is meant; none to another that got its number."""
    with suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if is_meant(pid):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def resident_bytes(pid: int) -> int:
    """Return the memory that a process holds, shared memory included; 0 when it has ended."""
    sizes = proc_sizes(Path(f"/proc/{pid}/status"))
    return sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0)


def stat_fields(pid: int) -> Sequence[str]:
    """Return what /proc has of a process after its name: state, parent...; nothing if it ended."""
    with suppress(OSError):
        # The name, in parentheses, may hold anything.
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()
    return ()


MEMORY_RESERVE_BYTES = 512 << 20
MEMORY_FLOOR_BYTES = 192 << 20
LEAST_SHARE_BYTES = 128 << 20
DISK_BYTES = 16 << 30
LOOK_SHARE = 0.02
_MEMORY_GROUPS = (
    # hierarchy, where it is mounted, limit, usage, what of it can be reclaimed immediately
    ("", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    (
        "memory",
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


class Limits:
    """The limits of one job, set by what is free when it starts."""

    def __init__(
        self,
        folders: Sequence[Path],
        rank_count: int,
        disk_bytes: int,
        *,
        maps_freely: bool = False,
        cores: Sequence[int] = (),
        niceness: int = 0,
    ) -> None:
        self._folders = folders
        usable = free_memory_bytes() - MEMORY_RESERVE_BYTES
        self._share_bytes = max(LEAST_SHARE_BYTES, usable // rank_count)
        self._maps_freely = maps_freely
        self._cores, self._niceness = tuple(cores), niceness
        free = os.statvfs(folders[0])
        self._disk_bytes = min(disk_bytes, free.f_bavail * free.f_frsize // 2)
        self._next_look_s = 0.0

    @property
    def each_process(self) -> Confinement:
        """What the kernel holds each process to."""
        memory_bytes = None if self._maps_freely else self._share_bytes
        return Confinement(
            memory_bytes=memory_bytes,
            file_bytes=self._disk_bytes * 15 // 16,  # one file too large fails its own write
            cores=self._cores,
            niceness=self._niceness,
        )

    def overrun(self, living: Callable[[], Sequence[int]]) -> tuple[Reason, str] | None:
        """The limit that the job exceeded, and a message; `living` returns its processes."""
        return self._memory_overrun(living) or self._disk_overrun()

    def _memory_overrun(self, living: Callable[[], Sequence[int]]) -> tuple[Reason, str] | None:
        free_bytes = free_memory_bytes()
        if free_bytes >= MEMORY_FLOOR_BYTES:
            return None
        held_bytes = sum(map(resident_bytes, living()))
        if held_bytes < self._share_bytes:
            return None  # other programs took it
        return (
            "out_of_memory",
            f"the job held {_mebibytes(held_bytes)} of memory, "
            f"{_mebibytes(free_bytes)} were left on the machine",
        )

    def _disk_overrun(self) -> tuple[Reason, str] | None:
        started_s = time.monotonic()
        if started_s < self._next_look_s:
            return None
        taken_bytes = sum(size for folder in self._folders for size in _sizes_bytes(folder))
        now_s = time.monotonic()
        self._next_look_s = now_s + (now_s - started_s) / LOOK_SHARE
        if taken_bytes <= self._disk_bytes:
            return None
        return (
            "disk_quota",
            f"the job's files took {_mebibytes(taken_bytes)}, it may have "
            f"{_mebibytes(self._disk_bytes)}",
        )


def free_memory_bytes() -> int:
    """Return what can be taken without swapping, also by the control groups we are in."""
    on_machine = proc_sizes(Path("/proc/meminfo")).get("MemAvailable")
    if on_machine is None:
        raise OSError("/proc/meminfo has no MemAvailable")
    return min([on_machine, *_free_in_groups_bytes()])


def memory_kill_count() -> int | None:
    """How many processes the kernel has killed for want of memory; None where it does not say."""
    return _fields(Path("/proc/vmstat")).get("oom_kill")


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
