"""One rank from start to end: join the group, build the work, time it, write the results."""

import importlib
import json
import os
import platform
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NoReturn, TypeAlias, TypeVar

import torch
import torch.distributed as dist

from evaluator.rank.job import AnyJob, DeviceKind, Job, JobError, parse
from evaluator.rank.protocol import (
    RENDEZVOUS_VARIABLE,
    Gate,
    Phase,
    Progress,
    RankFile,
    RankNumbers,
    Stop,
    cpu_model,
    join_rendezvous,
    open_gate,
    read_rank_numbers,
    write_failure,
    write_json,
)
from evaluator.rank.steps import (
    ClosedWork,
    StepClock,
    Window,
    Work,
    device_uuid,
    energy_j,
    finite_losses,
    open_memory,
    profile_steps,
    require_room_for_groups,
)


def read_job(path: Path) -> AnyJob:
    """Read a job file as its entry's module takes it, which is imported.

    Raises `JobError` with the file's name and the part that is wrong.
    """
    kind: type[AnyJob] = Job  # which says what is wrong where there is no entry
    try:
        text = path.read_text(encoding="utf-8")
        with suppress(json.JSONDecodeError, RecursionError):
            match json.loads(text):
                case {"entry": str(entry)}:
                    load_entry(entry)
                    kind = getattr(sys.modules[entry.partition(":")[0]], "JOB", Job)
        return parse(kind, text)
    except (OSError, JobError) as error:
        raise JobError(f"{path.name}: {error}") from error


def load_entry(entry: str) -> Callable[..., Work]:
    """Return the function of a context that an entry names; raises `JobError` if there is none."""
    module, _, function = entry.partition(":")
    if not (module and function):
        raise JobError(f"entry: expected 'package.module:function', got {entry!r}")
    try:
        loaded: Callable[..., Work] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise JobError(f"entry: {entry} cannot be loaded: {error}") from error
    return loaded


JobT_co = TypeVar("JobT_co", bound=AnyJob, covariant=True)


