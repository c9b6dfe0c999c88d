"""The step loop of a rank: warm up, time and profile the work, and account for its memory.

The one place where work is timed: device work included, by this machine's monotonic clock.
"""

import ctypes
import math
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import torch
import torch.distributed as dist
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity

from evaluator.rank.job import Measure
from evaluator.rank.protocol import (
    Gate,
    Phase,
    Progress,
    Stop,
    next_block,
    reason_to_stop,
    status_bytes,
)

T = TypeVar("T")
Wait = Callable[[], None]
"""Returns once the device has done all that it was given."""


def time_work(work: Callable[[], T], wait: Wait) -> tuple[int, int, T]:
    """Do `work` on an idle device; return start and end in nanoseconds, and what it returned."""
    wait()
    start_ns = time.perf_counter_ns()
    result = work()
    wait()
    return start_ns, time.perf_counter_ns(), result


def waiting_for(device: torch.device) -> Wait:
    """Return what waits for a device; on a CPU everything is done when a call returns."""
    if device.type != "cuda":
        return lambda: None
    return lambda: torch.cuda.synchronize(device)


Window = tuple[int, ...]
"""Start, marks and end of one step, nanoseconds of this machine's monotonic clock."""


class Work(Protocol):
    """What an entry returns: steps that can be repeated, and what they computed."""

    def step(self, index: int) -> int:
        """Do step `index`; return the tokens this rank fed, each token counted on one rank.

        May return before the device is done.
        """

    def global_losses(self) -> list[float]:
        """Mean loss of each step so far over the whole batch; every rank must call it.

        Empty on a rank that does not see the loss, equal on all that do.
        """


@runtime_checkable
class MarkedWork(Work, Protocol):
    """Work whose steps have parts that are timed by themselves."""

    def marks_ns(self) -> list[int]:
        """When each part of the latest step ended, by `time.perf_counter_ns`, but for the last."""


@runtime_checkable
class ClosedWork(Work, Protocol):
    """Work that holds on to something beyond the default group, such as a separate group."""

    def close(self) -> None:
        """Let go of it; every rank must call it, once, when all have done their steps."""


class UnequalStepsError(RuntimeError):
    """Two steps of one run fed different token counts, so their times do not compare."""


class LossError(RuntimeError):
    """The training went wrong: a loss is no longer a number."""


def finite_losses(work: Work) -> list[float]:
    """Ask the work for its losses; every rank must call it. Raises `LossError`."""
    losses = work.global_losses()
    for step, loss in enumerate(losses):
        if not math.isfinite(loss):
            raise LossError(f"the loss of step {step} is {loss}")
    return losses


class StepClock:
    """Drives the work and keeps when each step began and ended."""

    def __init__(self, work: Work, *, device: torch.device, progress: Progress) -> None:
        self._work = work
        self._device = device
        self._wait = waiting_for(device)
        self._progress = progress
        self._next_step = 0
        self._tokens_per_step: int | None = None

    @property
    def tokens_per_step(self) -> int:
        """Tokens that this rank fed in each step; raises before the first step."""
        if self._tokens_per_step is None:
            raise RuntimeError("no step was run yet")
        return self._tokens_per_step

    def run(self, phase: Phase, step_count: int) -> list[Window]:
        """Run steps and return when each began and ended, device work included.

        In the profile phase each step is marked as the trace readers expect it.
        """
        windows: list[Window] = []
        for _ in range(step_count):
            step = self._next_step
            self._next_step += 1
            self._progress.beat(phase, step)
            profiled = phase is Phase.PROFILE
            with (
                torch.profiler.record_function(f"ProfilerStep#{step}")
                if profiled
                else nullcontext()
            ):
                windows.append(self._run_one(step))
        self._progress.beat(phase)
        return windows

    def sample(self, measure: Measure) -> tuple[list[Window], Stop | None]:
        """Time steps; return them and why there are not more, None where the number was fixed.

        Every rank must call it: between blocks of steps all look at the same times.
        """
        if measure.is_fixed:
            return self.run(Phase.TIMED, measure.timed_steps), None
        windows: list[Window] = []
        times_s: list[float] = []
        stopped = None
        while stopped is None:
            block = self.run(Phase.TIMED, next_block(measure, len(windows)))
            windows += block
            times_s += self._slowest_s(block)
            stopped = reason_to_stop(measure, times_s)
        return windows, stopped

    def take_turns(self, measure: Measure, gate: Gate) -> tuple[list[Window], list[Window]]:
        """Warm up in the first turn, and time one step in each that follows; return both.

        What slows one step mostly slows the next one too, of whichever job, and is gone a few
        steps later: only steps that follow each other share it.
        """
        if not gate.wait():
            return [], []
        warmup, windows = self.run(Phase.WARMUP, measure.warmup_steps), list[Window]()
        while gate.wait():
            windows += self.run(Phase.TIMED, 1)
        return warmup, windows

    def _slowest_s(self, block: Sequence[Window]) -> list[float]:
        """Each step's time on the rank that took longest, the same on all ranks."""
        own_s = [(window[-1] - window[0]) / 1e9 for window in block]
        times_s = torch.tensor(own_s, dtype=torch.float64, device=self._device)
        dist.all_reduce(times_s, op=dist.ReduceOp.MAX)
        slowest_s: list[float] = times_s.tolist()
        return slowest_s

    def _run_one(self, step: int) -> Window:
        start_ns, end_ns, tokens = time_work(lambda: self._work.step(step), self._wait)
        if self._tokens_per_step not in (None, tokens):
            raise UnequalStepsError(
                f"step {step} fed {tokens} tokens, the one before {self._tokens_per_step}"
            )
        self._tokens_per_step = tokens
        marks_ns = self._work.marks_ns() if isinstance(self._work, MarkedWork) else []
        return start_ns, *marks_ns, end_ns


