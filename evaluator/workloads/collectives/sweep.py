"""One rank of a sweep: every operation is checked, warmed up and timed by all ranks together.

A point that takes too long ends the process: no other process knows that the rank is stuck.
"""

import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime, timezone
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import NoReturn, TypeAlias, TypeVar

import torch

from evaluator.rank.job import JobError, parse
from evaluator.rank.main import bind_device, record_failure
from evaluator.rank.main import main as rank_main
from evaluator.rank.protocol import Phase, Progress, RankNumbers, write_failure
from evaluator.rank.steps import time_work, waiting_for
from evaluator.workloads.collectives.adapters import CommAdapter, mismatch, refill, tensors_for
from evaluator.workloads.collectives.c10d import (
    C10dAdapter,
    TorchcommsAdapter,
    c10d_absence,
    torchcomms_absence,
)
from evaluator.workloads.collectives.mpi import MpiAdapter, mpi_absence
from evaluator.workloads.collectives.operations import (
    ABSENCE,
    AdapterName,
    Collective,
    DType,
    Operation,
    PointSamples,
    PointStatus,
    PointTimeoutError,
    Setup,
    SweepFacts,
    SweepRequest,
    Tensors,
    UnsupportedError,
    add_line,
)

TIMED_OUT = 124
"""Exit status of a rank that was ended, as that of timeout(1)."""


@contextmanager
def time_limit(
    timeout_s: float, doing: object, *, rank: int, folder: Path | None
) -> Iterator[None]:
    """End the process unless the block ends within `timeout_s`, and report what it was doing.

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


def gather_numbers(
    adapter: CommAdapter, numbers: Sequence[int], device: torch.device
) -> tuple[tuple[int, ...], ...]:
    """Give every rank's numbers to all ranks; each gives equally many, and at least one."""
    own = torch.tensor(numbers, dtype=torch.int64, device=device)
    everyones = own.new_empty(adapter.membership.size * len(numbers))
    operation = Operation(
        collective=Collective.ALL_GATHER_SINGLE, size_bytes=own.nbytes, dtype=DType.INT64
    )
    adapter.run_collective(operation, Tensors(inputs=(own,), outputs=(everyones,)))
    of_ranks: list[list[int]] = everyones.view(adapter.membership.size, len(numbers)).tolist()
    return tuple(tuple(of_rank) for of_rank in of_ranks)


def first_message(adapter: CommAdapter, line: str | None, device: torch.device) -> str | None:
    """Give all ranks the line of the first rank that has one; None if none has."""
    letters = [ord(letter) for letter in line or ""]
    lengths = [length for (length,) in gather_numbers(adapter, [len(letters)], device)]
    if not any(lengths):
        return None
    padding = [0] * (max(lengths) - len(letters))
    lines = gather_numbers(adapter, letters + padding, device)
    rank = next(rank for rank, length in enumerate(lengths) if length)
    return "".join(map(chr, lines[rank][: lengths[rank]]))


Watch: TypeAlias = Callable[[int, Operation], AbstractContextManager[None]]
"""Surrounds each point, given its number in the sweep."""
T = TypeVar("T")
_Block: TypeAlias = Callable[[int], None]
"""Makes N calls, one after the other."""
_BARRIER = Operation(collective=Collective.BARRIER, size_bytes=0)


def run_bench_sweep(
    request: SweepRequest,
    adapter: CommAdapter,
    *,
    device: torch.device,
    on_point: Callable[[PointSamples], None],
    watch: Watch = lambda _number, _operation: nullcontext(),
) -> None:
    """Measure every operation; rank 0 passes each point to `on_point` as soon as it is done.

    All ranks decide alike to leave a point out or to give it up. Whatever else goes wrong on one
    rank is raised there, and the sweep is over: others may wait for it inside a call.
    """
    sweep = _Sweep(request, adapter, device)
    for number, operation in enumerate(request.operations):
        with watch(number, operation):
            point = sweep.point(operation)
        if adapter.membership.rank == 0:
            on_point(point)


