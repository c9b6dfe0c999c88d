"""Launches that share the machine: jobs that take turns to step, and slots for parallel jobs.

What drifts between launches, a clock or a neighbour's load, affects jobs that take turns alike.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Protocol

from evaluator.launchers.limits import free_memory_bytes
from evaluator.machine import shareable_gpu_bytes
from evaluator.ports import Job, JobResult, Launcher, PhaseListener
from evaluator.rank.protocol import ANSWERS, GO, NO_MORE, READY, TURNS_VARIABLE, gate_name
from records.errors import StudyError
from records.study import Study

ENDED = b"e"
TURN_TAKING_RECIPES = ("builtin", "collectives")
"""Recipes whose ranks wait for their turn."""
MEMORY_SHARE = 0.5
"""Share of the free memory that interleaved launches may take."""
GPU_MEMORY_SHARE = 0.8
"""Likewise for a GPU; the rest is for the driver and NCCL, whose memory peaks do not include."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterleavedRun:
    """How jobs that took turns ended; `first_to_fail` ended before all turns were over.

    The others were then released early: how they ended is not their fault.
    """

    results: tuple[JobResult, ...]
    first_to_fail: int | None


def fits_together(study: Study, peak_memory_bytes: Sequence[tuple[int, ...]]) -> bool:
    """Whether launches that took this much on each rank may be on this machine together."""
    can_wait = study.is_local and study.launch.recipe in TURN_TAKING_RECIPES
    if study.measure.together == "never" or study.contexts or not can_wait:
        return False
    match study.environment.device:
        case "cpu":
            return sum(map(sum, peak_memory_bytes)) <= MEMORY_SHARE * free_memory_bytes()
        case "cuda" if all(peak_memory_bytes):
            # Rank r of every job is on GPU r.
            taken = [sum(ranks) for ranks in zip_longest(*peak_memory_bytes, fillvalue=0)]
            free = shareable_gpu_bytes()
            return len(taken) <= len(free) and all(
                rank <= GPU_MEMORY_SHARE * gpu for rank, gpu in zip(taken, free, strict=False)
            )
        case _:
            return False


def run_interleaved(
    jobs: Sequence[Job],
    workdirs: Sequence[Path],
    launchers: Sequence[Launcher],
    *,
    orders: Sequence[Sequence[int]],
    on_phase: PhaseListener,
) -> InterleavedRun:
    """Run all jobs together, each by its launcher; they step in these orders, after a warm-up.

    Each has the time limit of all. Raises what a launcher raises, once every job has ended.
    """
    with TemporaryDirectory(prefix="cclsearch-turns-") as folder, ExitStack() as opened:
        slots: list[_Slot] = []
        for number, (job, workdir) in enumerate(zip(jobs, workdirs, strict=True)):
            pipes = Path(folder, str(number))
            slot = _Slot(replace(job, timeout_s=job.timeout_s * len(jobs)), pipes)
            opened.callback(slot.close)
            slots.append(slot)
            slot.start(launchers[number], workdir)
        first_to_fail = _run_turns(slots, orders, on_phase)
        for slot in slots:
            slot.release()
        results = tuple(slot.result() for slot in slots)
    return InterleavedRun(results=results, first_to_fail=first_to_fail)


