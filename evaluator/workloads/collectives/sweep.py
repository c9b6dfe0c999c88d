"""The sweep: every operation in turn is checked, warmed up and timed by all ranks together."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from functools import partial
from itertools import repeat
from typing import TypeAlias, TypeVar

import torch

from evaluator.rank.clock import timed, waiting_for
from evaluator.workloads.collectives.adapters.adapter import CommAdapter, Tensors, UnsupportedError
from evaluator.workloads.collectives.buffers import mismatch, refill, tensors_for
from evaluator.workloads.collectives.operations import Collective, Operation
from evaluator.workloads.collectives.sweep_request import PointSamples, PointStatus, SweepRequest
from evaluator.workloads.collectives.together import first_said, gathered

Watch: TypeAlias = Callable[[int, Operation], AbstractContextManager[None]]
"""Surrounds each point, given its number in the sweep."""
T = TypeVar("T")
_Block: TypeAlias = Callable[[int], None]
"""Makes so many calls, one after the other."""
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
        if adapter.get_rank() == 0:
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
        """Measure one operation, or tell why not."""
        point = partial(PointSamples, operation=operation, started_at=datetime.now(UTC).isoformat())
        try:
            self._adapter.check(operation)
            self._require_partner(operation)
            self._require_right_result(operation)
            own_ns = self._own_ns(operation)
        except UnsupportedError as error:
            return point(status=PointStatus.SKIPPED, reason=str(error))
        except _NotMeasuredError as why:
            return point(status=why.status, reason=str(why))
        return point(
            status=PointStatus.MEASURED,
            block_calls=self._block_calls,
            block_ns=gathered(self._adapter, own_ns, self._device),
        )

    def _require_partner(self, operation: Operation) -> None:
        if operation.collective is Collective.SEND_RECV and self._adapter.get_size() == 1:
            raise _NotMeasuredError(PointStatus.SKIPPED, "one rank alone has nobody to send to")

    def _require_right_result(self, operation: Operation) -> None:
        """Make one call with values that tell the ranks apart."""
        rank, size = self._adapter.get_rank(), self._adapter.get_size()

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
        rank, size = self._adapter.get_rank(), self._adapter.get_size()
        tensors = self._with_room(lambda: tensors_for(operation, rank, size, self._device))
        block = self._block(operation, tensors)
        block(self._request.warmup_iterations)
        self._adapter.run_collective(_BARRIER, Tensors())
        durations_ns = []
        for calls in self._block_calls:
            start_ns, end_ns, _ = timed(partial(block, calls), self._wait)
            durations_ns.append(end_ns - start_ns)
        return durations_ns

    def _with_room(self, make: Callable[[], T]) -> T:
        """Give what `make` does; leave the point on all ranks where memory runs out on any."""
        lack = None
        try:
            made = make()
        except (MemoryError, RuntimeError) as error:
            if not _is_of_memory(error):
                raise
            told = str(error).partition("\n")[0] or "no memory is left"
            lack = f"rank {self._adapter.get_rank()}: {told}"
        self._agree(PointStatus.FAILED, lack)
        return made

    def _agree(self, status: PointStatus, reason: str | None) -> None:
        """Leave the point on all ranks when any of them has a reason to."""
        first = first_said(self._adapter, reason, self._device)
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
    """So many calls in blocks of `most`, and a last one of what remains."""
    blocks, rest = divmod(calls, most)
    return (most,) * blocks + ((rest,) if rest else ())


def _is_of_memory(error: Exception) -> bool:
    """Whether there was no room; a CPU's allocator tells it in words only."""
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or "allocate memory" in str(error)
