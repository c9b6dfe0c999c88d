"""What our benchmark adds to an all-reduce, against the same loop written by hand.

In every world the same ranks run both in turns, first one and then the other, in an order that
changes: the sweep that `cclsearch bench collectives` runs, and a loop of `torch.distributed` calls
between two readings of the clock. Told are the medians over the rounds in microseconds a call, and
the median difference of a round with its 95 % interval: the harness is as good as the loop where
that is below 2 us at 8 bytes, and below 1 % from 1 MiB on. With one rank the call itself is short,
so that what is added shows best; with more ranks than cores it drowns in the noise of the calls.

With an MPI compiler beside the MPI of mpi4py (or `--osu PATH` of osu_allreduce), our MPI numbers
stand beside those of a C program, in launches that take turns.

    python benchmarks/collectives_peer.py
    python benchmarks/collectives_peer.py --worlds 2 --rounds 40 --sizes 8 1048576
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
import torch.distributed as dist
from scipy.stats import binom

from evaluator.machine import mpirun_command, mpirun_environment
from evaluator.rank.job import DeviceKind
from evaluator.rank.main import pin_to_cores
from evaluator.rank.protocol import read_rank_numbers
from evaluator.workloads.collectives.adapters import CommAdapter
from evaluator.workloads.collectives.operations import (
    AdapterName,
    Collective,
    Operation,
    PointSamples,
    SweepRequest,
)
from evaluator.workloads.collectives.sweep import new_adapter, run_bench_sweep
from search.settings import trial_environment

HERE = Path(__file__).parent
C_LOOP = HERE / "allreduce_loop.c"
SIZES = (8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
BLOCK_S = 0.15
"""How long a loop takes about, so that reading the clock is nothing."""
MOST_CALLS = 2000
SMALL_BYTES, SMALL_US = 8, 2.0
LARGE_BYTES, LARGE_SHARE = 1 << 20, 0.01
BACKENDS = {AdapterName.C10D: "gloo", AdapterName.MPI: "mpi"}


@dataclass(frozen=True, slots=True)
class Round:
    """Both loops once, microseconds a call on the slowest rank."""

    ours_us: float
    peer_us: float


def main() -> None:
    parser = argparse.ArgumentParser(description="Our all-reduce loop against one by hand.")
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--mpi-rounds", type=int, default=6, help="pairs of launches")
    parser.add_argument("--osu", type=Path, help="osu_allreduce, built with the same MPI")
    parser.add_argument("--rank", choices=("c10d", "mpi"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank == "c10d":
        by_turns(options.sizes, options.rounds)
    elif options.rank == "mpi":
        ours_alone(options.sizes)
    else:
        for world in options.worlds:
            against_torch(world, options.sizes, options.rounds)
        against_c(max(options.worlds), options)
        print(f"load at the end: {os.getloadavg()[0]:.1f}, cores: {os.cpu_count()}")


def against_torch(world: int, sizes: Sequence[int], rounds: int) -> None:
    print(f"\nall_reduce float32 sum, gloo, {world} ranks, {rounds} rounds in turns")
    print(f"{'bytes':>10} {'by hand us':>12} {'ours us':>12} {'added us [95 %]':>26} {'share':>8}")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={world}", __file__, "--rank", "c10d"]
    command += ["--rounds", str(rounds), "--sizes", *map(str, sizes)]
    for line in lines_of(command):
        if line.startswith("{"):
            found = json.loads(line)
            print_row(found["bytes"], [Round(*each) for each in found["rounds"]])


def print_row(size: int, rounds: Sequence[Round]) -> None:
    added = sorted(each.ours_us - each.peer_us for each in rounds)
    low, high = interval(added)
    peer = statistics.median(each.peer_us for each in rounds)
    ours = statistics.median(each.ours_us for each in rounds)
    middle = statistics.median(added)
    verdict = ""
    if size <= SMALL_BYTES:
        verdict = judged(low, high, SMALL_US, f"{SMALL_US:g} us")
    elif size >= LARGE_BYTES:
        verdict = judged(low / peer, high / peer, LARGE_SHARE, f"{LARGE_SHARE:.0%}")
    span = f"{middle:+.2f} [{low:+.2f}, {high:+.2f}]"
    print(f"{size:>10} {peer:>12.2f} {ours:>12.2f} {span:>26} {middle / peer:>+8.2%}  {verdict}")


def interval(ordered: Sequence[float]) -> tuple[float, float]:
    """Of the median, from the ranks of the sorted values, whatever their distribution."""
    outside = max(0, int(binom.ppf(0.025, len(ordered), 0.5)) - 1)
    return ordered[outside], ordered[-1 - outside]


def judged(low: float, high: float, limit: float, words: str) -> str:
    if high <= limit:
        return f"at most {words}: shown"
    return f"above {words}: shown" if low > limit else f"{words}: within the noise"


def by_turns(sizes: Sequence[int], rounds: int) -> None:
    """The program of a rank."""
    numbers = read_rank_numbers()
    torch.set_num_threads(1)
    pin_to_cores(numbers.local_rank, 1)
    adapter = opened(AdapterName.C10D, numbers.rank, numbers.world_size)
    for size in sizes:
        calls = calls_for(size)
        found = [
            one_round(adapter, size, calls, ours_first=Random(number).random() < 0.5)
            for number in range(rounds)
        ]
        if numbers.rank == 0:
            print(json.dumps({"bytes": size, "rounds": found}), flush=True)
    adapter.finalize()


def one_round(
    adapter: CommAdapter, size: int, calls: int, *, ours_first: bool
) -> tuple[float | None, float]:
    """Ours, as far as this rank is told, and the loop by hand, in this order or the other."""
    if ours_first:
        ours = ours_us(adapter, size, calls)
        return ours, by_hand_us(size, calls)
    peer = by_hand_us(size, calls)
    return ours_us(adapter, size, calls), peer


def opened(name: AdapterName, rank: int, world: int) -> CommAdapter:
    adapter = new_adapter(name)
    adapter.init(BACKENDS[name], torch.device("cpu"), rank, world)
    return adapter


def calls_for(size: int) -> int:
    """About as many calls as fit into a loop; the same on all ranks."""
    seconds = BLOCK_S
    for _ in range(3):
        seconds = min(seconds, by_hand_us(size, 5) / 1e6)
    return max(5, min(MOST_CALLS, int(BLOCK_S / seconds)))


def by_hand_us(size: int, calls: int) -> float:
    """The loop that anybody would write."""
    values = torch.zeros(size // 4)
    for _ in range(max(2, calls // 10)):
        dist.all_reduce(values)
    dist.barrier()
    started_s = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(values)
    seconds = time.perf_counter() - started_s
    slowest = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item() / calls * 1e6


def ours_us(adapter: CommAdapter, size: int, calls: int) -> float | None:
    """The same by the sweep; None on ranks that are not told."""
    found: list[PointSamples] = []
    request = SweepRequest(
        adapter=adapter.name,
        backend=BACKENDS[adapter.name],
        device=DeviceKind.CPU,
        operations=(Operation(collective=Collective.ALL_REDUCE, size_bytes=size),),
        warmup_iterations=max(2, calls // 10),
        measure_iterations=calls,
    )
    run_bench_sweep(request, adapter, device=torch.device("cpu"), on_point=found.append)
    if not found:
        return None
    if not found[0].block_ns:
        raise SystemExit(f"not measured: {found[0].reason}")
    return max(map(sum, found[0].block_ns)) / sum(found[0].block_calls) / 1e3


def against_c(world: int, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        peer = c_program(Path(folder), options.osu)
        if peer is None:
            print(
                "\nno MPI compiler beside mpi4py's MPI, and no --osu: no C program to compare with"
            )
            return
        rounds = [
            (ours_by_mpi(world, options.sizes), peer(world, options.sizes))
            for _ in range(options.mpi_rounds)
        ]
    print(f"\nall_reduce float32 sum, MPI, {world} ranks, {len(rounds)} launches each, in turns")
    print(f"{'bytes':>10} {'C us':>12} {'ours us':>12} {'added us':>12} {'ratio':>8}")
    for size in options.sizes:
        theirs = statistics.median(each[1][size] for each in rounds)
        ours = statistics.median(each[0][size] for each in rounds)
        added, ratio = f"{ours - theirs:>+12.2f}", f"{ours / theirs:>8.3f}"
        print(f"{size:>10} {theirs:>12.2f} {ours:>12.2f} {added} {ratio}")


Latencies = Mapping[int, float]


def c_program(folder: Path, osu: Path | None) -> Callable[[int, Sequence[int]], Latencies] | None:
    if osu is not None:
        return lambda world, sizes: osu_latencies(osu, world, sizes)
    compiler = Path(mpirun_command(1, [])[0]).with_name("mpicc")
    if not compiler.exists():
        return None
    program = folder / "allreduce_loop"
    subprocess.run([compiler, "-O2", str(C_LOOP), "-o", str(program)], check=True)
    return lambda world, sizes: {size: c_us(program, world, size) for size in sizes}


def c_us(program: Path, world: int, size: int) -> float:
    calls = max(10, min(MOST_CALLS, (64 << 20) // size))
    return statistics.median(
        map(float, mpi_lines(world, [str(program), str(size // 4), str(calls), "5"]))
    )


def osu_latencies(osu: Path, world: int, sizes: Sequence[int]) -> Latencies:
    lines = mpi_lines(world, [str(osu), "-m", f"{min(sizes)}:{max(sizes)}"])
    rows = [line.split() for line in lines if line[:1].isdigit()]
    return {int(row[0]): float(row[1]) for row in rows}


def ours_by_mpi(world: int, sizes: Sequence[int]) -> Latencies:
    program = [sys.executable, __file__, "--rank", "mpi", "--sizes", *map(str, sizes)]
    found = [json.loads(line) for line in mpi_lines(world, program) if line.startswith("{")]
    return {each["bytes"]: each["us"] for each in found}


def ours_alone(sizes: Sequence[int]) -> None:
    """The program of an MPI rank."""
    numbers = read_rank_numbers()
    torch.set_num_threads(1)
    adapter = opened(AdapterName.MPI, numbers.rank, numbers.world_size)
    for size in sizes:
        calls = max(10, min(MOST_CALLS, (64 << 20) // size))
        times = [ours_us(adapter, size, calls) for _ in range(5)]
        if numbers.rank == 0:
            print(
                json.dumps({"bytes": size, "us": statistics.median(filter(None, times))}),
                flush=True,
            )
    adapter.finalize()


def mpi_lines(world: int, program: Sequence[str]) -> Sequence[str]:
    return lines_of(mpirun_command(world, program))


def lines_of(command: Sequence[str]) -> Sequence[str]:
    """What a program prints; what it complains about is seen."""
    environment = {**trial_environment(), **mpirun_environment(), "OMP_NUM_THREADS": "1"}
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return told.stdout.splitlines()


if __name__ == "__main__":
    main()