def turn_orders(count: int, turn_count: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """Return one order of jobs for each turn: two alternate forward and back, more are shuffled."""
    random = Random(seed)
    first, *others = random.sample(range(count), count)
    if len(others) == 1:
        there_and_back = ((first, *others), (*others, first))
        return tuple(there_and_back[turn % 2] for turn in range(turn_count))
    return tuple(tuple(random.sample(range(count), count)) for _ in range(turn_count))


def _run_turns(
    slots: Sequence["_Slot"], orders: Sequence[Sequence[int]], on_phase: PhaseListener
) -> int | None:
    """Let the jobs step one after the other; return the first that ended too early."""
    on_phase("setup")
    for number, slot in enumerate(slots):
        if not slot.is_ready():
            return number
    warmups = [range(len(slots))]
    for phase, turns in (("warmup", warmups), ("timed", orders)):
        on_phase(phase)
        for number in chain.from_iterable(turns):
            if not slots[number].take_turn():
                return number
    on_phase("done")
    return None


class _Slot:
    """One of several jobs: a thread in its launcher, and the pipes to the gates of its ranks."""

    def __init__(self, job: Job, pipes: Path) -> None:
        pipes.mkdir()
        self._job = replace(job, environment={**job.environment, TURNS_VARIABLE: str(pipes)})
        self._answers = _pipe(pipes / ANSWERS)
        self._gates = [_pipe(pipes / gate_name(rank)) for rank in range(job.world_size)]
        self._thread: Thread | None = None
        self._result = Future[JobResult]()

    def start(self, launcher: Launcher, workdir: Path) -> None:
        # A daemon: if we are killed, so is what the launcher started.
        self._thread = Thread(target=self._run, args=(launcher, workdir), daemon=True)
        self._thread.start()

    def is_ready(self) -> bool:
        """Wait until all ranks are at their gates; False when the job has ended instead."""
        return all(os.read(self._answers, 1) == READY for _ in self._gates)

    def take_turn(self) -> bool:
        """Let all ranks through, and wait until they are back; False when the job has ended."""
        self._send(GO)
        return self.is_ready()

    def release(self) -> None:
        """End the turns of all ranks, wherever they are."""
        self._send(NO_MORE)

    def result(self) -> JobResult:
        """Wait for the job and return how it ended; raises what its launcher raised."""
        return self._result.result()

    def close(self) -> None:
        """End the job at its next gate, and close the pipes once it has ended."""
        self.release()
        if self._thread is not None:
            self._thread.join()
        for pipe in (self._answers, *self._gates):
            os.close(pipe)

    def _run(self, launcher: Launcher, workdir: Path) -> None:
        try:
            self._result.set_result(launcher.run(self._job, workdir, lambda _phase: None))
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._result.set_exception(error)
        finally:
            os.write(self._answers, ENDED)

    def _send(self, order: bytes) -> None:
        for gate in self._gates:
            os.write(gate, order)


def _pipe(path: Path) -> int:
    """Make a named pipe and open it so that neither end waits for the other."""
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


class Slots(Protocol):
    """What jobs that run in parallel share out: devices, cores or nodes."""

    @property
    def count(self) -> int:
        """How many there are."""
        ...

    def needed(self, job: Job) -> int:
        """Return how many a job takes."""
        ...

    def confine(self, job: Job, numbers: Sequence[int]) -> Job:
        """Return the job confined to these slots."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSlots:
    """Devices, by their names in CUDA_VISIBLE_DEVICES, or cores; one or the other."""

    devices: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.devices) or len(self.cores)

    def needed(self, job: Job) -> int:
        """Return how many a job takes: a device for each rank, or a core for each thread."""
        return job.world_size * (1 if self.devices else job.threads_per_rank)

    def confine(self, job: Job, numbers: Sequence[int]) -> Job:
        """Return the job confined to these slots."""
        if self.devices:
            visible = ",".join(self.devices[number] for number in numbers)
            return replace(job, environment={**job.environment, VISIBLE_DEVICES: visible})
        return replace(job, cores=tuple(self.cores[number] for number in numbers))


def device_slots(study: Study, visible_devices: str | None) -> DeviceSlots:
    """Return the slots of this machine for a study, no more than its ranks may take.

    `visible_devices` is CUDA_VISIBLE_DEVICES as it is set for us; None where all GPUs are visible.
    """
    world_size = study.environment.world_size
    if study.environment.device == "cuda":
        listed = None if visible_devices is None else visible_devices.split(",")
        return DeviceSlots(devices=tuple(listed or map(str, range(world_size)))[:world_size])
    if study.environment.device == "tpu":
        raise StudyError("parallel needs GPUs or cores to share out; on TPUs trials run one by one")
    most = world_size * study.launch.threads_per_rank
    return DeviceSlots(cores=tuple(sorted(os.sched_getaffinity(0))[:most]))
