import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.collective_bench.record import bench_metrics
from evaluator.workloads.collectives.operations import (
    Collective,
    Operation,
    PointSamples,
    PointStatus,
)

NCCL = "nccl-tests"


def samples(block_ns, block_calls, collective=Collective.ALL_REDUCE, size_bytes=1 << 20):
    return PointSamples(
        operation=Operation(collective=collective, size_bytes=size_bytes),
        status=PointStatus.MEASURED,
        started_at="2026-01-01T00:00:00+00:00",
        block_calls=tuple(block_calls),
        block_ns=tuple(map(tuple, block_ns)),
    )


@st.composite
def points(draw):
    ranks, blocks = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    duration_ns = st.integers(1, 10**13)
    block_ns = st.lists(duration_ns, min_size=blocks, max_size=blocks)
    return samples(
        draw(st.lists(block_ns, min_size=ranks, max_size=ranks)),
        draw(st.lists(st.integers(1, 1000), min_size=blocks, max_size=blocks)),
    )


def test_each_block_takes_as_long_as_on_its_slowest_rank():
    metrics = bench_metrics(samples([[4_000, 1_000], [2_000, 9_000]], [1, 1]), 2, NCCL)

    assert (metrics.min_time_us, metrics.max_time_us) == (4.0, 9.0)
    assert metrics.avg_time_us == 6.5
    assert metrics.slowest_rank == 1


def test_a_short_last_block_counts_by_its_calls():
    metrics = bench_metrics(samples([[40_000, 40_000, 5_000]], [4, 4, 1]), 1, NCCL)

    assert metrics.avg_time_us == pytest.approx(85 / 9)
    assert (metrics.min_time_us, metrics.median_time_us, metrics.max_time_us) == (5.0, 10.0, 10.0)


def test_quantiles_are_read_between_blocks_and_a_barrier_has_no_bandwidth():
    blocks = samples([[1_000, 2_000, 3_000, 4_000]], [1] * 4, Collective.BARRIER, 0)
    metrics = bench_metrics(blocks, 1, NCCL)

    assert (metrics.p25_time_us, metrics.median_time_us) == pytest.approx((1.75, 2.5))
    assert (metrics.p75_time_us, metrics.p99_time_us) == pytest.approx((3.25, 3.97))
    assert metrics.bandwidth is None


def test_bandwidth_is_that_of_the_average_call():
    metrics = bench_metrics(samples([[100_000]] * 8, [1]), 8, NCCL)

    assert metrics.bandwidth.bus_gbps == pytest.approx(18.350, abs=5e-4)
    assert metrics.bandwidth.algorithm_gbps == pytest.approx(10.486, abs=5e-4)
    assert (metrics.bandwidth.payload_bytes, metrics.bandwidth.factor) == (1 << 20, 1.75)


def test_a_ping_pong_is_told_one_way_and_unpaired_ranks_do_not_count():
    metrics = bench_metrics(
        samples([[200_000], [200_000], [100]], [1], Collective.SEND_RECV), 3, NCCL
    )

    assert metrics.avg_time_us == metrics.min_time_us == 100.0
    assert metrics.bandwidth.bus_gbps == pytest.approx(10.486, abs=5e-4)


def test_a_point_without_samples_has_no_metrics():
    skipped = PointSamples(
        operation=Operation(collective=Collective.SEND_RECV, size_bytes=4),
        status=PointStatus.SKIPPED,
        started_at="2026-01-01T00:00:00+00:00",
        reason="one rank",
    )

    with pytest.raises(ValueError, match="no samples of 1 ranks"):
        bench_metrics(skipped, 1, NCCL)
    with pytest.raises(ValueError, match="no samples of 3 ranks"):
        bench_metrics(samples([[1_000]] * 2, [1]), 3, NCCL)


@given(point=points())
def test_quantiles_are_in_order_and_the_average_is_among_the_blocks(point):
    metrics = bench_metrics(point, len(point.block_ns), NCCL)
    in_order = [
        metrics.min_time_us,
        metrics.p25_time_us,
        metrics.median_time_us,
        metrics.p75_time_us,
        metrics.p99_time_us,
        metrics.max_time_us,
    ]

    assert sum(point.block_ns[metrics.slowest_rank]) == max(map(sum, point.block_ns))
    assert in_order == sorted(in_order)
    assert len(point.block_calls) > 1 or set(in_order) == {metrics.avg_time_us}
    assert in_order[0] * (1 - 1e-9) <= metrics.avg_time_us <= in_order[-1] * (1 + 1e-9)
    assert all(map(math.isfinite, [*in_order, metrics.bandwidth.bus_gbps]))
