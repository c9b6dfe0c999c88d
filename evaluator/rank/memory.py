"""How much memory the work may take and how much it took, on the host or on a device."""

import ctypes
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
_THREAD_STACK_BYTES = 1 << 20
_UNUSED_BYTES = 16 << 20  # mapped by any small job without being used
_GROUP_BYTES = 4 << 20  # threads and buffers of a process group, with some to spare
_THREAD_ATTRIBUTES_BYTES = 64  # the largest pthread_attr_t of the 64-bit platforms


class Memory(Protocol):
    """One rank's memory; growth is counted from the moment the value is made."""

    def limit(self, budget_bytes: int) -> None:
        """Make allocations fail once the rank has taken this much."""

    def lift(self) -> None:
        """Allow what was allowed before `limit`."""

    def peak_bytes(self) -> int:
        """The most that was resident at once so far."""


class HostMemory:
    """The memory that this process adds to what it had when the rank began.

    The budget is a soft limit on the data segment (RLIMIT_DATA): private writable pages,
    counted when they are mapped. So it also counts thread stacks and freed blocks that the
    allocator keeps; some of that is allowed beyond the budget. The peak counts resident pages
    other than a file's: code of the libraries is shared between ranks and no choice of the
    configuration's.
    """

    def __init__(self) -> None:
        # A forked child inherits its parent's peak; this sets it to what is resident now.
        _CLEAR_REFS.write_text(_RESET_PEAK, encoding="ascii")
        self._own_at_start_bytes = _status_bytes("VmRSS") - _status_bytes("RssFile")
        self._mapped_at_start_bytes = _status_bytes("VmData")
        self._limits_at_start = resource.getrlimit(resource.RLIMIT_DATA)

    def limit(self, budget_bytes: int) -> None:
        """Set the soft limit to what was mapped at the start, the budget, and some to spare."""
        _shrink_thread_stacks()
        soft = self._mapped_at_start_bytes + budget_bytes + _UNUSED_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (soft, self._limits_at_start[1]))

    def lift(self) -> None:
        """Restore the limit that the process started under."""
        resource.setrlimit(resource.RLIMIT_DATA, self._limits_at_start)

    def peak_bytes(self) -> int:
        """The highest resident size since the start, less files and what was there before."""
        own_peak_bytes = _status_bytes("VmHWM") - _status_bytes("RssFile")
        return own_peak_bytes - self._own_at_start_bytes


class DeviceMemory:
    """The memory of one CUDA device, as far as PyTorch's allocator hands it out."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        torch.cuda.reset_peak_memory_stats(device)

    def limit(self, budget_bytes: int) -> None:
        """Cap the caching allocator at the budget's share of the device."""
        _, total_bytes = torch.cuda.mem_get_info(self._device)
        torch.cuda.set_per_process_memory_fraction(
            min(1.0, budget_bytes / total_bytes), self._device
        )

    def lift(self) -> None:
        """Give the allocator the whole device again."""
        torch.cuda.set_per_process_memory_fraction(1.0, self._device)

    def peak_bytes(self) -> int:
        """Most bytes held by tensors at once."""
        return torch.cuda.max_memory_allocated(self._device)


def open_memory(device: torch.device) -> Memory:
    """Start to count the memory of the device that this rank computes on."""
    return DeviceMemory(device) if device.type == "cuda" else HostMemory()


@contextmanager
def budgeted(memory: Memory, budget_bytes: int | None) -> Iterator[None]:
    """Hold the rank to its budget inside the block; `None` sets no limit."""
    if budget_bytes is None:
        yield
        return
    memory.limit(budget_bytes)
    try:
        yield
    finally:
        memory.lift()


def require_room_for_groups(count: int) -> None:
    """Raise `MemoryError` when so many process groups do not fit under the limit in force.

    Where a thread of a group cannot be started, gloo aborts the process or never returns.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    room_bytes = soft - _status_bytes("VmData")
    if soft != resource.RLIM_INFINITY and room_bytes < count * _GROUP_BYTES:
        raise MemoryError(
            f"unable to allocate {count * _GROUP_BYTES >> 20} MiB for threads of process groups; "
            f"{max(0, room_bytes) >> 20} MiB are left of the memory budget"
        )


def _shrink_thread_stacks() -> None:
    """Give threads started from now on small stacks.

    Each process group starts threads whose stacks would count in full, 8 MiB each, so that a
    grid of several axes would be charged for memory it never touches.
    """
    libc = ctypes.CDLL(None)
    attributes = ctypes.create_string_buffer(_THREAD_ATTRIBUTES_BYTES)
    libc.pthread_attr_init(attributes)
    libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(_THREAD_STACK_BYTES))
    libc.pthread_setattr_default_np(attributes)


def _status_bytes(name: str) -> int:
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.removesuffix("kB")) * 1024
    raise OSError(f"{_STATUS} has no {name}")
