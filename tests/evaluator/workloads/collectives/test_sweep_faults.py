"""What becomes of a sweep, and of its other ranks, when one rank goes wrong."""

import signal

from evaluator.workloads.collectives.operations import (
    AdapterName,
    Collective,
    Operation,
    PointStatus,
)
from evaluator.workloads.collectives.sweep import TIMED_OUT
from tests.evaluator.workloads.collectives.conftest import request_for

ALL_REDUCE = Operation(collective=Collective.ALL_REDUCE, size_bytes=256)
BAD = Operation(collective=Collective.BROADCAST, size_bytes=256)


def test_a_rank_that_is_killed_in_the_middle_ends_all(sweep):
    swept = sweep(request_for(ALL_REDUCE, BAD, ALL_REDUCE, timeout_s=20), 3, "die")

    assert swept.statuses[1] == -signal.SIGKILL
    assert 0 not in swept.statuses
    assert [point.operation for point in swept.points] == [ALL_REDUCE]
    assert swept.points[0].status is PointStatus.MEASURED
    assert swept.error(0)["phase"] == "timed"


def test_an_exception_on_one_rank_ends_all(sweep):
    swept = sweep(request_for(ALL_REDUCE, BAD, timeout_s=20), 2, "fail")

    assert 0 not in swept.statuses
    assert swept.error(1)["message"] == "the cable is loose"
    assert len(swept.points) == 1


def test_an_exception_under_mpirun_ends_ranks_that_wait_inside_mpi(sweep_by_mpi):
    request = request_for(ALL_REDUCE, BAD, ALL_REDUCE, adapter=AdapterName.MPI)

    swept = sweep_by_mpi(request, 2, "fail")

    assert swept.statuses != [0]
    assert swept.error(1)["message"] == "the cable is loose"
    assert len(swept.points) == 1


def test_a_rank_that_sleeps_is_ended_with_all_that_wait_for_it(sweep):
    swept = sweep(request_for(ALL_REDUCE, BAD, timeout_s=2), 2, "sleep")

    assert swept.statuses == [TIMED_OUT] * 2
    said = "broadcast float32 256 B: no end after 2 s"
    assert swept.error(1)["message"] == said
    assert swept.error(1)["type"].endswith("PointTimeoutError")
    assert f"rank 1: {said}" in swept.said(1)
    assert "in sleep" in swept.said(1)
    assert len(swept.points) == 1


def test_a_wrong_result_on_one_rank_is_told_and_the_sweep_goes_on(sweep):
    swept = sweep(request_for(ALL_REDUCE, BAD, ALL_REDUCE), 2, "corrupt")

    assert swept.statuses == [0, 0]
    first, wrong, last = swept.points
    assert (first.status, last.status) == (PointStatus.MEASURED,) * 2
    assert wrong.status is PointStatus.WRONG_RESULT
    assert "rank 1 got" in wrong.reason
    assert wrong.block_ns == ()


def test_a_rank_without_room_for_a_size_makes_all_leave_it_out(sweep):
    swept = sweep(request_for(ALL_REDUCE, BAD, ALL_REDUCE), 2, "take_all_memory")

    assert swept.statuses == [0, 0]
    first, failed, last = swept.points
    assert (first.status, last.status) == (PointStatus.MEASURED,) * 2
    assert failed.status is PointStatus.FAILED
    assert "rank 1: " in failed.reason
    assert "allocate memory" in failed.reason
