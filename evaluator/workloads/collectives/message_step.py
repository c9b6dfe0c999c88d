"""The communication job: in every step the ranks exchange the same mix of messages.

Whatever the setup, each message of a step starts and ends in separate tensors: what it costs to
put messages together, to convert and to cut them is part of the step.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from evaluator.rank.main import Context
from evaluator.workloads.collectives.adapters import CommAdapter, mismatch, refill, tensors_for
from evaluator.workloads.collectives.operations import (
    Carrier,
    ExchangeJob,
    Operation,
    Pending,
    Start,
    Tensors,
    carriers,
    sent_as,
)
from evaluator.workloads.collectives.sweep import new_adapter

JOB = ExchangeJob

Action: TypeAlias = Callable[[], object]
"""A bit of a step with everything looked up: what the timed loop runs."""


class WrongResultError(RuntimeError):
    """A message did not come out as it must: the setup, or the library, computes something else."""


def exchange(context: Context[ExchangeJob]) -> "Exchange":
    """Join the library's group, and exchange the mix once to see that it comes out right.

    Every rank must call it. Raises `UnavailableError` where the library cannot be used,
    `UnsupportedError` where it lacks a call, and `WrongResultError`.
    """
    setup = context.job.setup
    adapter = new_adapter(setup.comm_adapter, setup)
    adapter.init(setup.backend, context.device, context.rank, context.job.world_size)
    work = Exchange(context, adapter)
    work.check()
    return work


class Exchange:
    """Repeats the exchange; where calls block, it notes when those of each message were over."""

    def __init__(self, context: Context[ExchangeJob], adapter: CommAdapter) -> None:
        job = context.job
        self._context = context
        self._adapter = adapter
        self._messages = tuple(
            repeated.operation for repeated in job.messages for _ in range(repeated.count)
        )
        self._tensors = tuple(self._unchanging(message) for message in self._messages)
        self._marks_ns: list[int] = []
        loads = [
            _Load(carrier, self._tensors[carrier.first : carrier.end])
            for carrier in carriers(self._messages, job.setup)
        ]
        self._actions = tuple(
            self._one_by_one(loads)
            if job.setup.in_flight == 1
            else self._overlapping(loads, job.setup.in_flight)
        )

    def step(self, index: int) -> int:  # noqa: ARG002 - every step is the same
        """Exchange every message; no tokens are fed."""
        self._marks_ns.clear()
        for action in self._actions:
            action()
        return 0

    def marks_ns(self) -> list[int]:
        """When the calls of each message of the mix were over in the latest step, but for the last.

        None where calls overlap, messages that differ go together, or a device works on alone.
        """
        return self._marks_ns

    def global_losses(self) -> list[float]:
        """Nothing is learned."""
        return []

    def close(self) -> None:
        """Leave the library's group."""
        self._adapter.finalize()

    def check(self) -> None:
        """Exchange values that show a wrong result; raises `WrongResultError`.

        Leaves values that no number of steps changes, so that none overflows.
        """
        rank, size = self._context.rank, self._context.job.world_size
        compression = self._context.job.setup.compression
        calls = tuple(zip(self._messages, self._tensors, strict=True))
        for message, tensors in calls:
            refill(message, tensors, rank)
        self.step(0)
        for place, (message, tensors) in enumerate(calls):
            # Rounding may take it as far from the right values as the format in which it was sent.
            wrong = mismatch(sent_as(message, compression), tensors, rank, size)
            if wrong is not None:
                raise WrongResultError(f"message {place} of a step, {wrong}")
            for tensor, value in zip(_all(tensors), _all(self._unchanging(message)), strict=True):
                tensor.copy_(value)

    def _unchanging(self, message: Operation) -> Tensors:
        context = self._context
        return tensors_for(message, context.rank, context.job.world_size, context.device)

    def _one_by_one(self, loads: Sequence["_Load"]) -> Iterator[Action]:
        """Blocking calls, and marks between those of one message and of the next."""
        marks = self._places_of_marks(loads)
        for load in loads:
            yield from load.pack
            for part, tensors in load.calls:
                yield self._adapter.resolve_collective(part, tensors)
            yield from load.unpack
            if load.carrier.end in marks:
                yield self._mark

    def _places_of_marks(self, loads: Sequence["_Load"]) -> frozenset[int]:
        """After how many calls another message begins; none where the step cannot know it."""
        ends, end = set[int](), 0
        for repeated in self._context.job.messages:
            end += repeated.count
            ends.add(end)
        met = {load.carrier.end for load in loads}
        known = self._context.device.type == "cpu" and ends <= met
        return frozenset(ends - {end}) if known else frozenset()

    def _mark(self) -> None:
        self._marks_ns.append(time.perf_counter_ns())

    def _overlapping(self, loads: Sequence["_Load"], in_flight: int) -> Iterator[Action]:
        """Calls that are started while up to N are not over; the oldest is awaited first."""
        flying: deque[Sequence[Action]] = deque()
        for load in loads:
            yield from load.pack
            for place, (part, tensors) in enumerate(load.calls, start=1):
                if len(flying) == in_flight:
                    yield from flying.popleft()
                call = _Flight(self._adapter.resolve_start(part, tensors))
                yield call.start
                flying.append((call.land, *(load.unpack if place == len(load.calls) else ())))
        for landing in flying:
            yield from landing


class _Load:
    """The tensors of a carrier, and what is done before and after its calls."""

    def __init__(self, carrier: Carrier, messages: Sequence[Tensors]) -> None:
        self.carrier = carrier
        self.pack: tuple[Action, ...] = ()
        self.unpack: tuple[Action, ...] = ()
        if len(carrier.parts) == 1 and not carrier.is_copied:
            self.calls = [(carrier.parts[0], messages[0])]
            return
        own = [tensors.inputs[0].view(-1) for tensors in messages]
        whole = own[0]
        if carrier.is_copied:
            counts = [tensor.numel() for tensor in own]
            whole = own[0].new_empty(sum(counts), dtype=carrier.parts[0].dtype.torch)
            places = torch.split(whole, counts)
            self.pack = (lambda: torch._foreach_copy_(places, own),)
            self.unpack = (lambda: torch._foreach_copy_(own, places),)
        views = torch.split(whole, [part.element_count for part in carrier.parts])
        self.calls = [
            (part, Tensors(inputs=(view,), outputs=(view,)))
            for part, view in zip(carrier.parts, views, strict=True)
        ]


class _Flight:
    """A call that is started in one action and awaited in another."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._pending: Pending | None = None

    def start(self) -> None:
        self._pending = self._start()

    def land(self) -> None:
        assert self._pending is not None
        self._pending.wait()


def _all(tensors: Tensors) -> tuple[Tensor, ...]:
    return (*tensors.inputs, *tensors.outputs)