def profile_steps(
    clock: StepClock, step_count: int, *, device: torch.device, shapes: bool, path: Path
) -> None:
    """Run steps under the profiler and write their Kineto trace, whole or not at all.

    Readers take the size of gloo's messages from the shapes of operands, where they are recorded.
    """
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    # The profiler's own events are not used: not building them halves the time that it
    # takes to stop.
    only_traced = _only_traced()
    with torch.profiler.profile(
        activities=activities, record_shapes=shapes, experimental_config=only_traced
    ) as profiler:
        clock.run(Phase.PROFILE, step_count)
    # Not compressed: what is kept of it the store packs better, in a fifth of gzip's time.
    partial = path.with_name(f".{path.name}.partial")
    profiler.export_chrome_trace(str(partial))
    partial.replace(path)


def _only_traced() -> _ExperimentalConfig | None:
    try:
        return _ExperimentalConfig(trace_only=True)
    except TypeError:  # older torch always builds them
        return None


_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
_THREAD_STACK_BYTES = 1 << 20
_UNUSED_BYTES = 16 << 20  # mapped by any small job without being used
_GROUP_BYTES = 4 << 20  # threads and buffers of a process group, with some to spare
_THREAD_ATTRIBUTES_BYTES = 64  # the largest pthread_attr_t of the 64-bit platforms


class _Heap(ctypes.Structure):
    """What glibc's `mallinfo` returns: ten numbers, the ninth is what free blocks hold."""

    _fields_ = (("_", ctypes.c_uint * 8), ("free_bytes", ctypes.c_uint), ("_top", ctypes.c_uint))


class HostMemory:
    """The memory that this process adds to what it used when the rank began.

    Blocks that were free by then, as compiling modules leaves them in the process that a rank is
    forked from, are not counted as used: a rank that fills them takes memory like any other.

    The budget is a soft limit on the data segment (RLIMIT_DATA): private writable pages,
    counted when they are mapped. So it also counts thread stacks and freed blocks that the
    allocator keeps; some of that is allowed beyond the budget. The peak counts resident pages
    other than a file's: code of the libraries is shared between ranks and no choice of the
    configuration's.
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        libc.malloc_trim(0)
        # A forked child inherits its parent's peak; this sets it to what is resident now.
        _CLEAR_REFS.write_text(_RESET_PEAK, encoding="ascii")
        self._own_at_start_bytes = status_bytes("VmRSS") - status_bytes("RssFile")
        libc.mallinfo.restype = _Heap
        self._used_at_start_bytes = status_bytes("VmData") - libc.mallinfo().free_bytes

    @contextmanager
    def budget(self, budget_bytes: int) -> Iterator[None]:
        """Limit the block to what was used at the start, the budget, and some to spare."""
        _shrink_thread_stacks()
        limits = resource.getrlimit(resource.RLIMIT_DATA)
        soft = self._used_at_start_bytes + budget_bytes + _UNUSED_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (soft, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, limits)

    def peak_bytes(self) -> int:
        """The highest resident size since the start, less files and what was there before."""
        own_peak_bytes = status_bytes("VmHWM") - status_bytes("RssFile")
        return own_peak_bytes - self._own_at_start_bytes


class DeviceMemory:
    """The memory of one CUDA device, as far as PyTorch's allocator hands it out."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        torch.cuda.reset_peak_memory_stats(device)

    @contextmanager
    def budget(self, budget_bytes: int) -> Iterator[None]:
        """Cap the caching allocator in the block at the budget's share of the device."""
        _, total_bytes = torch.cuda.mem_get_info(self._device)
        share = min(1.0, budget_bytes / total_bytes)
        torch.cuda.set_per_process_memory_fraction(share, self._device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, self._device)

    def peak_bytes(self) -> int:
        """The most bytes that tensors held so far."""
        return torch.cuda.max_memory_allocated(self._device)


def energy_j(device: torch.device) -> float | None:
    """Joules that a device used since its driver was loaded; None where NVML does not say."""
    if device.type != "cuda":
        return None
    handle, used_mj = ctypes.c_void_p(), ctypes.c_ulonglong()
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        failed = (
            nvml.nvmlInit_v2()
            or nvml.nvmlDeviceGetHandleByUUID(device_uuid(device).encode(), ctypes.byref(handle))
            or nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(used_mj))
        )
    except (OSError, AttributeError):  # no NVML, one without these calls, or a torch without `uuid`
        return None
    return None if failed else used_mj.value / 1e3


def device_uuid(device: torch.device) -> str:
    """The name of a CUDA device that no other has."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def open_memory(device: torch.device) -> HostMemory | DeviceMemory:
    """Start to count the memory of the device that this rank computes on."""
    return DeviceMemory(device) if device.type == "cuda" else HostMemory()


def require_room_for_groups(count: int) -> None:
    """Raise `MemoryError` when N process groups do not fit under the limit in force.

    Where a thread of a group cannot be started, gloo aborts the process or never returns.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    room_bytes = soft - status_bytes("VmData")
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
