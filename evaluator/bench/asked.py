"""The question to a collective benchmark as it was typed, and everything that is wrong with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from evaluator.bench.faults import Fault, Faults
from evaluator.bench.plan import Plan, Sampling
from evaluator.bench.points import (
    ALL,
    DTYPES,
    operations,
    read_collectives,
    read_reduce_ops,
    read_sizes,
)
from evaluator.bench.record import BenchConfig, Convention
from evaluator.rank.job import DeviceKind
from evaluator.workloads.collectives.adapters.adapter import AdapterName
from evaluator.workloads.collectives.operations import Collective

DEFAULT_CPU_RANKS = 2
RANKS = "nproc-per-node"
_CONVENTIONS: Final[Mapping[str, Convention]] = {
    "nccl-tests": "nccl-tests",
    "torchcomms": "torchcomms",
}
_DEVICES: Final = {kind.value: kind for kind in DeviceKind}
_ADAPTERS: Final = {name.value: name for name in AdapterName}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Options as texts, so that all that is wrong with them is told at once; None: not given."""

    collective: str = ""
    adapters: tuple[str, ...] = ()
    all_adapters: bool = False
    backend: str | None = None
    device: str | None = None
    min_size: str = "4"
    max_size: str = "64M"
    size_scaling_factor: str = "2"
    dtype: str = "float32"
    reduce_op: str | None = None
    warmup: str = "5"
    iters: str = "1000"
    sync_interval: str = "0"
    async_op: bool = False
    csv: bool = False
    output_dir: str | None = None
    quiet: bool = False
    as_json: bool = False
    bw_convention: str = "nccl-tests"
    rank_count: str | None = None
    rounds: str = "1"
    timeout: str = "60"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where it was typed: GPUs of the machine, and how many ranks a launcher started, if one did.

    `closed` are the libraries that ranks of this launcher cannot use, each with what to do.
    """

    gpu_count: int = 0
    started_ranks: int | None = None
    closed: Mapping[AdapterName, str] = field(default_factory=dict)


def understood(asked: Asked, here: Surroundings) -> Plan | tuple[Fault, ...]:
    """Give the plan that was asked for, or everything that is wrong with the question."""
    faults = Faults()
    collectives = read_collectives(asked.collective, faults)
    adapters = _adapters(asked, here, faults)
    device = _device(asked, here, faults)
    rank_count = _rank_count(asked, here, device, faults)
    _check_partners(collectives, rank_count, faults)
    dtype = faults.word("dtype", asked.dtype, DTYPES)
    sizes = read_sizes(asked.min_size, asked.max_size, asked.size_scaling_factor, dtype, faults)
    reduce_ops = read_reduce_ops(asked.reduce_op, collectives, dtype, faults)
    sampling = _sampling(asked, faults)
    config = _config(asked, here, sizes, faults)
    if (
        any(faults)
        or device is None
        or rank_count is None
        or dtype is None
        or sampling is None
        or config is None
    ):
        return tuple(faults)
    return Plan(
        adapters=adapters,
        backend=asked.backend,
        device=device,
        rank_count=rank_count,
        operations=tuple(operations(collectives, reduce_ops, sizes, dtype)),
        sampling=sampling,
        config=config,
    )


def _adapters(asked: Asked, here: Surroundings, faults: Faults) -> tuple[AdapterName, ...]:
    if asked.all_adapters:
        if asked.backend is not None:
            faults.add(
                "backend", "--backend is for one adapter; leave it out with --all-comm-adapters"
            )
        return tuple(AdapterName)
    given = tuple(dict.fromkeys(name.replace("-", "_") for name in asked.adapters))
    if len(given) > 1:
        faults.add(
            "comm-adapter",
            f"{' and '.join(given)} are several adapters; give one, or --all-comm-adapters",
        )
    words = [faults.word("comm-adapter", name, _ADAPTERS) for name in given]
    chosen = tuple(name for name in words if name is not None)
    for name in chosen:
        if name in here.closed:
            faults.add("comm-adapter", f"{name} {here.closed[name]}")
    return chosen


def _device(asked: Asked, here: Surroundings, faults: Faults) -> DeviceKind | None:
    if asked.device is None:
        return DeviceKind.CUDA if here.gpu_count else DeviceKind.CPU
    device = faults.word("device", asked.device, _DEVICES)
    if device is DeviceKind.CUDA and not here.gpu_count:
        faults.add("device", "--device is cuda, but there is no GPU here; give cpu")
    return device


def _rank_count(
    asked: Asked, here: Surroundings, device: DeviceKind | None, faults: Faults
) -> int | None:
    if here.started_ranks is not None:
        if asked.rank_count is not None:
            faults.add(
                RANKS,
                f"--{RANKS} starts ranks, but these {here.started_ranks} were started by another "
                "launcher; leave it out",
            )
        return here.started_ranks
    most = here.gpu_count if device is DeviceKind.CUDA else None
    if asked.rank_count is None:
        return most or DEFAULT_CPU_RANKS
    rank_count = faults.whole(RANKS, asked.rank_count, least=1)
    if rank_count is not None and most and rank_count > most:
        faults.add(
            RANKS,
            f"--{RANKS} is {rank_count} for {most} GPUs; give at most {most}, or --device cpu",
        )
    return rank_count


def _check_partners(
    collectives: tuple[Collective, ...], rank_count: int | None, faults: Faults
) -> None:
    if collectives == (Collective.SEND_RECV,) and rank_count == 1:
        faults.add("ranks", f"send_recv needs two ranks, there is one; give --{RANKS} 2 or more")


def _sampling(asked: Asked, faults: Faults) -> Sampling | None:
    warmup = faults.whole("warmup", asked.warmup, least=0)
    iters = faults.whole("iters", asked.iters, least=1)
    interval = faults.whole("sync-interval", asked.sync_interval, least=0)
    timeout_s = faults.seconds("timeout", asked.timeout)
    if iters is not None and interval is not None and interval > iters:
        faults.add(
            "sync-interval",
            f"--sync-interval is {interval}, more than the {iters} of --iters; give at most that",
        )
    if warmup is None or iters is None or interval is None or timeout_s is None:
        return None
    return Sampling(
        warmup_iterations=warmup,
        measure_iterations=iters,
        sync_interval=interval,
        async_op=asked.async_op,
        timeout_s=timeout_s,
    )


def _config(
    asked: Asked, here: Surroundings, sizes: tuple[int, ...], faults: Faults
) -> BenchConfig | None:
    _check_output(asked, faults)
    convention = faults.word("bw-convention", asked.bw_convention, _CONVENTIONS)
    rounds = faults.whole("rounds", asked.rounds, least=1)
    if rounds is not None and rounds > 1 and here.started_ranks is not None:
        faults.add(
            "rounds",
            "--rounds starts ranks anew, which a launcher above us keeps us from; leave it out and "
            "start the command once a round",
        )
    if not sizes or convention is None or rounds is None:
        return None
    return BenchConfig(
        run_all_collectives=asked.collective == ALL,
        run_all_comm_adapters=asked.all_adapters,
        run_all_reduce_ops=asked.reduce_op is not None and asked.reduce_op.lower() == ALL,
        reduce_op_explicit=asked.reduce_op is not None,
        min_size=sizes[0],
        max_size=sizes[-1],
        size_scaling_factor=int(asked.size_scaling_factor),
        csv_enabled=asked.csv,
        quiet=asked.quiet,
        output_dir=asked.output_dir,
        rounds=rounds,
        bandwidth_convention=convention,
    )


def _check_output(asked: Asked, faults: Faults) -> None:
    if asked.quiet and not asked.csv:
        faults.add("quiet", "--quiet without --csv would leave nothing; add --csv")
    if asked.quiet and asked.as_json:
        faults.add("quiet", "--quiet and --json exclude each other; leave out one of them")
    if asked.output_dir is not None and not asked.csv:
        faults.add("output-dir", "--output-dir has no effect without --csv; add --csv")
