"""One rank that tries every collective through one adapter and leaves what it saw in a file.

    python adapter_ranks.py ADAPTER FOLDER [STORE]

It is told its number by its launcher. With a store it joins a control group first, and tries gloo
in several tunings instead of its own.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from evaluator.rank.job import DeviceKind
from evaluator.rank.main import read_rank_numbers
from evaluator.workloads.collectives.adapters import CommAdapter, mismatch, refill, tensors_for
from evaluator.workloads.collectives.operations import (
    AdapterName,
    Collective,
    DType,
    Operation,
    ReduceOp,
    Setup,
    UnsupportedError,
)
from evaluator.workloads.collectives.sweep import default_backend, new_adapter

CPU = torch.device("cpu")
ONE_ELEMENT, MANY_BYTES = 4, 8 * 1031
TUNINGS = (
    Setup(gloo_threads=1, gloo_interfaces="lo"),
    Setup(gloo_threads=2),
    Setup(gloo_threads=4, gloo_interfaces="lo,lo"),
)


def operations() -> Iterator[Operation]:
    """Every call that has a meaning, on a large message, and the float32 ones on one element."""
    for collective in Collective:
        for dtype in DType:
            sizes = (ONE_ELEMENT, MANY_BYTES) if dtype is DType.FLOAT32 else (MANY_BYTES,)
            for size_bytes in sizes:
                operation = Operation(collective=collective, size_bytes=size_bytes, dtype=dtype)
                ops = ReduceOp if operation.reduces else (ReduceOp.SUM,)
                yield from (
                    Operation(
                        collective=collective, size_bytes=size_bytes, dtype=dtype, reduce_op=op
                    )
                    for op in ops
                    if not (op is ReduceOp.AVG and dtype.is_integer)
                )


def complaints(adapter: CommAdapter, operation: Operation) -> list[str]:
    """What is wrong after a call, and in float32 after a started one and after calls in a row."""
    rank, size = adapter.membership.rank, adapter.membership.size
    in_float32 = operation.dtype is DType.FLOAT32
    seen = []
    for async_op in (False, True) if in_float32 else (False,):
        tensors = tensors_for(operation, rank, size, CPU)
        refill(operation, tensors, rank)
        adapter.run_collective(operation, tensors, async_op=async_op)
        wrong = mismatch(operation, tensors, rank, size)
        if wrong is not None:
            seen.append(f"async {async_op}: {wrong}")
    if not (operation.reduces and in_float32):
        return seen
    stable = tensors_for(operation, rank, size, CPU)
    before = [tensor.clone() for tensor in stable.inputs]
    call = adapter.resolve_collective(operation, stable)
    for _ in range(3):
        call()
    if not all(map(torch.equal, before, stable.inputs)):
        seen.append(f"{operation}: inputs drift")
    return seen


def complaints_in_flight(adapter: CommAdapter, collective: Collective) -> list[str]:
    """What is wrong after three started calls that are waited for afterwards."""
    rank, size = adapter.membership.rank, adapter.membership.size
    operation = Operation(collective=collective, size_bytes=MANY_BYTES)
    several = [tensors_for(operation, rank, size, CPU) for _ in range(3)]
    for tensors in several:
        refill(operation, tensors, rank)
    started = [adapter.resolve_start(operation, tensors)() for tensors in several]
    for pending in started:
        pending.wait()
    found = (mismatch(operation, tensors, rank, size) for tensors in several)
    return [f"in flight: {line}" for line in found if line is not None]


def try_all(adapter: CommAdapter) -> dict[str, object]:
    wrong = [line for each in Collective for line in complaints_in_flight(adapter, each)]
    refused: list[str] = []
    right = 0
    for operation in operations():
        try:
            seen = complaints(adapter, operation)
        except UnsupportedError as error:
            refused.append(str(error))
            continue
        wrong += seen
        right += not seen
    return {
        "rank": adapter.membership.rank,
        "size": adapter.membership.size,
        "backend": adapter.membership.backend,
        "version": adapter.get_backend_version(),
        "wrong": wrong,
        "refused": refused,
        "right": right,
    }


def try_adapter(name: AdapterName, rank: int, size: int) -> dict[str, object]:
    adapter = new_adapter(name)
    adapter.init(default_backend(name, DeviceKind.CPU), CPU, rank, size)
    try:
        seen = try_all(adapter)
    finally:
        adapter.finalize()
        adapter.finalize()
    return {**seen, "in_group": dist.is_initialized()}


def thread_count() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def try_tunings(store: str, rank: int, size: int) -> dict[str, object]:
    """Each tuning beside a control group, which must outlive them all."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    tunings = []
    for tuning in TUNINGS:
        threads_before = thread_count()
        adapter = new_adapter(AdapterName.C10D, tuning)
        adapter.init("gloo", CPU, rank, size)
        threads = thread_count() - threads_before
        wrong = [line for each in Collective for line in complaints_in_flight(adapter, each)]
        tunings.append({"wrong": wrong, "backend": adapter.membership.backend, "threads": threads})
        adapter.finalize()
        adapter.finalize()
    dist.barrier()
    dist.destroy_process_group()
    return {"tunings": tunings}


def main(name: AdapterName, folder: Path, *store: str) -> None:
    numbers = read_rank_numbers()
    if store:
        seen = try_tunings(store[0], numbers.rank, numbers.world_size)
    else:
        seen = try_adapter(name, numbers.rank, numbers.world_size)
    (folder / f"rank{numbers.rank}.json").write_text(json.dumps(seen), encoding="utf-8")


if __name__ == "__main__":
    main(AdapterName(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
