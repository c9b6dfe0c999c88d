"""Sweeps of one process and of real ranks, and what becomes of them when a rank goes wrong."""

import json
import signal
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evaluator.rank.job import DeviceKind
from evaluator.workloads.collectives.operations import (
    AdapterName,
    Collective,
    DType,
    Operation,
    PointStatus,
    SweepRequest,
    UnsupportedError,
)
from evaluator.workloads.collectives.sweep import (
    TIMED_OUT,
    first_message,
    new_adapter,
    run_bench_sweep,
)
from tests.evaluator.workloads.collectives.conftest import request_for

CPU = torch.device("cpu")
ALL_REDUCE = Operation(collective=Collective.ALL_REDUCE, size_bytes=64)
REQUEST = SweepRequest(
    adapter=AdapterName.C10D,
    backend="gloo",
    device=DeviceKind.CPU,
    operations=(ALL_REDUCE,),
    warmup_iterations=2,
    measure_iterations=10,
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A group of one rank: this process."""
    with pytest.MonkeyPatch.context() as patch:
        store = tmp_path_factory.mktemp("group") / "store"
        patch.setenv("CCLSEARCH_INIT_METHOD", f"file://{store}")
        adapter = new_adapter(AdapterName.C10D)
        adapter.init("gloo", CPU, 0, 1)
    yield adapter
    adapter.finalize()


class Counting:
    """Counts the calls of an all-reduce and how they were made."""

    def __init__(self, adapter):
        self._adapter = adapter
        self.call_count = 0
        self.start_count = 0

    def __getattr__(self, name):
        return getattr(self._adapter, name)

    def resolve_collective(self, operation, tensors):
        call = self._adapter.resolve_collective(operation, tensors)

        def counted():
            self.call_count += 1
            return call()

        return counted

    def resolve_start(self, operation, tensors):
        start = self._adapter.resolve_start(operation, tensors)

        def counted():
            self.start_count += 1
            return start()

        return counted


def swept(adapter, request):
    points = []
    run_bench_sweep(request, adapter, device=CPU, on_point=points.append)
    return points


@pytest.mark.parametrize(
    ("sync_interval", "block_calls"),
    [(0, (10,)), (1, (1,) * 10), (4, (4, 4, 2)), (5, (5, 5)), (10, (10,)), (11, (10,))],
)
def test_calls_between_looks_at_the_clock(sync_interval, block_calls, alone):
    (point,) = swept(alone, replace(REQUEST, sync_interval=sync_interval))

    assert point.status is PointStatus.MEASURED
    assert point.block_calls == block_calls
    assert len(point.block_ns[0]) == len(block_calls)
    assert min(point.block_ns[0]) > 0


@pytest.mark.parametrize(("async_op", "counts"), [(False, (12, 0)), (True, (0, 12))])
def test_warm_up_and_timed_calls_are_made_and_no_others(async_op, counts, alone):
    adapter = Counting(alone)

    swept(adapter, replace(REQUEST, async_op=async_op, sync_interval=4))

    assert (adapter.call_count, adapter.start_count) == counts


def test_one_rank_has_nobody_to_send_to(alone):
    ping_pong = Operation(collective=Collective.SEND_RECV, size_bytes=64)

    skipped, measured = swept(alone, replace(REQUEST, operations=(ping_pong, ALL_REDUCE)))

    assert (skipped.status, skipped.block_ns) == (PointStatus.SKIPPED, ())
    assert "no partner" in skipped.reason
    assert measured.status is PointStatus.MEASURED


class Lacking(Counting):
    """Lacks a number format, and only blocks."""

    def check(self, operation):
        if operation.dtype is DType.FLOAT64:
            raise UnsupportedError("no such number format")

    def resolve_start(self, *_):
        raise UnsupportedError("only blocks")

    def run_collective(self, operation, tensors, *, async_op=False):
        (self.resolve_start if async_op else self.resolve_collective)(operation, tensors)()


def test_what_the_library_lacks_is_skipped_with_its_reason(alone):
    operations = (replace(ALL_REDUCE, dtype=DType.FLOAT64), ALL_REDUCE)
    lacking = Lacking(alone)

    skipped, measured = swept(lacking, replace(REQUEST, operations=operations))
    (blocking,) = swept(lacking, replace(REQUEST, async_op=True))

    assert (skipped.status, skipped.reason) == (PointStatus.SKIPPED, "no such number format")
    assert measured.status is PointStatus.MEASURED
    assert (blocking.status, blocking.reason) == (PointStatus.SKIPPED, "only blocks")


def test_each_point_is_told_before_the_next_is_begun(alone):
    events = []

    @contextmanager
    def watch(number, operation):
        events.append(("begin", number, operation.size_bytes))
        yield
        events.append(("end", number, operation.size_bytes))

    run_bench_sweep(
        replace(REQUEST, operations=(ALL_REDUCE, replace(ALL_REDUCE, size_bytes=128))),
        alone,
        device=CPU,
        on_point=lambda point: events.append(("told", point.operation.size_bytes)),
        watch=watch,
    )

    assert events == [
        ("begin", 0, 64),
        ("end", 0, 64),
        ("told", 64),
        ("begin", 1, 128),
        ("end", 1, 128),
        ("told", 128),
    ]


def test_what_the_first_rank_says_is_heard_letter_for_letter(alone):
    assert first_message(alone, "no room for 64 µB", CPU) == "no room for 64 µB"
    assert first_message(alone, None, CPU) is None


def test_a_failing_call_and_an_error_that_is_not_of_memory_end_the_sweep(alone, monkeypatch):
    class Failing(Counting):
        def resolve_collective(self, *_):
            raise ConnectionError("the cable is loose")

    def fail(*_):
        raise RuntimeError("an illegal instruction was encountered")

    with pytest.raises(ConnectionError):
        swept(Failing(alone), REQUEST)
    monkeypatch.setattr("evaluator.workloads.collectives.sweep.tensors_for", fail)
    with pytest.raises(RuntimeError, match="illegal instruction"):
        swept(alone, REQUEST)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "no memory is left"),
        (torch.OutOfMemoryError("no room\nfor 4 bytes"), "no room"),
    ],
)
def test_a_size_that_does_not_fit_is_left_out(error, reason, alone, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr("evaluator.workloads.collectives.sweep.tensors_for", fail)

    (failed,) = swept(alone, REQUEST)

    assert (failed.status, failed.reason) == (PointStatus.FAILED, f"rank 0: {reason}")


def test_a_size_that_no_machine_has_is_left_out_and_the_next_is_measured(alone):
    operations = (replace(ALL_REDUCE, size_bytes=1 << 52), ALL_REDUCE)

    failed, measured = swept(alone, replace(REQUEST, operations=operations))

    assert failed.status is PointStatus.FAILED
    assert "allocate memory" in failed.reason
    assert measured.status is PointStatus.MEASURED


GOOD = Operation(collective=Collective.ALL_REDUCE, size_bytes=256)
BAD = Operation(collective=Collective.BROADCAST, size_bytes=256)


def test_a_rank_that_is_killed_in_the_middle_ends_all(sweep):
    swept = sweep(request_for(GOOD, BAD, GOOD, timeout_s=20), 3, "die")

    assert swept.statuses[1] == -signal.SIGKILL
    assert 0 not in swept.statuses
    assert [point.operation for point in swept.points] == [GOOD]
    assert swept.points[0].status is PointStatus.MEASURED
    assert swept.error(0)["phase"] == "timed"


def test_an_exception_on_one_rank_ends_all(sweep):
    swept = sweep(request_for(GOOD, BAD, timeout_s=20), 2, "fail")

    assert 0 not in swept.statuses
    assert swept.error(1)["message"] == "the cable is loose"
    assert len(swept.points) == 1


def test_an_exception_under_mpirun_ends_ranks_that_wait_inside_mpi(sweep_by_mpi):
    request = request_for(GOOD, BAD, GOOD, adapter=AdapterName.MPI)

    swept = sweep_by_mpi(request, 2, "fail")

    assert swept.statuses != [0]
    assert swept.error(1)["message"] == "the cable is loose"
    assert len(swept.points) == 1


def test_a_rank_that_sleeps_is_ended_with_all_that_wait_for_it(sweep):
    swept = sweep(request_for(GOOD, BAD, timeout_s=5), 2, "sleep")

    assert swept.statuses[1] == TIMED_OUT
    assert swept.statuses[0] != 0  # its own time is over, or the connection is lost just before
    said = "broadcast float32 256 B: no end after 5 s"
    assert swept.error(1)["message"] == said
    assert swept.error(1)["type"].endswith("PointTimeoutError")
    assert f"rank 1: {said}" in swept.said(1)
    assert "in sleep" in swept.said(1)
    assert len(swept.points) == 1


def test_a_wrong_result_on_one_rank_is_told_and_the_sweep_goes_on(sweep):
    swept = sweep(request_for(GOOD, BAD, GOOD), 2, "corrupt")

    assert swept.statuses == [0, 0]
    first, wrong, last = swept.points
    assert (first.status, last.status) == (PointStatus.MEASURED,) * 2
    assert wrong.status is PointStatus.WRONG_RESULT
    assert "rank 1 got" in wrong.reason
    assert wrong.block_ns == ()


def test_a_rank_without_room_for_a_size_makes_all_leave_it_out(sweep):
    swept = sweep(request_for(GOOD, BAD, GOOD), 2, "take_all_memory")

    assert swept.statuses == [0, 0]
    first, failed, last = swept.points
    assert (first.status, last.status) == (PointStatus.MEASURED,) * 2
    assert failed.status is PointStatus.FAILED
    assert "rank 1: " in failed.reason
    assert "allocate memory" in failed.reason


PROGRAM = """
import sys, time
from pathlib import Path
from evaluator.workloads.collectives.sweep import time_limit

def stuck_here():
    time.sleep(float(sys.argv[2]))

folder = Path(sys.argv[3]) if len(sys.argv) > 3 else None
with time_limit(float(sys.argv[1]), "broadcast 4 B", rank=3, folder=folder):
    stuck_here()
time.sleep(float(sys.argv[1]) + 0.1)
print("continued")
"""
SAID = "broadcast 4 B: no end after 0.1 s"


@pytest.fixture
def limited(warm_ranks, tmp_path_factory):
    """Runs a block for so long under a limit; gives its exit status and what it printed."""
    own = tmp_path_factory.mktemp("process")
    (own / "program.py").write_text(PROGRAM)

    def run(limit_s: float, sleep_s: float, *folder: Path) -> tuple[int, str]:
        program = [str(own / "program.py"), *map(str, (limit_s, sleep_s, *folder))]
        (status,) = warm_ranks.run(own, 1, program)
        return status, (own / "rank0.log").read_text()

    return run


@pytest.mark.parametrize("name", [None, "gone", "there"])
def test_what_takes_too_long_is_ended_and_leaves_its_name_its_stack_and_an_error(
    limited, tmp_path, name
):
    folder = tmp_path / "there"
    folder.mkdir()

    status, printed = limited(0.1, 60, *(tmp_path / each for each in (name,) if each))

    assert status == TIMED_OUT
    assert printed.startswith(f"rank 3: {SAID}\n")
    assert "in stuck_here" in printed
    errors = [json.loads(path.read_text()) for path in folder.iterdir()]
    told = [(error["phase"], error["message"]) for error in errors]
    assert told == ([("timed", SAID)] if name == "there" else [])


def test_what_ends_in_time_continues_after_the_limit(limited, tmp_path):
    assert limited(0.3, 0, tmp_path) == (0, "continued\n")
    assert list(tmp_path.iterdir()) == []