# Not slotted: a frozen class with slots cannot be called through an alias that names its job.
@dataclass(frozen=True, kw_only=True)
class Context(Generic[JobT_co]):
    """The rank's number, its device and its job: the only argument of an entry."""

    rank: int
    local_rank: int
    device: torch.device
    job: JobT_co

    @property
    def device_name(self) -> str:
        """What the hardware calls itself."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return cpu_model() or platform.machine()


RankContext: TypeAlias = Context[Job]
"""What entries of the training and inference workloads are given."""


def open_context(numbers: RankNumbers, job: AnyJob) -> Context[AnyJob]:
    """Give the rank its device; raises `JobError` if the launcher started another world."""
    if numbers.world_size != job.world_size:
        raise JobError(
            f"WORLD_SIZE is {numbers.world_size}, but the job's world_size is {job.world_size}"
        )
    device = bind_device(job.device, numbers.local_rank, job.threads_per_rank)
    return Context(rank=numbers.rank, local_rank=numbers.local_rank, device=device, job=job)


def bind_device(kind: DeviceKind, local_rank: int, thread_count: int) -> torch.device:
    """Give this process its device: a GPU, or cores for its threads."""
    torch.set_num_threads(thread_count)
    if kind is DeviceKind.CUDA:
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        return device
    pin_to_cores(local_rank, thread_count)
    return torch.device("cpu")


def pin_to_cores(local_rank: int, thread_count: int) -> None:
    """Pin this process, and every thread it starts later, to its own cores.

    Unpinned ranks wander between cores and wait for each other; cores are shared in turn
    when there are fewer of them than ranks.
    """
    allowed = sorted(os.sched_getaffinity(0))
    first = local_rank * thread_count
    own = {allowed[(first + i) % len(allowed)] for i in range(thread_count)}
    os.sched_setaffinity(0, own)


FILE_SCHEME = "file://"


def run(job_path: str) -> int:
    """Run this process's rank of a job in the current folder and return its exit status.

    Whatever happens is left in the folder: steps and a trace, or one error file. Raises
    `JobError` only if the environment does not give the rank's number.
    """

    def work(numbers: RankNumbers, progress: Progress) -> None:
        job = read_job(Path(job_path))
        is_host = job.device is DeviceKind.CPU
        progress.memory_limited = is_host and job.memory_budget_bytes is not None
        _run_job(open_context(numbers, job), Path.cwd(), progress)

    return record_failure(work)


def record_failure(work: Callable[[RankNumbers, Progress], None]) -> int:
    """Do the work of this process's rank, return its exit status, and leave its error file.

    Raises `JobError` if the environment does not give the rank's number.
    """
    numbers = read_rank_numbers()
    progress = Progress(Path.cwd(), rank=numbers.rank)
    try:
        progress.beat(Phase.SETUP)
        work(numbers, progress)
    except Exception as error:  # noqa: BLE001 - the rank's boundary: any failure becomes its record
        traceback.print_exc()
        write_failure(
            Path.cwd(),
            error,
            rank=numbers.rank,
            phase=progress.phase,
            memory_limited=progress.memory_limited,
        )
        return 1
    return 0


def _run_job(context: Context[AnyJob], folder: Path, progress: Progress) -> None:
    job = context.job
    # Loaded before memory is counted: a cold rank pays for its imports, a forked one does not.
    entry = load_entry(job.entry)
    memory, budget_bytes = open_memory(context.device), job.memory_budget_bytes
    with nullcontext() if budget_bytes is None else memory.budget(budget_bytes):
        _join_group(context)
        work = entry(context)
        clock = StepClock(work, device=context.device, progress=progress)
        warmup, timed, stopped, energy = _steps(clock, context, open_gate(context.rank))
        peak_memory_bytes = memory.peak_bytes()
    document = {
        "rank": context.rank,
        "warmup": warmup,
        "timed": timed,
        "stopped": stopped,
        "losses": finite_losses(work),
        "tokens_per_step": clock.tokens_per_step,
        "peak_memory_bytes": peak_memory_bytes,
        "energy": energy,
        "device": context.device_name,
        "torch": torch.__version__,
    }
    write_json(folder / RankFile.STEPS.of(context.rank), document)
    # The time of a configuration that is out of the race needs no explanation.
    if job.measure.profiled_steps and stopped is not Stop.SLOWER:
        trace = folder / f"rank{context.rank}_trace.json"
        profile_steps(
            clock,
            job.measure.profiled_steps,
            device=context.device,
            shapes=_records_shapes(job),
            path=trace,
        )
    progress.beat(Phase.DONE)
    dist.barrier()
    if isinstance(work, ClosedWork):
        work.close()
    dist.destroy_process_group()


def _records_shapes(job: AnyJob) -> bool:
    """Whether a trace is to hold the shapes of operands.

    Distributed tensors run ten times as many operators as others, and on CPU ranks their shapes
    would take the profiler longer than the step.
    """
    return not (isinstance(job, Job) and job.device is DeviceKind.CPU and job.config.tp > 1)


def _steps(
    clock: StepClock, context: Context[AnyJob], gate: Gate | None
) -> tuple[list[Window], list[Window], Stop | None, dict[str, object] | None]:
    """Steps to warm up, timed steps, why there are not more, and the energy of the timed ones.

    A job that takes turns has no energy: between its turns the device works for other jobs.
    """
    measure, device = context.job.measure, context.device
    if gate is not None:
        return *clock.take_turns(measure, gate), None, None
    warmup = clock.run(Phase.WARMUP, measure.warmup_steps)
    before_j = energy_j(device)
    timed, stopped = clock.sample(measure)
    after_j = energy_j(device)
    if before_j is None or after_j is None:
        return warmup, timed, stopped, None
    used = {"device": device_uuid(device), "joules": after_j - before_j}
    return warmup, timed, stopped, used


def _join_group(context: Context[AnyJob]) -> None:
    on_cuda = context.device.type == "cuda"
    require_room_for_groups(1)
    # A launcher that forks ranks in parallel gives each launch a separate rendezvous.
    init_method = os.environ.get("CCLSEARCH_INIT_METHOD", context.job.init_method)
    if init_method == FILE_SCHEME:
        # Ranks of an mpirun get no address; those started manually have no rendezvous either.
        store = Path(os.environ.get(RENDEZVOUS_VARIABLE, "")).absolute() / "store"
        init_method = f"{FILE_SCHEME}{store}"
    dist.init_process_group(
        backend="nccl" if on_cuda else "gloo",
        init_method=init_method,
        rank=context.rank,
        world_size=context.job.world_size,
        device_id=context.device if on_cuda else None,
    )


def main(run_file: Callable[[str], int]) -> NoReturn:
    """Run the rank of the file that the command line names, and end the process with its status."""
    if RENDEZVOUS_VARIABLE in os.environ:
        join_rendezvous(Path(os.environ[RENDEZVOUS_VARIABLE]), read_rank_numbers().rank)
    status = run_file(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    # After a failure a communication thread may wait for a peer that is gone; do not join it.
    os._exit(status)


if __name__ == "__main__":
    main(run)
