"""The request to a collective benchmark: options as typed, all their faults, and the plan."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, TypeAlias, get_args

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from evaluator.bus_bandwidth import Convention
from evaluator.collective_bench.record import BenchParams, file_name, size_bytes, size_chain
from evaluator.rank.job import DeviceKind
from evaluator.rank.protocol import RankNumbers
from evaluator.workloads.collectives.operations import (
    REDUCING,
    AdapterName,
    Collective,
    DType,
    Operation,
    ReduceOp,
    SweepRequest,
)
from records.errors import Strict, shown, suggestion

ALL: Final = "all"
DEFAULT_CPU_RANKS = 2
RANKS = "nproc-per-node"
MOST_SECONDS = 1_000_000
CODES: Final = {"adapters": "comm-adapter", "rank_count": RANKS}
"""Codes of faults that are not the name of the option."""


def _one_of(meanings: Mapping[str, object]) -> BeforeValidator:
    """Read one of these words as what it means."""

    def read(text: str) -> object:
        if text not in meanings:
            hint = suggestion(text.lower(), meanings)
            raise PydanticCustomError("unknown", "{hint}", {"hint": hint})
        return meanings[text]

    return BeforeValidator(read)


def _size(text: str) -> int:
    size = size_bytes(text)
    if not size:
        raise PydanticCustomError("size", "give bytes above 0, such as 4096, 64K or 1M")
    return size


Adapter: TypeAlias = Annotated[
    AdapterName,
    _one_of({name.value: name for name in AdapterName}),
    BeforeValidator(lambda text: text.replace("-", "_")),
]
Bytes: TypeAlias = Annotated[int, BeforeValidator(_size)]
Count: TypeAlias = Annotated[int, Field(ge=1)]
Number: TypeAlias = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions(Strict):
    """The options of the command line, read from texts; None: not given."""

    collective: Annotated[
        tuple[Collective, ...],
        _one_of({each.value: (each,) for each in Collective} | {ALL: tuple(Collective)}),
    ]
    adapters: tuple[Adapter, ...] = ()
    all_adapters: bool = False
    backend: str | None = None
    device: Annotated[DeviceKind, _one_of({kind.value: kind for kind in DeviceKind})] | None = None
    min_size: Bytes = 4
    max_size: Bytes = 64 << 20
    size_scaling_factor: Annotated[int, Field(ge=2)] = 2
    dtype: Annotated[
        DType,
        _one_of(
            {
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
        ),
    ] = DType.FLOAT32
    reduce_op: (
        Annotated[
            tuple[ReduceOp, ...],
            _one_of({each.value: (each,) for each in ReduceOp} | {ALL: tuple(ReduceOp)}),
            BeforeValidator(str.lower),
        ]
        | None
    ) = None
    warmup: Number = 5
    iters: Count = 1000
    sync_interval: Number = 0
    async_op: bool = False
    csv: bool = False
    output_dir: str | None = None
    quiet: bool = False
    as_json: bool = False
    python: str | None = None
    bw_convention: Annotated[Convention, _one_of({name: name for name in get_args(Convention)})] = (
        "nccl-tests"
    )
    rank_count: Count | None = None
    rounds: Count = 1
    timeout: Annotated[float, Field(gt=0, le=MOST_SECONDS)] = 60.0


@dataclass(frozen=True, slots=True)
class OptionFault:
    """Something that is wrong with the options: a code that stays, and what to do about it."""

    code: str
    message: str

    def __str__(self) -> str:
        return f"E-{self.code}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchContext:
    """Where the command runs: GPUs of the machine, and the numbers of this rank if it is one.

    `closed` are the libraries that ranks of this launcher cannot use, each with what to do.
    """

    gpu_count: int = 0
    numbers: RankNumbers | None = None
    closed: Mapping[AdapterName, str] = field(default_factory=dict)

    @property
    def started_ranks(self) -> int | None:
        """Ranks that another launcher started; None where none did."""
        return None if self.numbers is None else self.numbers.world_size

    @property
    def prints(self) -> bool:
        """Whether this process prints and writes; other ranks are silent."""
        return self.numbers is None or self.numbers.rank == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """Every point of a benchmark, and how each is measured.

    `adapters` is empty where none was chosen. `rank_count` is of all ranks, however started, and
    the timeout of the options is for one point.
    """

    options: BenchOptions
    adapters: tuple[AdapterName, ...]
    device: DeviceKind
    rank_count: int
    operations: tuple[Operation, ...]

    @property
    def sweeps_reductions(self) -> bool:
        """Whether every reduction is measured, and has a separate file."""
        return len(self.options.reduce_op or ()) > 1

    def request(self, adapter: AdapterName, backend: str) -> SweepRequest:
        """The request to the ranks of one launch."""
        return SweepRequest(
            adapter=adapter,
            backend=backend,
            device=self.device,
            operations=self.operations,
            warmup_iterations=self.options.warmup,
            measure_iterations=self.options.iters,
            sync_interval=self.options.sync_interval,
            async_op=self.options.async_op,
            timeout_s=self.options.timeout,
        )

    def params(self, adapter: AdapterName) -> BenchParams:
        """How the points of a launch are measured."""
        return BenchParams(
            comm_adapter=adapter.value,
            device=self.device.value,
            num_ranks=self.rank_count,
            async_op=self.options.async_op,
            warmup_iterations=self.options.warmup,
            measure_iterations=self.options.iters,
            sync_interval=self.options.sync_interval,
            bandwidth_convention=self.options.bw_convention,
        )

    @property
    def left_out(self) -> Sequence[str]:
        """Which parts of an `all` have no meaning here, as text."""
        reductions = {operation.reduce_op for operation in self.operations}
        if self.sweeps_reductions and ReduceOp.AVG not in reductions:
            return ("avg is left out: whole numbers have none",)
        return ()

    @property
    def file_names(self) -> Sequence[str]:
        """Every CSV file that it fills."""
        swept = self.sweeps_reductions
        return tuple(dict.fromkeys(file_name(each, swept=swept) for each in self.operations))


def read_plan(
    options: Mapping[str, object], here: BenchContext
) -> BenchPlan | tuple[OptionFault, ...]:
    """Return the plan that the options ask for, or everything that is wrong with them.

    `options` are texts by the fields of `BenchOptions`. How they fit together is checked once each
    can be read.
    """
    try:
        asked = TypeAdapter(BenchOptions).validate_python(options)
    except ValidationError as error:
        return tuple(map(_unreadable, error.errors(include_url=False)))
    gpu_count, started_ranks = here.gpu_count, here.started_ranks
    device = asked.device or (DeviceKind.CUDA if gpu_count else DeviceKind.CPU)
    most = gpu_count if device is DeviceKind.CUDA else None
    rank_count = started_ranks or asked.rank_count or most or DEFAULT_CPU_RANKS
    sizes = size_chain(asked.min_size, asked.max_size, asked.size_scaling_factor)
    faults = (
        *_adapter_faults(asked, here),
        *_rank_faults(asked, here, device, rank_count),
        *_sweep_faults(asked, sizes),
        *_reduction_faults(asked),
        *_output_faults(asked),
    )
    if faults:
        return tuple(OptionFault(code, message) for code, message in faults)
    reduce_ops = asked.reduce_op or (ReduceOp.SUM,)
    if asked.dtype.is_integer:
        reduce_ops = tuple(each for each in reduce_ops if each is not ReduceOp.AVG)
    return BenchPlan(
        options=asked,
        adapters=tuple(AdapterName) if asked.all_adapters else tuple(dict.fromkeys(asked.adapters)),
        device=device,
        rank_count=rank_count,
        operations=tuple(operations(asked.collective, reduce_ops, sizes, asked.dtype)),
    )


def _unreadable(error: ErrorDetails) -> OptionFault:
    name = str(error["loc"][0])
    code = CODES.get(name, name.replace("_", "-"))
    return OptionFault(code, f"{code} {shown(error['input'])}: {error['msg']}")


def _adapter_faults(asked: BenchOptions, here: BenchContext) -> Iterator[tuple[str, str]]:
    if asked.all_adapters:
        if asked.backend is not None:
            yield "backend", "--backend is for one adapter; leave it out with --all-comm-adapters"
        return
    given = dict.fromkeys(asked.adapters)
    if len(given) > 1:
        names = " and ".join(given)
        yield "comm-adapter", f"{names} are several adapters; give one, or --all-comm-adapters"
    for name in given:
        if name in here.closed:
            yield "comm-adapter", f"{name} {here.closed[name]}"


def _rank_faults(
    asked: BenchOptions, here: BenchContext, device: DeviceKind, rank_count: int
) -> Iterator[tuple[str, str]]:
    if device is DeviceKind.CUDA and not here.gpu_count:
        yield "device", "--device is cuda, but there is no GPU here; give cpu"
    elif device is DeviceKind.CUDA and (asked.rank_count or 0) > here.gpu_count:
        yield (
            RANKS,
            f"--{RANKS} is {asked.rank_count} for {here.gpu_count} GPUs; give at most "
            f"{here.gpu_count}, or --device cpu",
        )
    if here.started_ranks is not None and asked.rank_count is not None:
        yield (
            RANKS,
            f"--{RANKS} starts ranks, but these {here.started_ranks} were started by another "
            "launcher; leave it out",
        )
    if here.started_ranks is not None and asked.rounds > 1:
        yield (
            "rounds",
            "--rounds starts ranks again, which another launcher prevents; leave it out and "
            "start the command once a round",
        )
    if asked.collective == (Collective.SEND_RECV,) and rank_count == 1:
        yield "ranks", f"send_recv needs two ranks, there is one; give --{RANKS} 2 or more"


def _sweep_faults(asked: BenchOptions, sizes: Sequence[int]) -> Iterator[tuple[str, str]]:
    least, most, element = asked.min_size, asked.max_size, asked.dtype.element_bytes
    for option, size in (("min-size", least), ("max-size", most)):
        if size % element:
            yield (
                "element-size",
                f"--{option} is {size}, but an element of {asked.dtype} takes {element} bytes; "
                "give a multiple of that",
            )
    if most < least:
        yield "max-size", f"--max-size is {most}, below --min-size {least}; give no less"
    elif sizes[-1] != most:
        factor = asked.size_scaling_factor
        yield (
            "size-chain",
            f"--max-size {most} is not --min-size {least} times a power of {factor}; "
            f"give {sizes[-1]} or {sizes[-1] * factor}",
        )
    if asked.sync_interval > asked.iters:
        yield (
            "sync-interval",
            f"--sync-interval is {asked.sync_interval}, more than the {asked.iters} of --iters; "
            "give at most that",
        )


def _reduction_faults(asked: BenchOptions) -> Iterator[tuple[str, str]]:
    if asked.reduce_op is None:
        return
    reducing = ", ".join(REDUCING)
    if len(asked.collective) > 1:
        yield "reduce-op", f"--reduce-op is for one collective, not for all; name {reducing}"
    elif asked.collective[0] not in REDUCING:
        yield (
            "reduce-op",
            f"--reduce-op has no effect on {asked.collective[0]}; leave it out, or name {reducing}",
        )
    if asked.reduce_op == (ReduceOp.AVG,) and asked.dtype.is_integer:
        yield (
            "average",
            f"whole numbers such as {asked.dtype} have no avg; give another --reduce-op, or a "
            "--dtype with fractions",
        )


def _output_faults(asked: BenchOptions) -> Iterator[tuple[str, str]]:
    if asked.quiet and not asked.csv:
        yield "quiet", "--quiet without --csv would leave nothing; add --csv"
    if asked.quiet and asked.as_json:
        yield "quiet", "--quiet and --json exclude each other; leave out one of them"
    if asked.output_dir is not None and not asked.csv:
        yield "output-dir", "--output-dir has no effect without --csv; add --csv"


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
