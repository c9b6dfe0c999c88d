"""The order of calls in a step, told by a library that only writes down what it is asked."""

from dataclasses import dataclass, field

import pytest
import torch

from evaluator.rank.job import DeviceKind, Measure
from evaluator.rank.main import Context
from evaluator.rank.steps import ClosedWork, MarkedWork
from evaluator.workloads.collectives.message_step import Exchange, WrongResultError
from evaluator.workloads.collectives.operations import (
    Collective,
    DType,
    ExchangeJob,
    Operation,
    ReduceOp,
    Repeated,
    Setup,
)

SUM = Operation(collective=Collective.ALL_REDUCE, size_bytes=40)
BARRIER = Operation(collective=Collective.BARRIER, size_bytes=0)


@dataclass
class Notes:
    """A library of one rank: all-reduces and barriers, which change nothing there."""

    said: list[str] = field(default_factory=list)
    spoils: float = 0.0

    def resolve_collective(self, operation, tensors):
        def call():
            self.said.append(f"call {operation.message_bytes}")
            self._work(tensors)

        return call

    def resolve_start(self, operation, tensors):
        def start():
            self.said.append(f"start {operation.message_bytes}")
            self._work(tensors)
            return self

        return start

    def wait(self):
        self.said.append("wait")

    def finalize(self):
        self.said.append("finalize")

    def _work(self, tensors):
        for tensor in tensors.outputs:
            tensor[-1:] += torch.tensor(self.spoils, dtype=tensor.dtype)


def exchange(*messages, notes=None, **setup):
    job = ExchangeJob(
        entry="evaluator.workloads.collectives.message_step:exchange",
        world_size=1,
        device=DeviceKind.CPU,
        init_method="env://",
        messages=tuple(Repeated(operation=operation, count=n) for operation, n in messages),
        setup=Setup(**setup),
        measure=Measure(warmup_steps=0, timed_steps=1, profiled_steps=0),
    )
    context = Context(rank=0, local_rank=0, device=torch.device("cpu"), job=job)
    return Exchange(context, notes or Notes())


@pytest.mark.parametrize(
    ("messages", "setup", "calls"),
    [
        ([(SUM, 2), (BARRIER, 1)], {}, "call 40, call 40, call 0"),
        (
            [(SUM, 3)],
            {"in_flight": 2},
            "start 40, start 40, wait, start 40, wait, wait",
        ),
        ([(SUM, 1)], {"in_flight": 8}, "start 40, wait"),
        ([(SUM, 1)], {"in_flight": 2, "chunk_count": 2}, "start 20, start 20, wait, wait"),
        ([(SUM, 3)], {"fusion_bytes": 120}, "call 120"),
    ],
    ids=["blocking", "two in flight", "more than there are", "parts overlap", "together"],
)
def test_a_step_asks_the_library_in_the_order_of_its_setup(messages, setup, calls):
    notes = Notes()

    exchange(*messages, notes=notes, **setup).step(0)

    assert ", ".join(notes.said) == calls


@pytest.mark.parametrize("in_flight", [1, 2, 3])
@pytest.mark.parametrize("compression", ["none", "fp16", "bf16"])
@pytest.mark.parametrize("chunk_count", [1, 3])
@pytest.mark.parametrize("fusion_bytes", [0, 80, 400])
def test_every_setup_comes_out_right(fusion_bytes, chunk_count, compression, in_flight):
    messages = [
        (Operation(collective=Collective.ALL_REDUCE, size_bytes=40, dtype=dtype, reduce_op=op), 2)
        for op in ReduceOp
        for dtype in DType
        if not (op is ReduceOp.AVG and dtype.is_integer)
    ]
    work = exchange(
        *messages,
        fusion_bytes=fusion_bytes,
        chunk_count=chunk_count,
        compression=compression,
        in_flight=in_flight,
    )

    work.check()


@pytest.mark.parametrize("setup", [{}, {"fusion_bytes": 80}, {"in_flight": 2}, {"chunk_count": 2}])
def test_a_wrong_element_is_found(setup):
    work = exchange((BARRIER, 1), (SUM, 2), notes=Notes(spoils=1.0), **setup)

    with pytest.raises(
        WrongResultError, match=r"message [12] of a step, all_reduce sum float32 40 B"
    ):
        work.check()


def test_compression_excuses_rounding_and_nothing_more():
    exchange((SUM, 1), notes=Notes(spoils=0.001), compression="bf16").check()

    with pytest.raises(WrongResultError):
        exchange((SUM, 1), notes=Notes(spoils=1.0), compression="bf16").check()
    with pytest.raises(WrongResultError):
        exchange((SUM, 1), notes=Notes(spoils=0.001)).check()


def test_the_check_leaves_values_that_steps_do_not_change():
    work = exchange((SUM, 1))
    work.check()
    before = [tensor.clone() for tensor in work._tensors[0].outputs]

    work.step(0)

    assert all(map(torch.equal, before, work._tensors[0].outputs))
    assert not before[0].any()


@pytest.mark.parametrize(
    ("setup", "mark_count"),
    [
        ({}, 2),
        ({"fusion_bytes": 80}, 2),
        ({"chunk_count": 2, "compression": "bf16"}, 2),
        ({"fusion_bytes": 120}, 0),
        ({"in_flight": 2}, 0),
    ],
    ids=str,
)
def test_the_end_of_each_message_is_noted_where_its_calls_are_alone(setup, mark_count):
    work = exchange((SUM, 2), (SUM, 1), (BARRIER, 3), **setup)

    for step in range(2):
        assert work.step(step) == 0
        marks_ns = work.marks_ns()
        assert len(marks_ns) == mark_count
        assert marks_ns == sorted(marks_ns)


def test_it_ends_with_the_library():
    notes = Notes()
    work = exchange((SUM, 1), notes=notes)

    work.close()

    assert notes.said == ["finalize"]
    assert isinstance(work, ClosedWork)
    assert isinstance(work, MarkedWork)
    assert work.global_losses() == []
