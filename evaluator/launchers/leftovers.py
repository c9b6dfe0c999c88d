"""What a job leaves outside of its results: shared memory, sockets, files of torchrun."""

import os
import re
import shutil
import stat
from contextlib import suppress
from pathlib import Path

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
    stale = {path: inode for path in _made_since(before) if (inode := _own_inode(path)) is not None}
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


def keep_elastic_errors(temporary: Path, folder: Path) -> None:
    """Copy the error file that torchrun has from each rank to `rank{r}.torchelastic.json`."""
    for path in sorted(temporary.glob("torchelastic_*/*/attempt_*/*/error.json")):
        rank = path.parent.name
        if rank.isdecimal() and path.is_file() and path.stat().st_size <= ERROR_BYTES:
            with suppress(OSError):
                shutil.copyfile(path, folder / f"rank{rank}.torchelastic.json")


def _made_since(before: frozenset[str]) -> list[Path]:
    return [SHARED_MEMORY / name for name in shared_memory() - before]


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
