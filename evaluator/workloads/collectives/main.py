"""One rank of a sweep from start to end: take a device, join the group, sweep, leave the points."""

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import torch

from evaluator.rank.context import RankNumbers, pin_to_cores, read_rank_numbers
from evaluator.rank.failure import write_failure
from evaluator.rank.job import DeviceKind
from evaluator.rank.job_file import JobError, parse
from evaluator.rank.meeting import VARIABLE, meet
from evaluator.rank.progress import Phase, Progress
from evaluator.workloads.collectives.adapters.adapter import AdapterName, CommAdapter
from evaluator.workloads.collectives.adapters.catalog import new_adapter
from evaluator.workloads.collectives.operations import Operation
from evaluator.workloads.collectives.points_file import add_line
from evaluator.workloads.collectives.sweep import Watch, run_bench_sweep
from evaluator.workloads.collectives.sweep_request import PointSamples, SweepFacts, SweepRequest
from evaluator.workloads.collectives.watchdog import time_limit


def main(request_path: str) -> int:
    """Run this process's rank of a sweep in the current folder and return its exit status.

    Rank 0 leaves the points as they are done, a rank that fails one error file. Raises `JobError`
    only if the environment does not tell the rank its number.
    """
    folder = Path.cwd()
    numbers = read_rank_numbers()
    progress = Progress(folder, rank=numbers.rank)
    add = partial(add_line, folder)
    try:
        progress.beat(Phase.SETUP)
        request = _read_request(Path(request_path))
        _run(request, numbers, add, add, _watch(request, numbers, folder, progress))
        progress.beat(Phase.DONE)
    except Exception as error:  # noqa: BLE001 - the rank's boundary: any failure becomes its record
        traceback.print_exc()
        write_failure(folder, error, rank=numbers.rank, phase=progress.phase, memory_limited=False)
        return 1
    return 0


def run(
    request: SweepRequest,
    numbers: RankNumbers,
    on_facts: Callable[[SweepFacts], None],
    on_point: Callable[[PointSamples], None],
) -> None:
    """Run this process's rank of a sweep; rank 0 tells the facts, then each point as it is done.

    After an exception the caller has to end the process with `os._exit`: other ranks may wait for
    this one, and it for them. A point that takes too long ends the process by itself.
    """

    def watch(_number: int, operation: Operation) -> AbstractContextManager[None]:
        return time_limit(request.timeout_s, operation, rank=numbers.rank, folder=None)

    _run(request, numbers, on_facts, on_point, watch)


def _watch(request: SweepRequest, numbers: RankNumbers, folder: Path, progress: Progress) -> Watch:
    """Each point is a step that leaves a beat and has a time limit."""

    @contextmanager
    def watch(number: int, operation: Operation) -> Iterator[None]:
        progress.beat(Phase.TIMED, number)
        with time_limit(request.timeout_s, operation, rank=numbers.rank, folder=folder):
            yield

    return watch


def _run(
    request: SweepRequest,
    numbers: RankNumbers,
    on_facts: Callable[[SweepFacts], None],
    on_point: Callable[[PointSamples], None],
    watch: Watch,
) -> None:
    _require_meeting_place(request.adapter)
    device = _bound_device(request, numbers)
    adapter = new_adapter(request.adapter)
    adapter.init(request.backend, device, numbers.rank, numbers.world_size)
    if numbers.rank == 0:
        on_facts(_facts(adapter, device))
    run_bench_sweep(request, adapter, device=device, on_point=on_point, watch=watch)
    # Not after a failure: ranks leave together, and the others are not about to.
    adapter.finalize()


def _read_request(path: Path) -> SweepRequest:
    try:
        return parse(SweepRequest, path.read_text(encoding="utf-8"))
    except (OSError, JobError) as error:
        raise JobError(f"{path.name}: {error}") from error


def _require_meeting_place(adapter: AdapterName) -> None:
    """Raise `JobError` where ranks would look for each other and were not told where."""
    # A rank is told where to meet by its environment.
    told = os.environ.keys()
    missing = sorted({"MASTER_ADDR", "MASTER_PORT"} - told)
    if adapter is not AdapterName.MPI and "CCLSEARCH_INIT_METHOD" not in told and missing:
        raise JobError(
            f"the ranks of {adapter} have no place to meet: {' and '.join(missing)} not set; start"
            " them with torchrun, tell mpirun to set both (-x NAME=VALUE), or measure mpi"
        )


def _bound_device(request: SweepRequest, numbers: RankNumbers) -> torch.device:
    """Give this process its device, which a library asks for when ranks join."""
    torch.set_num_threads(request.threads_per_rank)
    if request.device is DeviceKind.CUDA:
        device = torch.device("cuda", numbers.local_rank)
        torch.cuda.set_device(device)
        return device
    pin_to_cores(numbers.local_rank, request.threads_per_rank)
    return torch.device("cpu")


def _facts(adapter: CommAdapter, device: torch.device) -> SweepFacts:
    on_cuda = device.type == "cuda"
    # Loaded by the adapter that uses it, or not at all.
    torchcomms = sys.modules.get("torchcomms")
    return SweepFacts(
        device_name=torch.cuda.get_device_name(device) if on_cuda else None,
        torch_version=torch.__version__,
        torchcomms_version=getattr(torchcomms, "__version__", None),
        backend_name=adapter.get_backend(),
        backend_version=adapter.get_backend_version(),
    )


if __name__ == "__main__":
    if VARIABLE in os.environ:
        meet(Path(os.environ[VARIABLE]), read_rank_numbers().rank)
    status = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    # After a failure a communication thread may wait for a peer that is gone; do not join it.
    os._exit(status)
