"""The one place where work is timed: device work included, by this machine's monotonic clock."""

import time
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")
Wait = Callable[[], None]
"""Returns once the device has done all that it was given."""


def timed(work: Callable[[], T], wait: Wait) -> tuple[int, int, T]:
    """Do `work` on an idle device; give its start and end in nanoseconds, and what it returned."""
    wait()
    start_ns = time.perf_counter_ns()
    result = work()
    wait()
    return start_ns, time.perf_counter_ns(), result


def waiting_for(device: torch.device) -> Wait:
    """Give what waits for a device; on a CPU everything is done when a call returns."""
    if device.type != "cuda":
        return _nothing
    return lambda: torch.cuda.synchronize(device)


def _nothing() -> None:
    """Do nothing."""
