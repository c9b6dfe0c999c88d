"""Locks of a store, which the kernel releases when their process ends, and file system types."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from records.errors import StoreBusy, WriterBusy

WAIT_S = 600
"""Wait for another writer, which may be importing a million trials."""
PROBE_S = 0.2
"""Wait for a process that holds a study for a moment, to change it."""
POLL_S = 0.005


@contextmanager
def hold_opening(root: Path) -> Iterator[None]:
    """Hold the store while its database is set up, where SQLite itself would not wait."""
    with _lock_file(root, "hold_opening") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def hold_writer(root: Path, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the store for writing; raises `WriterBusy` when another process does for `wait_s`."""
    with _lock_file(root, ".writing") as handle:
        until = time.monotonic() + wait_s
        while not _taken(handle):
            if time.monotonic() >= until:
                raise WriterBusy(
                    f"another process has been writing to {root} for {wait_s:g} s; "
                    "wait for it or stop it"
                )
            time.sleep(POLL_S)
        yield


@contextmanager
def hold_study(root: Path, study_id: str) -> Iterator[None]:
    """Hold a study for this process; raises `StoreBusy` when another one does."""
    with _lock_file(root, study_id) as handle:
        until = time.monotonic() + PROBE_S
        while not _taken(handle):
            if _is_only_looked_at(handle):
                until = time.monotonic() + PROBE_S
            elif time.monotonic() >= until:
                holder = os.pread(handle, 20, 0).decode()
                raise StoreBusy(
                    f"study {study_id} is being run by process {holder}; wait for it or stop it"
                )
            time.sleep(POLL_S)
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield


def study_holder(root: Path, study_id: str) -> int | None:
    """The process that holds a study; None if none does, 0 if its id is not written yet."""
    try:
        handle = os.open(root / "locks" / study_id, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        number = os.pread(handle, 20, 0).decode()
        return int(number) if number.isdecimal() else 0
    finally:
        os.close(handle)


@contextmanager
def _lock_file(root: Path, name: str) -> Iterator[int]:
    """A file to lock; closing it gives the lock up."""
    path = root / "locks" / name
    path.parent.mkdir(mode=0o700, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_only_looked_at(handle: int) -> bool:
    """Whether others only share the lock for a moment, as `study_holder` does."""
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(handle, fcntl.LOCK_UN)
    return True


NETWORK_FILE_SYSTEMS = (
    *("nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs"),
    *("glusterfs", "orangefs", "fuse.sshfs", "fuse.glusterfs"),
)
VOLATILE_FILE_SYSTEMS = ("tmpfs", "ramfs")


def file_system(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The type of the file system that a folder is on; `unknown` if the mount table lacks it."""
    held = {folder.resolve(), *folder.resolve().parents}
    found = (0, "unknown")
    try:
        table = mounts.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return found[1]
    for line in table.splitlines():
        _, point, kind, *_ = line.split()
        # A later mount on the same point hides an earlier one.
        if Path(point) in held and len(point) >= found[0]:
            found = len(point), kind
    return found[1]
