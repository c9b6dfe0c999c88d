"""What ends a rank whose point of a sweep takes too long: nobody else knows that it is stuck."""

import faulthandler
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from evaluator.rank.failure import write_failure
from evaluator.rank.progress import Phase

TIMED_OUT = 124
"""Exit status of a rank that was ended, as that of timeout(1)."""


class PointTimeoutError(RuntimeError):
    """A point of a sweep that did not end in its time."""


@contextmanager
def time_limit(
    timeout_s: float, doing: object, *, rank: int, folder: Path | None
) -> Iterator[None]:
    """End the process unless the block ends within so many seconds, and tell what it was doing.

    A line and the stacks go to stderr, and the rank's error file into the folder if there is one.
    Until then a thread sleeps that nothing wakes.
    """
    error = PointTimeoutError(f"{doing}: no end after {timeout_s:g} s")
    timer = threading.Timer(timeout_s, _give_up, (error, rank, folder))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(error: PointTimeoutError, rank: int, folder: Path | None) -> NoReturn:
    try:
        sys.stderr.write(f"rank {rank}: {error}\n")
        sys.stderr.flush()
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        if folder is not None:
            write_failure(folder, error, rank=rank, phase=Phase.TIMED, memory_limited=False)
    finally:
        os._exit(TIMED_OUT)
