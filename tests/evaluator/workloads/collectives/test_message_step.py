"""Steps that exchange messages: by a library that takes notes, and by real ranks."""

import json
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import pytest
import torch

from evaluator.evaluate import TrialEvaluator
from evaluator.machine import mpi_library
from evaluator.rank.job import DeviceKind, Measure
from evaluator.rank.main import Context
from evaluator.rank.steps import ClosedWork, MarkedWork
from evaluator.recipes.collectives import CollectivesRecipe
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
from records.study import Measure as StudyMeasure
from records.trial import Config, FailureKind, Measured, Outcome
from records.workload import Message
from tests.evaluator.conftest import OtherEntry, exchange_study

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


@pytest.mark.parametrize("compression", ["none", "fp16", "bf16"])
def test_every_setup_comes_out_right(compression):
    messages = [
        (Operation(collective=Collective.ALL_REDUCE, size_bytes=40, dtype=dtype, reduce_op=op), 2)
        for op in ReduceOp
        for dtype in DType
        if not (op is ReduceOp.AVG and dtype.is_integer)
    ]
    for fusion_bytes, chunk_count, in_flight in product((0, 80, 400), (1, 3), (1, 2, 3)):
        exchange(
            *messages,
            fusion_bytes=fusion_bytes,
            chunk_count=chunk_count,
            compression=compression,
            in_flight=in_flight,
        ).check()


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


RANKS = 2
STEPS = StudyMeasure(
    warmup_steps=1, timed_steps=5, max_timed_steps=5, profiled_steps=0, timeout_s=240
)


def evaluated(launcher, workdir: Path, entry: str | None = None, **setup) -> Outcome:
    """One trial of the mix with this setup, as the search makes it, or of another entry."""
    recipe = CollectivesRecipe()
    if entry is not None:
        recipe = OtherEntry(f"exchange_entries:{entry}", recipe=recipe)
    evaluator = TrialEvaluator(recipe, launcher, lambda _: None)
    study = exchange_study(*MIX, measure=STEPS)
    return evaluator.evaluate(study, Config(setup), workdir)


TOTAL, SMALL = 3, 1_000
MIX = (
    Message(collective="all_reduce", size_bytes=4 * SMALL, count=3),
    Message(collective="all_reduce", size_bytes=20),
    Message(collective="all_reduce", size_bytes=4 * SMALL, dtype="int32", reduce_op="max"),
    Message(collective="all_gather", size_bytes=64),
    Message(collective="reduce_scatter_single", size_bytes=64, dtype="float64"),
    Message(collective="broadcast", size_bytes=64),
    Message(collective="send_recv", size_bytes=64),
    Message(collective="barrier"),
)
EVERY_RANKS = [1.0, 2.0]


def expected(rank: int) -> list[list[float]]:
    """What each message of the mix becomes where rank r sends r + 1."""
    return [*([[TOTAL]] * 4), [[RANKS]][0], EVERY_RANKS, [TOTAL], [1], [(rank ^ 1) + 1], []]


def told(folder):
    return [json.loads((folder / f"rank{rank}.outputs.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize(
    ("setup", "timed_apart"),
    [
        ({}, True),
        ({"chunk_count": 3, "gloo_threads": 1, "gloo_interfaces": "lo,lo"}, True),
        (
            {"fusion_bytes": 4_000, "chunk_count": 2, "in_flight": 2, "compression": "fp16"},
            False,
        ),
    ],
    ids=["plain", "cut", "together"],
)
def test_every_setup_brings_every_message_to_its_own_tensors(
    launcher, tmp_path, setup, timed_apart
):
    outcome = evaluated(launcher, tmp_path, "tell", **setup)

    assert isinstance(outcome, Measured), outcome
    assert told(tmp_path) == [expected(rank) for rank in range(RANKS)]
    assert outcome.metric("bus_bandwidth") > 0
    assert len(outcome.measurement.message_times_s) == (len(MIX) if timed_apart else 0)


def test_a_trial_of_messages_is_measured_like_any_other(launcher, tmp_path):
    outcome = evaluated(launcher, tmp_path)

    assert isinstance(outcome, Measured), outcome
    measurement = outcome.measurement
    assert [len(steps) for steps in measurement.step_times_s] == [5] * RANKS
    assert (measurement.tokens_per_step, measurement.losses) == (0, ())
    assert all(peak_bytes > 0 for peak_bytes in measurement.peak_memory_bytes)
    assert outcome.metric("latency") * 10 == pytest.approx(outcome.metric("step_time"), rel=1e-9)
    assert outcome.absent["tokens_per_s"] == "a step processes no tokens"
    assert outcome.absent["mfu"] == "the workload only communicates"


@pytest.mark.skipif(
    mpi_library() is None or mpi_library().mpirun is None, reason="needs MPI and its mpirun"
)
def test_ranks_that_mpirun_starts_exchange_through_mpi(launcher, tmp_path):
    outcome = evaluated(launcher, tmp_path, "tell", comm_adapter="mpi", in_flight=2)

    assert isinstance(outcome, Measured), outcome
    assert told(tmp_path) == [expected(rank) for rank in range(RANKS)]


def test_a_wrong_result_is_the_configuration_s_fault(launcher, tmp_path):
    failed = evaluated(launcher, tmp_path, "see_wrong_results")

    assert failed.kind is FailureKind.INVALID_CONFIG
    assert "a message came out wrong: WrongResultError: message 0 of a step, all_reduce sum" in (
        failed.message
    )


@pytest.mark.parametrize(
    ("entry", "setup", "kind", "said"),
    [
        (
            "lack_broadcasts",
            {},
            FailureKind.INVALID_CONFIG,
            "UnsupportedError: c10d has no broadcast float32 64 B: not built in",
        ),
        (None, {"comm_adapter": "torchcomms"}, FailureKind.INFRASTRUCTURE, "UnavailableError: "),
        ("die_in_a_timed_step", {}, FailureKind.CRASH, "rank 1 died of SIGSEGV in timed"),
    ],
    ids=["a call is lacking", "no library", "a rank dies"],
)
def test_a_failure_is_held_against_who_caused_it(launcher, tmp_path, entry, setup, kind, said):
    failed = evaluated(launcher, tmp_path, entry, **setup)

    assert failed.kind is kind
    assert said in failed.message
