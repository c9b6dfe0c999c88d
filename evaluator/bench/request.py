"""The request to a collective benchmark: options as typed, all their faults, and the plan."""

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, TypeVar, get_args

from evaluator.bench.record import (
    BenchConfig,
    BenchParams,
    Convention,
    file_name,
    size_bytes,
    size_chain,
)
from evaluator.rank.job import DeviceKind
from evaluator.workloads.collectives.operations import (
    REDUCING,
    AdapterName,
    Collective,
    DType,
    Operation,
    ReduceOp,
    SweepRequest,
)
from records.errors import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How each point is sampled; `timeout_s` is for one point."""

    warmup_iterations: int
    measure_iterations: int
    sync_interval: int
    async_op: bool
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """Every point of a benchmark, and how each is measured.

    `adapters` is empty where none was chosen. `rank_count` is of all ranks, however started.
    """

    adapters: tuple[AdapterName, ...]
    backend: str | None
    device: DeviceKind
    rank_count: int
    operations: tuple[Operation, ...]
    sampling: Sampling
    config: BenchConfig

    def request(self, adapter: AdapterName, backend: str) -> SweepRequest:
        """The request to the ranks of one launch."""
        return SweepRequest(
            adapter=adapter,
            backend=backend,
            device=self.device,
            operations=self.operations,
            **asdict(self.sampling),
        )

    def params(self, adapter: AdapterName, operation: Operation) -> BenchParams:
        """How one point of a launch is measured."""
        return BenchParams(
            comm_adapter=adapter.value,
            collective_name=operation.collective.value,
            num_ranks=self.rank_count,
            dtype=operation.dtype.value,
            reduce_op=operation.reduce_op.value if operation.reduces else None,
            async_op=self.sampling.async_op,
            warmup_iterations=self.sampling.warmup_iterations,
            measure_iterations=self.sampling.measure_iterations,
            sync_interval=self.sampling.sync_interval,
        )

    @property
    def left_out(self) -> Sequence[str]:
        """Which parts of an `all` have no meaning here, as text."""
        reductions = {operation.reduce_op for operation in self.operations}
        if self.config.run_all_reduce_ops and ReduceOp.AVG not in reductions:
            return ("avg is left out: whole numbers have none",)
        return ()

    @property
    def file_names(self) -> Sequence[str]:
        """Every CSV file that it fills."""
        swept = self.config.run_all_reduce_ops
        return tuple(
            dict.fromkeys(
                file_name(each.collective, each.reduce_op if each.reduces else None, swept=swept)
                for each in self.operations
            )
        )


MOST_DIGITS = 12
MOST_SECONDS = 1_000_000

_Meaning = TypeVar("_Meaning")


@dataclass(frozen=True, slots=True)
class OptionFault:
    """Something that is wrong with a question: a code that stays, and what to do about it."""

    code: str
    message: str

    def __str__(self) -> str:
        return f"E-{self.code}: {self.message}"


class OptionFaults:
    """Every fault found so far; a word that cannot be read is a fault, and None."""

    def __init__(self) -> None:
        self._found: list[OptionFault] = []

    def __iter__(self) -> Iterator[OptionFault]:
        return iter(self._found)

    def add(self, code: str, message: str) -> None:
        """Note a fault."""
        self._found.append(OptionFault(code, message))

    def whole(self, code: str, text: str, *, least: int) -> int | None:
        """The number that an option named like its code was given."""
        digits = text.strip().removeprefix("+")
        if not digits.removeprefix("-").isdecimal() or len(digits) > MOST_DIGITS:
            self.add(code, f"--{code} is {shown(text)}; give a whole number of at least {least}")
            return None
        number = int(digits)
        if number < least:
            self.add(code, f"--{code} is {number}; give at least {least}")
            return None
        return number

    def size(self, code: str, text: str) -> int | None:
        """Bytes of at least 1 that an option named like its code was given."""
        size = size_bytes(text)
        if size is None or size == 0:
            self.add(
                code, f"--{code} is {shown(text)}; give bytes above 0, such as 4096, 64K or 1M"
            )
            return None
        return size

    def seconds(self, code: str, text: str) -> float | None:
        """The time that an option named like its code was given."""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= MOST_SECONDS:
            self.add(
                code, f"--{code} is {shown(text)}; give seconds above 0, {MOST_SECONDS} at most"
            )
            return None
        return value

    def word(self, code: str, text: str, meanings: Mapping[str, _Meaning]) -> _Meaning | None:
        """What one of the known words means."""
        meaning = meanings.get(text)
        if meaning is None:
            what = code.replace("-", " ")
            self.add(code, f"there is no {what} {shown(text)}; {hint(text, meanings)}")
        return meaning


def hint(text: str, known: Mapping[str, object] | Sequence[str]) -> str:
    """What to give instead of an unknown word."""
    near = difflib.get_close_matches(text.lower(), list(known), n=1)
    suggestion = f"did you mean {near[0]!r}? " if near else ""
    return f"{suggestion}known are {', '.join(known)}"


ALL: Final = "all"
DTYPES: Final[Mapping[str, DType]] = {
    **{dtype.value: dtype for dtype in DType},
    "float": DType.FLOAT32,
    "fp32": DType.FLOAT32,
    "half": DType.FLOAT16,
    "fp16": DType.FLOAT16,
    "bf16": DType.BFLOAT16,
    "double": DType.FLOAT64,
    "fp64": DType.FLOAT64,
    "int": DType.INT32,
    "long": DType.INT64,
}
_COLLECTIVES: Final = {each.value: (each,) for each in Collective} | {ALL: tuple(Collective)}
_REDUCE_OPS: Final = {each.value: (each,) for each in ReduceOp} | {ALL: tuple(ReduceOp)}


def read_sizes(
    least_text: str, most_text: str, factor_text: str, dtype: DType | None, faults: OptionFaults
) -> tuple[int, ...]:
    """Every size of the sweep; `dtype` is None where it is at fault itself."""
    least = faults.size("min-size", least_text)
    most = faults.size("max-size", most_text)
    factor = faults.whole("size-scaling-factor", factor_text, least=2)
    for option, size in (("min-size", least), ("max-size", most)):
        if size is not None and dtype is not None and size % dtype.element_bytes:
            faults.add(
                "element-size",
                f"--{option} is {size}, but an element of {dtype} takes {dtype.element_bytes} "
                "bytes; give a multiple of that",
            )
    if least is None or most is None or factor is None:
        return ()
    if most < least:
        faults.add("max-size", f"--max-size is {most}, below --min-size {least}; give no less")
        return ()
    sizes = size_chain(least, most, factor)
    if sizes[-1] != most:
        faults.add(
            "size-chain",
            f"--max-size {most} is not --min-size {least} times a power of {factor}; "
            f"give {sizes[-1]} or {sizes[-1] * factor}",
        )
    return sizes


def read_reduce_ops(
    text: str | None,
    collectives: Sequence[Collective],
    dtype: DType | None,
    faults: OptionFaults,
) -> tuple[ReduceOp, ...]:
    """The one that is named, in any case, or all of the number format; sums where none is."""
    if text is None:
        return (ReduceOp.SUM,)
    text = text.lower()
    reducing = ", ".join(REDUCING)
    if len(collectives) > 1:
        faults.add("reduce-op", f"--reduce-op is for one collective, not for all; name {reducing}")
    elif collectives and collectives[0] not in REDUCING:
        faults.add(
            "reduce-op",
            f"--reduce-op has no effect on {collectives[0]}; leave it out, or name {reducing}",
        )
    reduce_ops = faults.word("reduce-op", text, _REDUCE_OPS) or ()
    if dtype is None or not dtype.is_integer or ReduceOp.AVG not in reduce_ops:
        return reduce_ops
    if reduce_ops == (ReduceOp.AVG,):
        faults.add(
            "average",
            f"whole numbers such as {dtype} have no avg; give another --reduce-op, or a --dtype "
            "with fractions",
        )
    return tuple(each for each in reduce_ops if each is not ReduceOp.AVG)


def operations(
    collectives: Sequence[Collective],
    reduce_ops: Sequence[ReduceOp],
    sizes: Sequence[int],
    dtype: DType,
) -> Iterator[Operation]:
    """Every point in the order of measurement."""
    for collective in collectives:
        if collective is Collective.BARRIER:
            yield Operation(collective=collective, size_bytes=0, dtype=dtype)
            continue
        for reduce_op in reduce_ops if collective in REDUCING else (ReduceOp.SUM,):
            for size in sizes:
                yield Operation(
                    collective=collective, size_bytes=size, dtype=dtype, reduce_op=reduce_op
                )


DEFAULT_CPU_RANKS = 2
RANKS = "nproc-per-node"
_CONVENTIONS: Final[Mapping[str, Convention]] = {name: name for name in get_args(Convention)}
_DEVICES: Final = {kind.value: kind for kind in DeviceKind}
_ADAPTERS: Final = {name.value: name for name in AdapterName}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Options as texts, so that all their faults are reported together; None: not given."""

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
class BenchContext:
    """Where it was typed: GPUs of the machine, and how many ranks a launcher started, if one did.

    `closed` are the libraries that ranks of this launcher cannot use, each with what to do.
    """

    gpu_count: int = 0
    started_ranks: int | None = None
    closed: Mapping[AdapterName, str] = field(default_factory=dict)


