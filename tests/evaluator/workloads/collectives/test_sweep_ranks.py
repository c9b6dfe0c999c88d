"""Sweeps by several processes, as they are launched."""

import subprocess
import sys

from evaluator.collective_bench.record import bench_metrics
from evaluator.rank.job import DeviceKind
from evaluator.workloads.collectives.operations import (
    REDUCING,
    AdapterName,
    Collective,
    Operation,
    PointStatus,
    ReduceOp,
    SweepRequest,
)

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


def request_for(*operations, adapter=AdapterName.C10D, **options):
    return SweepRequest(
        adapter=adapter,
        backend="mpi" if adapter is AdapterName.MPI else "gloo",
        device=DeviceKind.CPU,
        operations=operations,
        **{"warmup_iterations": 1, "measure_iterations": 5, **options},
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


def test_mpirun_starts_ranks_that_measure_through_mpi(sweep_by_mpi):
    swept = sweep_by_mpi(request_for(*ALL, adapter=AdapterName.MPI, sync_interval=1), 2)

    assert swept.statuses == [0], swept.said(0)
    assert [point.operation for point in swept.points] == list(ALL)
    assert {point.status for point in swept.points} == {PointStatus.MEASURED}
    assert {point.block_calls for point in swept.points} == {(1,) * 5}


def test_ranks_without_a_place_to_meet_say_what_is_missing(sweep_by_mpi):
    swept = sweep_by_mpi(request_for(*ALL), 1)

    assert swept.statuses != [0]
    assert "MASTER_ADDR and MASTER_PORT not set" in swept.error(0)["message"]


def test_a_process_of_a_launcher_of_ones_own_is_a_rank_by_itself(tmp_path):
    program = """
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
"""
    numbers = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}

    ended = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=tmp_path,
        env={**numbers, "CCLSEARCH_INIT_METHOD": f"file://{tmp_path}/store"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert ended.stdout == "gloo\nbarrier measured\n"
    assert [path.name for path in tmp_path.iterdir() if path.name != "store"] == []
