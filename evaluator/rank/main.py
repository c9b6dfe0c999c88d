"""One rank from start to end: join the group, build the work, clock it, leave the results."""

import os
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from evaluator.rank.context import Context, pin_to_cores, place, read_rank_numbers
from evaluator.rank.entry import AnyJob, load_entry, read_job
from evaluator.rank.failure import write_failure
from evaluator.rank.files import write_json
from evaluator.rank.job import DeviceKind, Job
from evaluator.rank.meeting import VARIABLE, meet
from evaluator.rank.memory import budgeted, open_memory, require_room_for_groups
from evaluator.rank.profile import profile_steps
from evaluator.rank.progress import Phase, Progress
from evaluator.rank.sampling import Stop
from evaluator.rank.steps import ClosedWork, StepClock, Window, finite_losses
from evaluator.rank.turns import Gate, open_gate

MEETING_FILE = "file://"


def run(job_path: str) -> int:
    """Run this process's rank of a job in the current folder and return its exit status.

    Whatever happens is left in the folder: steps and a trace, or one error file. Raises
    `JobError` only if the environment does not tell the rank its number.
    """
    folder = Path.cwd()
    numbers = read_rank_numbers()
    progress = Progress(folder, rank=numbers.rank)
    job = None
    try:
        progress.beat(Phase.SETUP)
        job = read_job(Path(job_path))
        _run_job(place(numbers, job), folder, progress)
    except Exception as error:  # noqa: BLE001 - the rank's boundary: any failure becomes its record
        traceback.print_exc()
        write_failure(
            folder,
            error,
            rank=numbers.rank,
            phase=progress.phase,
            memory_limited=job is not None and job.memory_budget_bytes is not None,
        )
        return 1
    return 0


def _run_job(context: Context[AnyJob], folder: Path, progress: Progress) -> None:
    job = context.job
    torch.set_num_threads(job.threads_per_rank)
    if context.device.type == "cuda":
        torch.cuda.set_device(context.device)
    else:
        pin_to_cores(context.local_rank, job.threads_per_rank)
    # Loaded before memory is counted: a cold rank pays for its imports, a forked one does not.
    entry = load_entry(job.entry)
    memory = open_memory(context.device)
    with budgeted(memory, job.memory_budget_bytes):
        _join_group(context)
        work = entry(context)
        clock = StepClock(work, device=context.device, progress=progress)
        warmup, timed, stopped = _steps(clock, job, open_gate(context.rank))
        peak_memory_bytes = memory.peak_bytes()
    document = {
        "rank": context.rank,
        "warmup": warmup,
        "timed": timed,
        "stopped": stopped,
        "losses": finite_losses(work),
        "tokens_per_step": clock.tokens_per_step,
        "peak_memory_bytes": peak_memory_bytes,
        "device": context.device_name,
        "torch": torch.__version__,
    }
    write_json(folder / f"rank{context.rank}.steps.json", document)
    # Nobody asks where the time of a configuration goes that is out of the race.
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
    clock: StepClock, job: AnyJob, gate: Gate | None
) -> tuple[list[Window], list[Window], Stop | None]:
    """Steps to warm up, timed steps, and why there are not more of these."""
    if gate is not None:
        return *clock.take_turns(job.measure, gate), None
    warmup = clock.run(Phase.WARMUP, job.measure.warmup_steps)
    return warmup, *clock.sample(job.measure)


def _join_group(context: Context[AnyJob]) -> None:
    on_cuda = context.device.type == "cuda"
    require_room_for_groups(1)
    dist.init_process_group(
        backend="nccl" if on_cuda else "gloo",
        init_method=_init_method(context.job),
        rank=context.rank,
        world_size=context.job.world_size,
        device_id=context.device if on_cuda else None,
    )


def _init_method(job: AnyJob) -> str:
    # A launcher that forks ranks side by side gives each launch a meeting place of its own.
    told = os.environ.get("CCLSEARCH_INIT_METHOD", job.init_method)
    if told != MEETING_FILE:
        return told
    # Ranks of an mpirun are told no address; those that are started by hand have no meeting either.
    return f"{MEETING_FILE}{Path(os.environ.get(VARIABLE, '')).absolute() / 'store'}"


if __name__ == "__main__":
    if VARIABLE in os.environ:
        meet(Path(os.environ[VARIABLE]), read_rank_numbers().rank)
    status = run(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    # After a failure a communication thread may wait for a peer that is gone; do not join it.
    os._exit(status)