def read_plan(asked: BenchOptions, here: BenchContext) -> BenchPlan | tuple[OptionFault, ...]:
    """Give the plan that was asked for, or everything that is wrong with the question."""
    faults = OptionFaults()
    collectives = faults.word("collective", asked.collective, _COLLECTIVES) or ()
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
    return BenchPlan(
        adapters=adapters,
        backend=asked.backend,
        device=device,
        rank_count=rank_count,
        operations=tuple(operations(collectives, reduce_ops, sizes, dtype)),
        sampling=sampling,
        config=config,
    )


def _adapters(
    asked: BenchOptions, here: BenchContext, faults: OptionFaults
) -> tuple[AdapterName, ...]:
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


def _device(asked: BenchOptions, here: BenchContext, faults: OptionFaults) -> DeviceKind | None:
    if asked.device is None:
        return DeviceKind.CUDA if here.gpu_count else DeviceKind.CPU
    device = faults.word("device", asked.device, _DEVICES)
    if device is DeviceKind.CUDA and not here.gpu_count:
        faults.add("device", "--device is cuda, but there is no GPU here; give cpu")
    return device


def _rank_count(
    asked: BenchOptions, here: BenchContext, device: DeviceKind | None, faults: OptionFaults
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
    collectives: tuple[Collective, ...], rank_count: int | None, faults: OptionFaults
) -> None:
    if collectives == (Collective.SEND_RECV,) and rank_count == 1:
        faults.add("ranks", f"send_recv needs two ranks, there is one; give --{RANKS} 2 or more")


def _sampling(asked: BenchOptions, faults: OptionFaults) -> Sampling | None:
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
    asked: BenchOptions, here: BenchContext, sizes: tuple[int, ...], faults: OptionFaults
) -> BenchConfig | None:
    _check_output(asked, faults)
    convention = faults.word("bw-convention", asked.bw_convention, _CONVENTIONS)
    rounds = faults.whole("rounds", asked.rounds, least=1)
    if rounds is not None and rounds > 1 and here.started_ranks is not None:
        faults.add(
            "rounds",
            "--rounds starts ranks again, which another launcher prevents; leave it out and "
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


def _check_output(asked: BenchOptions, faults: OptionFaults) -> None:
    if asked.quiet and not asked.csv:
        faults.add("quiet", "--quiet without --csv would leave nothing; add --csv")
    if asked.quiet and asked.as_json:
        faults.add("quiet", "--quiet and --json exclude each other; leave out one of them")
    if asked.output_dir is not None and not asked.csv:
        faults.add("output-dir", "--output-dir has no effect without --csv; add --csv")
