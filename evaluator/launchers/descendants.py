"""Processes below this one: who they are, and how they are told to end."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


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


def tell(pid: int, number: signal.Signals) -> None:
    """Send a signal to a descendant of ours; none to another process that got its number."""
    with suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if _is_below_us(pid):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def resident_bytes(pid: int) -> int:
    """Memory of its own that a process holds, shared memory included; 0 when it has ended."""
    held = 0
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key in ("RssAnon", "RssShmem"):
                held += int(value.removesuffix("kB")) * 1024
    return held


def parent_of(pid: int) -> int | None:
    """The parent of a process; None when it has ended."""
    with suppress(OSError):
        # The name, in parentheses, may hold anything; after it: state, parent.
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[1])
    return None


def _is_below_us(pid: int) -> bool:
    ancestor: int | None = pid
    while ancestor and ancestor != os.getpid():
        ancestor = parent_of(ancestor)
    return ancestor == os.getpid()
