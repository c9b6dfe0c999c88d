"""Sweeps by several processes, as they are launched."""

import pytest

from evaluator.collective_bench.record import bench_metrics
from evaluator.machine import mpi_library
from evaluator.workloads.collectives.operations import (
    REDUCING,
    AdapterName,
    Collective,
    DType,
    Operation,
    PointStatus,
    ReduceOp,
)
from tests.evaluator.workloads.collectives.conftest import request_for

ALL = tuple(
    Operation(collective=collective, size_bytes=size_bytes, dtype=dtype, reduce_op=reduce_op)
    for collective in Collective
    for dtype in DType
    for size_bytes in ((4, 8 * 1031) if dtype is DType.FLOAT32 else (8 * 1031,))
    for reduce_op in (ReduceOp if collective in REDUCING else (ReduceOp.SUM,))
    if not (reduce_op is ReduceOp.AVG and dtype.is_integer)
)
"""Thirteen collectives in six formats, four of them with each reduction that has a meaning."""
LIBRARY = mpi_library()


def phases(swept):
    return swept.folder.joinpath("rank1.progress.jsonl").read_text()


def test_four_ranks_measure_every_collective_in_every_format_with_every_reduction(sweep):
    swept = sweep(request_for(*ALL, sync_interval=2, measure_iterations=3), 4)

    assert swept.statuses == [0] * 4
    assert [point.operation for point in swept.points] == [*ALL]
    assert {(point.status, point.reason) for point in swept.points} == {(PointStatus.MEASURED, "")}
    assert {point.block_calls for point in swept.points} == {(2, 1)}
    assert {tuple(map(len, point.block_ns)) for point in swept.points} == {(2, 2, 2, 2)}
    assert min(ns for point in swept.points for of_rank in point.block_ns for ns in of_rank) > 0
    assert all(bench_metrics(point, 4, "nccl-tests").avg_time_us > 0 for point in swept.points)
    assert (swept.facts.backend_name, swept.facts.device_name) == ("gloo", None)
    assert f'"phase": "timed", "step": {len(ALL) - 1}' in phases(swept)
    assert phases(swept).rstrip().splitlines()[-1].startswith('{"phase": "done"')


def test_calls_can_be_started_and_an_odd_rank_without_partner_waits_for_the_next_point(sweep):
    some = [operation for operation in ALL if operation.dtype is DType.FLOAT32]

    swept = sweep(request_for(*some, async_op=True), 3)

    assert swept.statuses == [0] * 3
    assert {(point.status, point.reason) for point in swept.points} == {(PointStatus.MEASURED, "")}
    ping_pongs = [p for p in swept.points if p.operation.collective is Collective.SEND_RECV]
    assert all(point.block_ns[2] < min(point.block_ns[:2]) for point in ping_pongs)


@pytest.mark.skipif(
    LIBRARY is None or LIBRARY.mpirun is None, reason="no MPI library with its mpirun is installed"
)
def test_mpi_carries_all_that_it_can_compute_between_three_ranks(sweep_by_mpi):
    some = [each for each in ALL if each.dtype is DType.FLOAT32 or each.reduce_op is ReduceOp.SUM]
    asked = request_for(*some, adapter=AdapterName.MPI, warmup_iterations=0, measure_iterations=1)

    swept = sweep_by_mpi(asked, 3)

    assert swept.statuses == [0]
    refused = [point for point in swept.points if point.status is PointStatus.SKIPPED]
    assert {point.operation.dtype for point in refused} == {DType.FLOAT16, DType.BFLOAT16}
    assert refused[0].reason == (
        "mpi has no all_reduce sum float16 8248 B: MPI cannot compute with float16"
    )
    assert len(refused) == 8
    measured = [point for point in swept.points if point.status is PointStatus.MEASURED]
    assert len(measured) + len(refused) == len(some)
    assert swept.facts.backend_version == LIBRARY.version


def test_ranks_without_a_place_to_meet_say_what_is_missing(sweep_by_mpi):
    swept = sweep_by_mpi(request_for(*ALL), 1)

    assert swept.statuses != [0]
    assert "MASTER_ADDR and MASTER_PORT not set" in swept.error(0)["message"]


def test_a_process_of_a_launcher_of_ones_own_is_a_rank_by_itself(warm_ranks, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("""
from evaluator.rank.main import read_rank_numbers
from evaluator.rank.job import DeviceKind
from evaluator.workloads.collectives import sweep
from evaluator.workloads.collectives.operations import AdapterName
from evaluator.workloads.collectives.operations import Collective, Operation
from evaluator.workloads.collectives.operations import SweepFacts, SweepRequest

def report(line):
    print(*(line.backend_name,) if isinstance(line, SweepFacts) else (line.operation, line.status))

sweep.run(
    SweepRequest(
        adapter=AdapterName.C10D,
        backend="gloo",
        device=DeviceKind.CPU,
        operations=(Operation(collective=Collective.BARRIER, size_bytes=0),),
        measure_iterations=3,
    ),
    read_rank_numbers(),
    report,
)
""")

    statuses = warm_ranks.run(tmp_path, 1, (str(program),))

    assert statuses == [0]
    assert (tmp_path / "rank0.log").read_text() == "gloo\nbarrier measured\n"
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {"program.py", "rank0.log", "store"}
