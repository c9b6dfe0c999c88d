"""What has to be safe on disk before it counts."""

import os
import stat
from contextlib import suppress
from pathlib import Path

DATABASE = "cclsearch.db"
PRIVATE = ("artifacts", "journal", "service", "trusted", "work")
"""What of a store tells policies, conversations with a model and logs."""


def sync(path: Path) -> None:
    """Force the content of a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def keep_private(root: Path) -> None:
    """Close what a store holds to other users of the machine, where this user owns it.

    The folder itself is left as it is: it may be one that somebody made for more than the store.
    """
    database = root / DATABASE
    if not database.exists():  # what is written next to it is as private as it is
        os.close(os.open(database, os.O_RDWR | os.O_CREAT, 0o600))
    for path in (database, *(root / name for name in PRIVATE)):
        with suppress(OSError):  # it is not there, or on a disk that cannot be written
            found = path.lstat()
            is_ours = found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode)
            if is_ours and found.st_mode & 0o077:
                path.chmod(stat.S_IMODE(found.st_mode) & ~0o077)