class _NotMeasuredError(Exception):
    """Raised on all ranks alike: why a point has no times."""

    def __init__(self, status: PointStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Sweep:
    """One rank's part in every point."""

    def __init__(self, request: SweepRequest, adapter: CommAdapter, device: torch.device) -> None:
        self._request = request
        self._adapter = adapter
        self._device = device
        self._wait = waiting_for(device)
        calls = request.measure_iterations
        self._block_calls = _block_calls(calls, request.sync_interval or calls)

    def point(self, operation: Operation) -> PointSamples:
        """Measure one operation, or return why not."""
        started_at = datetime.now(timezone.utc).isoformat()
        point = partial(PointSamples, operation=operation, started_at=started_at)
        try:
            self._adapter.check(operation)
            if operation.collective is Collective.SEND_RECV and self._adapter.membership.size == 1:
                raise UnsupportedError("a single rank has no partner to send to")
            self._require_right_result(operation)
            own_ns = self._own_ns(operation)
        except UnsupportedError as error:
            return point(status=PointStatus.SKIPPED, reason=str(error))
        except _NotMeasuredError as why:
            return point(status=why.status, reason=str(why))
        return point(
            status=PointStatus.MEASURED,
            block_calls=self._block_calls,
            block_ns=gather_numbers(self._adapter, own_ns, self._device),
        )

    def _require_right_result(self, operation: Operation) -> None:
        """Make one call with values that differ between ranks."""
        rank, size = self._adapter.membership.rank, self._adapter.membership.size

        def filled() -> Tensors:
            tensors = tensors_for(operation, rank, size, self._device)
            refill(operation, tensors, rank)
            return tensors

        tensors = self._with_room(filled)
        self._adapter.run_collective(operation, tensors, async_op=self._request.async_op)
        self._wait()
        wrong = self._with_room(lambda: mismatch(operation, tensors, rank, size))
        self._agree(PointStatus.WRONG_RESULT, wrong)

    def _own_ns(self, operation: Operation) -> list[int]:
        """How long each block took on this rank, with values that calls leave as they are."""
        rank, size = self._adapter.membership.rank, self._adapter.membership.size
        tensors = self._with_room(lambda: tensors_for(operation, rank, size, self._device))
        block = self._block(operation, tensors)
        block(self._request.warmup_iterations)
        self._adapter.run_collective(_BARRIER, Tensors())
        durations_ns = []
        for calls in self._block_calls:
            start_ns, end_ns, _ = time_work(partial(block, calls), self._wait)
            durations_ns.append(end_ns - start_ns)
        return durations_ns

    def _with_room(self, make: Callable[[], T]) -> T:
        """Return what `make` does; leave the point on all ranks where memory runs out on any."""
        lack = None
        try:
            made = make()
        except (MemoryError, RuntimeError) as error:
            # A CPU's allocator says only in its message that there was no room.
            is_of_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
            if not is_of_memory and "allocate memory" not in str(error):
                raise
            line = str(error).partition("\n")[0] or "no memory is left"
            lack = f"rank {self._adapter.membership.rank}: {line}"
        self._agree(PointStatus.FAILED, lack)
        return made

    def _agree(self, status: PointStatus, reason: str | None) -> None:
        """Leave the point on all ranks when any of them has a reason to."""
        first = first_message(self._adapter, reason, self._device)
        if first is not None:
            raise _NotMeasuredError(status, first)

    def _block(self, operation: Operation, tensors: Tensors) -> _Block:
        """Calls on these tensors with everything looked up."""
        if self._request.async_op:
            start = self._adapter.resolve_start(operation, tensors)

            def block(calls: int) -> None:
                for _ in repeat(None, calls):
                    start().wait()
        else:
            call = self._adapter.resolve_collective(operation, tensors)

            def block(calls: int) -> None:
                for _ in repeat(None, calls):
                    call()

        return block


def _block_calls(calls: int, most: int) -> tuple[int, ...]:
    """Split calls into blocks of `most`, and a last one of what remains."""
    blocks, rest = divmod(calls, most)
    return (most,) * blocks + ((rest,) if rest else ())


def new_adapter(name: AdapterName, setup: Setup | None = None) -> CommAdapter:
    """Make an adapter that is in no group yet; only `C10D` uses the setup, for gloo."""
    if name == AdapterName.MPI:
        return MpiAdapter()
    return TorchcommsAdapter() if name == AdapterName.TORCHCOMMS else C10dAdapter(name, setup)


def availability(name: AdapterName) -> str | None:
    """Why an adapter cannot be used here and what to install, in one line; None if it can.

    Found by loading its library and calling it, without joining a group.
    """
    if name == AdapterName.MPI:
        return mpi_absence()
    return torchcomms_absence() if name == AdapterName.TORCHCOMMS else c10d_absence(name)


def main(request_path: str) -> int:
    """Run this process's rank of a sweep in the current folder and return its exit status.

    Rank 0 leaves the points as they are done, a rank that fails one error file. Raises `JobError`
    only if the environment does not give the rank's number.
    """

    def work(numbers: RankNumbers, progress: Progress) -> None:
        path = Path(request_path)
        try:
            request = parse(SweepRequest, path.read_text(encoding="utf-8"))
        except (OSError, JobError) as error:
            raise JobError(f"{path.name}: {error}") from error
        run(request, numbers, partial(add_line, Path.cwd()), progress)
        progress.beat(Phase.DONE)

    return record_failure(work)


def run(
    request: SweepRequest,
    numbers: RankNumbers,
    on_line: Callable[[SweepFacts | PointSamples], None],
    progress: Progress | None = None,
) -> None:
    """Run this process's rank of a sweep; rank 0 reports the facts, then each point as it is done.

    After an exception the caller has to end the process with `os._exit`: other ranks may wait for
    this one, and it for them. A point that takes too long ends the process by itself. With
    `progress` each point is a step that leaves a beat, and such an end an error file next to it.
    """
    folder = None if progress is None else Path.cwd()

    @contextmanager
    def watch(number: int, operation: Operation) -> Iterator[None]:
        if progress is not None:
            progress.beat(Phase.TIMED, number)
        with time_limit(request.timeout_s, operation, rank=numbers.rank, folder=folder):
            yield

    _require_rendezvous(request.adapter)
    device = bind_device(request.device, numbers.local_rank, request.threads_per_rank)
    adapter = new_adapter(request.adapter)
    adapter.init(request.backend, device, numbers.rank, numbers.world_size)
    if numbers.rank == 0:
        on_line(_facts(adapter, device))
    run_bench_sweep(request, adapter, device=device, on_point=on_line, watch=watch)
    # Not after a failure: ranks leave together, and the others are not about to.
    adapter.finalize()


def _require_rendezvous(adapter: AdapterName) -> None:
    """Raise `JobError` where ranks have no address to meet at."""
    variables = os.environ.keys()
    missing = sorted({"MASTER_ADDR", "MASTER_PORT"} - variables)
    if adapter is not AdapterName.MPI and "CCLSEARCH_INIT_METHOD" not in variables and missing:
        raise JobError(
            f"the ranks of {adapter} have no address to meet at: {' and '.join(missing)} not set; "
            "start them with torchrun, have mpirun set both (-x NAME=VALUE), or measure mpi"
        )


def _facts(adapter: CommAdapter, device: torch.device) -> SweepFacts:
    on_cuda = device.type == "cuda"
    # Loaded by the adapter that uses it, or not at all.
    torchcomms = sys.modules.get("torchcomms")
    return SweepFacts(
        device_name=torch.cuda.get_device_name(device) if on_cuda else None,
        torch_version=torch.__version__,
        torchcomms_version=getattr(torchcomms, "__version__", None),
        backend_name=adapter.membership.backend,
        backend_version=adapter.get_backend_version(),
    )


if __name__ == "__main__":
    if sys.argv[1] == ABSENCE:
        sys.stdout.write(availability(AdapterName(sys.argv[2])) or "")
    else:
        rank_main(main)
