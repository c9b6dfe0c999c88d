"""What runs on each node before a study: matrix products alone, then exchanges with neighbours.

Standard library, and torch where there is any: without it a node computes in Python, and exchanges
nothing. It leaves `node{n}.json` in the folder in which it starts.

    python node_test.py NODE_RANK NODE_COUNT SECONDS

Nodes meet at MASTER_ADDR and MASTER_PORT of their environment.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Work

GPU_SIZE, CPU_SIZE, PYTHON_SIZE = 8192, 512, 20_000
EXCHANGED_BYTES = 32 << 20
EXCHANGES = 5
MEETING_S = 120


def main() -> None:
    """Test this node and its connections to the next and the last one."""
    node, count = int(sys.argv[1]), int(sys.argv[2])
    seconds = float(sys.argv[3])
    found: dict[str, object] = {"node_rank": node, "host": os.uname().nodename}
    try:
        import torch
    except ImportError:
        found["product_s"] = _median_s(_count_up, seconds)
    else:
        devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        found["product_s"] = max(_product_s(device, seconds) for device in devices or ["cpu"])
        if count > 1:
            found["exchange_s"] = _exchanges(node, count, on_gpu=bool(devices))
    path = Path(f"node{node}.json")
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(found), encoding="utf-8")
    partial.replace(path)


def _count_up() -> None:
    sum(number * number for number in range(PYTHON_SIZE))


def _median_s(work: Callable[[], object], seconds: float) -> float:
    """Repeat some work for a while, after a start that does not count."""
    work()
    times_s: list[float] = []
    end_s = time.perf_counter() + seconds
    while len(times_s) < 3 or time.perf_counter() < end_s:
        begun_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - begun_s)
    return median(times_s)


def _product_s(device: str, seconds: float) -> float:
    """Median time of a product of two square matrices."""
    import torch

    on_gpu = device != "cpu"
    size, kind = (GPU_SIZE, torch.bfloat16) if on_gpu else (CPU_SIZE, torch.float32)
    if not on_gpu:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    a, b = (torch.ones(size, size, dtype=kind, device=device) for _ in range(2))

    def product() -> None:
        torch.mm(a, b)
        if on_gpu:
            torch.cuda.synchronize(device)

    return _median_s(product, seconds)


def _exchanges(node: int, count: int, *, on_gpu: bool) -> dict[str, float]:
    """Median time to send as much to a neighbour as comes from it, by the neighbour's number.

    Neighbours form a ring: a node that is slow is slow with both, a link with one.
    """
    import torch
    from torch import distributed

    distributed.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method="env://",
        rank=node,
        world_size=count,
        timeout=timedelta(seconds=MEETING_S),
    )
    device = "cuda:0" if on_gpu else "cpu"
    out, into = (torch.ones(EXCHANGED_BYTES // 4, device=device) for _ in range(2))

    def exchange(other: int) -> float:
        begun_s = time.perf_counter()
        pair = [
            distributed.P2POp(distributed.isend, out, other),
            distributed.P2POp(distributed.irecv, into, other),
        ]
        works: list[Work] = distributed.batch_isend_irecv(pair)
        for work in works:
            work.wait()
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - begun_s

    found: dict[str, float] = {}
    for pairs in ring(count):
        distributed.barrier()
        for other in (sum(pair) - node for pair in pairs if node in pair):
            times_s = [exchange(other) for _ in range(EXCHANGES + 1)]
            found[str(other)] = median(times_s[1:])
    distributed.barrier()
    with suppress(RuntimeError):
        distributed.destroy_process_group()
    return found


def ring(count: int) -> list[list[tuple[int, int]]]:
    """Return the pairs of neighbours in a ring, in turns: a node is in one pair of each turn."""
    turns = [[(n, n + 1) for n in range(start, count - 1, 2)] for start in (0, 1)]
    closing = (0, count - 1)
    if count > 2:
        turns = [*turns, [closing]] if count % 2 else [turns[0], [*turns[1], closing]]
    return [turn for turn in turns if turn]


if __name__ == "__main__":
    main()
