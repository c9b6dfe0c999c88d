"""Records of a collective benchmark for tests, here and in projects that read them."""

from collections.abc import Sequence

from evaluator.collective_bench.record import (
    BenchParams,
    BenchRecord,
    LaunchPlace,
    bench_metrics,
)
from evaluator.machine import Host
from evaluator.workloads.collectives.operations import (
    Collective,
    Operation,
    PointSamples,
    PointStatus,
    SweepFacts,
)


def record(
    operation: Operation | None = None,
    block_ns: Sequence[Sequence[int]] = ((1000, 3000), (2000, 2000)),
    *,
    adapter: str = "c10d",
    run_id: str = "20260101-000000-aaaa",
    round_: int = 0,
) -> BenchRecord:
    """A point as each rank, a row, measured it in blocks of ten calls; skipped without ranks."""
    done = operation or Operation(collective=Collective.ALL_REDUCE, size_bytes=1024)
    measured = bool(block_ns)
    samples = PointSamples(
        operation=done,
        status=PointStatus.MEASURED if measured else PointStatus.SKIPPED,
        started_at="2026-01-01T00:00:00+00:00",
        reason="" if measured else "the library lacks it",
        block_calls=tuple(10 for _ in block_ns[0]) if measured else (),
        block_ns=tuple(map(tuple, block_ns)),
    )
    return BenchRecord(
        host=Host(host="here", core_count=4, kernel="6.0"),
        facts=SweepFacts(
            device_name=None,
            torch_version="2.13.0",
            torchcomms_version=None,
            backend_name="gloo",
            backend_version=None,
        ),
        params=BenchParams(
            comm_adapter=adapter,
            device="cpu",
            num_ranks=len(block_ns) or 2,
            async_op=False,
            warmup_iterations=5,
            measure_iterations=20,
            sync_interval=10,
            bandwidth_convention="nccl-tests",
        ),
        place=LaunchPlace(
            run_id=run_id,
            launch_id=f"{run_id}-{round_}",
            round=round_,
            round_count=1,
            order=0,
        ),
        point=samples,
        metrics=bench_metrics(samples, len(block_ns), "nccl-tests") if measured else None,
    )
