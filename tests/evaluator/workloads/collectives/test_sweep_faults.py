"""What becomes of a sweep, and of its other ranks, when one rank goes wrong."""

import json
import signal
from pathlib import Path

import pytest

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
