"""Launches of a benchmark: their order, the points that arrive, and one that breaks."""

import json
import threading
from dataclasses import asdict

import pytest

from evaluator.collective_bench.request import BenchContext, read_plan
from evaluator.collective_bench.run import BenchRun
from evaluator.machine import this_machine
from evaluator.ports import JobResult
from evaluator.rank.job import parse
from evaluator.rank.protocol import RankExit
from evaluator.workloads.collectives.operations import (
    AdapterName,
    Collective,
    PointSamples,
    PointStatus,
    SweepFacts,
    SweepRequest,
    add_line,
)
from records.errors import StoreError

WAIT_S = 30
FACTS = SweepFacts(
    device_name=None,
    torch_version="9.9",
    torchcomms_version=None,
    backend_name="told",
    backend_version="7",
)


class Ranks:
    """Stands in for a launcher: leaves points as ranks do, perhaps not all of them."""

    def __init__(self, *, leaves=99, breaks=False, until=None, half_a_line=False):
        self.leaves = leaves
        self.breaks = breaks
        self.until = until
        self.half_a_line = half_a_line
        self.jobs = []

    def run(self, job, workdir, _on_phase):
        self.jobs.append(job)
        request = parse(SweepRequest, job.files["sweep.json"])
        add_line(workdir, FACTS)
        for operation in request.operations[: self.leaves]:
            add_line(workdir, measured(operation, job.world_size))
        if self.half_a_line:
            with (workdir / "points.jsonl").open("a") as lines:
                lines.write('{"operation": {"coll')
        if self.until is not None:
            assert self.until.wait(WAIT_S)
        (workdir / "job.log").touch()
        command = RankExit(rank=None, status=1, signal=None, ended_ns=1)
        return JobResult(
            workdir=workdir,
            reason="rank_failed" if self.breaks else "finished",
            ranks=(command,) if self.breaks else (),
            wall_s=1.0,
        )


def measured(operation, world_size):
    return PointSamples(
        operation=operation,
        status=PointStatus.MEASURED,
        started_at="2026-01-01T00:00:00+00:00",
        block_calls=(10,),
        block_ns=((1000,),) * world_size,
    )


@pytest.fixture
def bench(tmp_path):
    """Conducts a small plan; gives what broke, and the records in their order."""
    machine = this_machine(tmp_path)

    def run(ranks, names=("c10d",), run_id="run", on_record=None, **changes):
        asked = {"collective": "all_reduce", "max_size": "16", **changes}
        plan = read_plan(asked, BenchContext())
        records = []
        bench_run = BenchRun(
            plan=plan,
            requests=[plan.request(AdapterName(name), "gloo") for name in names],
            machine=machine,
            run_id=run_id,
            on_record=on_record or records.append,
        )
        return bench_run.launch_ranks(ranks), records

    return run


def test_every_point_becomes_a_record_while_the_ranks_run(bench):
    passed_on = threading.Event()
    broken, _ = bench(Ranks(until=passed_on), on_record=lambda _record: passed_on.set())
    late, records = bench(Ranks(breaks=True))

    assert broken is None
    assert late.operation is None  # it broke after its last point, which spoils none
    assert [record.point.operation.message_bytes for record in records] == [4, 8, 16]
    assert {record.point.status for record in records} == {"measured"}
    assert records[0].facts == FACTS
    assert records[0].metrics.avg_time_us == 0.1
    assert records[0].conditions is not None


def test_adapters_take_turns_in_an_order_that_is_drawn_for_each_round(bench):
    names = ("torchcomms", "c10d", "c10d_torchcomms")
    _, records = bench(Ranks(), names=names, max_size="4", rounds="5")

    rounds = [[r for r in records if r.place.round == number] for number in range(5)]
    orders = [tuple(r.params.comm_adapter for r in each) for each in rounds]
    assert all(sorted(order) == sorted(names) for order in orders)
    assert len(set(orders)) > 1
    assert [[r.place.order for r in each] for each in rounds] == [[0, 1, 2]] * 5
    assert len({record.place.launch_id for record in records}) == 15
    _, again = bench(Ranks(), names=names, max_size="4", rounds="5")
    assert [r.params.comm_adapter for r in again] == [r.params.comm_adapter for r in records]


def test_a_launch_that_breaks_keeps_its_points_and_ends_the_benchmark(bench):
    ranks = Ranks(leaves=1, breaks=True, half_a_line=True)
    broken, records = bench(ranks, rounds="3")

    assert len(ranks.jobs) == 1
    points = [(r.point.operation.message_bytes, r.point.status) for r in records]
    assert points == [(4, "measured"), (8, "failed")]
    assert records[1].metrics is None
    assert (
        records[1].point.reason
        == broken.failed.message
        == ("the command ended with status 1 and said nothing")
    )
    assert broken.operation.message_bytes == 8


@pytest.mark.parametrize("during", [True, False])
def test_a_record_that_cannot_be_kept_is_an_error_of_the_command(bench, during):
    refused = threading.Event()

    def refuse(_record):
        refused.set()
        raise StoreError("the disk is full")

    with pytest.raises(StoreError, match="the disk is full"):
        bench(Ranks(until=refused if during else None), on_record=refuse)


def test_ranks_are_told_all_that_was_asked(bench):
    ranks = Ranks()
    bench(
        ranks,
        collective="barrier",
        warmup="0",
        iters="9",
        sync_interval="3",
        async_op=True,
        timeout="2.5",
        rank_count="3",
    )

    (job,) = ranks.jobs
    told = parse(SweepRequest, job.files["sweep.json"])
    assert [operation.collective for operation in told.operations] == [Collective.BARRIER]
    assert (told.warmup_iterations, told.measure_iterations, told.sync_interval) == (0, 9, 3)
    assert (told.async_op, told.timeout_s, job.world_size) == (True, 2.5, 3)
    assert "--nproc-per-node=3" in job.argv
    assert asdict(told)["adapter"] == json.loads(job.files["sweep.json"])["adapter"] == "c10d"
