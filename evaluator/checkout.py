"""The git working tree around a folder: its commit, and whether anything in it differs."""

import hashlib
import subprocess
from pathlib import Path

from records.machine import Checkout

LIMIT_S = 5.0
# Looking must change nothing, not even git's index, and must start no program of the tree's.
_GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false")
_DIFF = ("diff", "HEAD", "--no-ext-diff", "--no-textconv", "--full-index", "--no-color")


def checkout(folder: Path) -> Checkout | None:
    """The working tree that a folder is in; None outside of any, and without git."""
    commit = commit_of(folder)
    if commit is None:
        return None
    status = _told(folder, "status", "--porcelain=v1", "-z")
    if status is None:
        return Checkout(commit=commit, is_changed=None)
    if not status:
        return Checkout(commit=commit, is_changed=False)
    diff = _told(folder, *_DIFF)
    changes = None if diff is None else hashlib.sha256(status + diff).hexdigest()
    return Checkout(commit=commit, is_changed=True, changes=changes)


def commit_of(folder: Path) -> str | None:
    """The commit that is checked out, None outside of a working tree."""
    told = _told(folder, "rev-parse", "--verify", "HEAD")
    return (told or b"").decode(errors="replace").strip() or None


def _told(folder: Path, *words: str) -> bytes | None:
    """What git answers; None where it is missing, refuses or takes too long."""
    try:
        told = subprocess.run(
            [*_GIT, "-C", str(folder), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=True,
        )
    except (subprocess.SubprocessError, OSError):
        return None
    return told.stdout
