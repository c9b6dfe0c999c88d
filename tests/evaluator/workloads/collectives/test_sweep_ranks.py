"""Sweeps by several processes, as they are launched."""

from evaluator.collective_bench.record import bench_metrics
from evaluator.workloads.collectives.operations import (
    REDUCING,
    Collective,
    Operation,
    PointStatus,
    ReduceOp,
)
from tests.evaluator.workloads.collectives.conftest import request_for

ALL = tuple(
    Operation(collective=collective, size_bytes=size_bytes)
    for collective in Collective
    for size_bytes in (4, 4096)
)
REDUCTIONS = tuple(
    Operation(collective=collective, size_bytes=64, reduce_op=reduce_op)
    for collective in REDUCING
    for reduce_op in ReduceOp
)


def phases(swept):
    return swept.folder.joinpath("rank1.progress.jsonl").read_text()


def test_four_ranks_measure_every_collective_with_every_reduction(sweep):
    request = request_for(*ALL, *REDUCTIONS, sync_interval=2)

    swept = sweep(request, 4)

    assert swept.statuses == [0] * 4
    assert [point.operation for point in swept.points] == [*ALL, *REDUCTIONS]
    assert {point.status for point in swept.points} == {PointStatus.MEASURED}
    assert {point.block_calls for point in swept.points} == {(2, 2, 1)}
    assert {tuple(map(len, point.block_ns)) for point in swept.points} == {(3, 3, 3, 3)}
    assert min(ns for point in swept.points for of_rank in point.block_ns for ns in of_rank) > 0
    assert all(bench_metrics(point, 4, "nccl-tests").avg_time_us > 0 for point in swept.points)
    assert (swept.facts.backend_name, swept.facts.device_name) == ("gloo", None)
    assert '"phase": "timed", "step": 45' in phases(swept)
    assert phases(swept).rstrip().splitlines()[-1].startswith('{"phase": "done"')


def test_an_odd_rank_has_no_partner_and_waits_with_the_others_for_the_next_point(sweep):
    operations = [
        Operation(collective=collective, size_bytes=1024)
        for collective in (Collective.SEND_RECV, Collective.ALL_REDUCE, Collective.ALL_TO_ALL)
    ]

    swept = sweep(request_for(*operations, async_op=True), 3)

    assert swept.statuses == [0] * 3
    assert {point.status for point in swept.points} == {PointStatus.MEASURED}
    ping_pong = swept.points[0]
    assert ping_pong.block_ns[2] < min(ping_pong.block_ns[:2])


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
