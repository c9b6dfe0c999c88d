"""From the durations of a point's blocks on all ranks to its latency and bandwidth."""

import numpy as np
from numpy.typing import NDArray

from evaluator.bench.bandwidth import bandwidth
from evaluator.bench.record import BenchMetrics, Convention
from evaluator.workloads.collectives.operations import Collective
from evaluator.workloads.collectives.sweep_request import PointSamples


def bench_metrics(samples: PointSamples, world_size: int, convention: Convention) -> BenchMetrics:
    """Give what a measured point's samples say; raises `ValueError` for a point without samples.

    A block takes as long as on its slowest rank, and the average is that of all calls. Least,
    greatest and quantiles (linear) are those of the blocks' times a call: with one block all
    equal the average. A call of a send_recv is there and back: latencies and bandwidth are those
    of one way, and a rank without a partner does not count.
    """
    if not samples.block_calls or len(samples.block_ns) != world_size:
        raise ValueError(f"{samples.operation} has no samples of {world_size} ranks")
    operation = samples.operation
    ways = 2 if operation.collective is Collective.SEND_RECV else 1
    calls = np.array(samples.block_calls, dtype=np.int64) * ways
    # (ranks, blocks), ns
    block_ns = np.array(samples.block_ns[: world_size - world_size % ways], dtype=np.int64)
    slowest_ns = block_ns.max(axis=0)
    average_us = _per_call_us(slowest_ns.sum(), calls.sum())
    of_blocks_us = _per_call_us(slowest_ns, calls)
    of_ranks_us = _per_call_us(block_ns.sum(axis=1), calls.sum())
    p25_us, median_us, p75_us, p99_us = np.quantile(of_blocks_us, (0.25, 0.5, 0.75, 0.99)).tolist()
    moved = bandwidth(
        operation.collective,
        operation.message_bytes,
        world_size,
        float(average_us) / 1e6,
        convention,
    )
    return BenchMetrics(
        message_size_bytes=operation.message_bytes,
        total_time_us=float(slowest_ns.sum()) / 1e3,
        avg_time_us=float(average_us),
        min_time_us=float(of_blocks_us.min()),
        max_time_us=float(of_blocks_us.max()),
        p25_time_us=p25_us,
        median_time_us=median_us,
        p75_time_us=p75_us,
        p99_time_us=p99_us,
        rank0_avg_time_us=float(of_ranks_us[0]),
        mean_rank_avg_time_us=float(of_ranks_us.mean()),
        fastest_rank_avg_time_us=float(of_ranks_us.min()),
        slowest_rank=int(block_ns.sum(axis=1).argmax()),
        payload_bytes=None if moved is None else moved.payload_bytes,
        bus_factor=None if moved is None else moved.factor,
        algorithm_bw_gbps=None if moved is None else moved.algorithm_gbps,
        bus_bw_gbps=None if moved is None else moved.bus_gbps,
        block_calls=samples.block_calls,
        block_ns=samples.block_ns,
    )


def _per_call_us(
    duration_ns: NDArray[np.int64] | np.int64, calls: NDArray[np.int64] | np.int64
) -> NDArray[np.float64]:
    return np.asarray(duration_ns / calls / 1e3, dtype=np.float64)
