"""Collectives as values, and job documents of ranks that make them; no torch."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from evaluator.rank.job import AnyJob, DeviceKind, StrEnum

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Collective(StrEnum):
    """What the ranks do together; the order is that of a sweep over all of them."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    ALL_GATHER_SINGLE = "all_gather_single"
    REDUCE_SCATTER = "reduce_scatter"
    REDUCE_SCATTER_SINGLE = "reduce_scatter_single"
    ALL_TO_ALL = "all_to_all"
    ALL_TO_ALL_SINGLE = "all_to_all_single"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    SCATTER = "scatter"
    GATHER = "gather"
    SEND_RECV = "send_recv"
    """A ping-pong between ranks 0 and 1, 2 and 3, and so on."""
    BARRIER = "barrier"


class ReduceOp(StrEnum):
    """How elements of all ranks become one; the order is that of a sweep over all of them."""

    SUM = "sum"
    MIN = "min"
    MAX = "max"
    AVG = "avg"
    PRODUCT = "product"


class DType(StrEnum):
    """The number format of the elements."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT64 = "float64"
    INT32 = "int32"
    INT64 = "int64"

    @property
    def torch(self) -> "torch.dtype":
        """The same as torch calls it."""
        # Imported here: a search knows operations too, and would load torch for seconds.
        import torch

        kind: torch.dtype = getattr(torch, self.value)
        return kind

    @property
    def element_bytes(self) -> int:
        """Size of one element."""
        return int(self.value[-2:]) // 8

    @property
    def is_integer(self) -> bool:
        """Whether it has whole numbers only, which have no average."""
        return self.value.startswith("int")


REDUCING: Final = (
    Collective.ALL_REDUCE,
    Collective.REDUCE,
    Collective.REDUCE_SCATTER,
    Collective.REDUCE_SCATTER_SINGLE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One collective call as every rank makes it.

    `size_bytes` is what the API calls a message: the tensor of an all-reduce, broadcast or reduce;
    of the others what one rank sends to, or receives from, each rank. A barrier has none, and
    `reduce_op` counts for reductions only.
    """

    collective: Collective
    size_bytes: int = field(metadata={"least": 0})
    dtype: DType = DType.FLOAT32
    reduce_op: ReduceOp = ReduceOp.SUM

    @property
    def element_count(self) -> int:
        """Elements of the message, at least one."""
        return max(1, self.size_bytes // self.dtype.element_bytes)

    @property
    def message_bytes(self) -> int:
        """Bytes of these elements: none in a barrier."""
        if self.collective is Collective.BARRIER:
            return 0
        return self.element_count * self.dtype.element_bytes

    @property
    def reduces(self) -> bool:
        """Whether the reduction operation matters."""
        return self.collective in REDUCING

    def __str__(self) -> str:
        words = [self.collective.value]
        if self.reduces:
            words.append(self.reduce_op.value)
        if self.collective is not Collective.BARRIER:
            words += [self.dtype.value, f"{self.message_bytes} B"]
        return " ".join(words)


class AdapterName(StrEnum):
    """The libraries, in the order in which a sweep over all of them takes them."""

    TORCHCOMMS = "torchcomms"
    C10D = "c10d"
    C10D_TORCHCOMMS = "c10d_torchcomms"
    MPI = "mpi"


ABSENCE = "--absence"
"""Asks the program of a sweep why a library cannot be used, instead of measuring it."""
MPI_BACKEND: Final = "mpi"


def default_backend(name: AdapterName, device_kind: DeviceKind) -> str:
    """What carries an adapter's bytes between such devices by default."""
    if name is AdapterName.MPI:
        return MPI_BACKEND
    return "nccl" if device_kind is DeviceKind.CUDA else "gloo"


class PointTimeoutError(RuntimeError):
    """A point of a sweep that did not end in its time."""


class UnsupportedError(AttributeError):
    """The library, or its backend, lacks this collective, operation or number format."""


class UnavailableError(RuntimeError):
    """The library cannot be used here; says what to install or do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """What one rank passes to a call: its inputs and outputs.

    The same tensor is both where the call works in place (all_reduce, broadcast, reduce). Lists of
    n tensors, one for each rank, go with all_gather (outputs), reduce_scatter (inputs), all_to_all
    (both), scatter (inputs, on the root only) and gather (outputs, on the root only); the `single`
    variants have one tensor of n parts instead. An unpaired rank of a send_recv, and a barrier,
    have none.
    """

    inputs: "tuple[Tensor, ...]" = ()
    outputs: "tuple[Tensor, ...]" = ()


class Pending(Protocol):
    """A call that was started."""

    def wait(self) -> object:
        """Return once the outputs can be used, on the device's stream if it has one."""
        ...


Call: TypeAlias = Callable[[], object]
"""One collective call with everything looked up: what a timed loop runs."""
Start: TypeAlias = Callable[[], Pending]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """Every point in the order of measurement, and how each is sampled.

    A block is `sync_interval` calls between two looks at the clock, with the device idle at both;
    0 makes one block of all `measure_iterations`. A point that takes longer than `timeout_s` ends
    the sweep.
    """

    adapter: AdapterName
    backend: str
    device: DeviceKind
    operations: tuple[Operation, ...]
    warmup_iterations: int = field(default=5, metadata={"least": 0})
    measure_iterations: int = 1000
    sync_interval: int = field(default=0, metadata={"least": 0})
    async_op: bool = False
    timeout_s: float = 60.0
    threads_per_rank: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFacts:
    """What only a rank knows of where a sweep runs; None for what is unknown."""

    device_name: str | None
    """Of an accelerator."""
    torch_version: str
    torchcomms_version: str | None
    """Of the torchcomms that carries the sweep; None where it does not."""
    backend_name: str
    backend_version: str | None


class PointStatus(StrEnum):
    """What became of a point."""

    MEASURED = "measured"
    SKIPPED = "skipped"
    """The library lacks it, or it has no meaning with this many ranks."""
    WRONG_RESULT = "wrong_result"
    TIMEOUT = "timeout"
    """Set by the launcher: ranks that take too long cannot report it."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PointSamples:
    """One measured point: durations in ns of each block on each rank, shaped (ranks, blocks).

    `block_calls` is how many calls each block made; of a send_recv a call is there and back.
    `started_at` is UTC in ISO format. Without times `reason` says why, in one line.
    """

    operation: Operation
    status: PointStatus
    started_at: str
    reason: str = ""
    block_calls: tuple[int, ...] = ()
    block_ns: tuple[tuple[int, ...], ...] = field(default=(), metadata={"least": 0})


POINTS_NAME = "points.jsonl"


def add_line(folder: Path, line: SweepFacts | PointSamples) -> None:
    """Append to the folder's `points.jsonl` what `job_file.parse` reads; no reason, no text."""
    document = {name: value for name, value in asdict(line).items() if value != ""}
    with (folder / POINTS_NAME).open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(document) + "\n")


class Compression(StrEnum):
    """The number format in which floating-point messages of an all-reduce are sent."""

    NONE = "none"
    FP16 = "fp16"
    BF16 = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """An operation that is called `count` times in a step."""

    operation: Operation
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How messages are carried: the part that a search varies and no environment variable sets.

    Every field is a knob of the recipe and holds its default. Neighbouring all-reduces of one kind
    are put together into messages of up to `fusion_bytes` (0: none), each message of an all-reduce
    is cut into `chunk_count` parts, and `in_flight` calls are started before one is waited for.
    `gloo_threads` and `gloo_interfaces` (as in `lo,lo`) count for gloo only: it opens a connection
    over each interface, also where one is named twice, and its threads serve them. Without
    interfaces gloo chooses.
    """

    comm_adapter: AdapterName = AdapterName.C10D
    backend: str = "gloo"
    in_flight: int = 1
    fusion_bytes: int = field(default=0, metadata={"least": 0})
    chunk_count: int = 1
    compression: Compression = Compression.NONE
    gloo_threads: int = 2
    gloo_interfaces: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeJob(AnyJob):
    """Everything one rank is given, except its number; each step exchanges every message."""

    messages: tuple[Repeated, ...]
    setup: Setup
    threads_per_rank: int = 1


_SENT_AS = {Compression.FP16: DType.FLOAT16, Compression.BF16: DType.BFLOAT16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier:
    """One message, or neighbouring ones of one kind, as the library gets them.

    Messages `first` up to, but not including, `end` of a step. The library is called for each of
    the `parts`, one after the other; their elements together are those of the messages. Where
    `is_copied` it gets other tensors than those of the messages.
    """

    first: int
    end: int
    parts: tuple[Operation, ...]
    is_copied: bool


def carriers(messages: Sequence[Operation], setup: Setup) -> tuple[Carrier, ...]:
    """How the messages of a step, in their order, are carried with this setup."""
    return tuple(_carrier(messages, run, setup) for run in _runs(messages, setup.fusion_bytes))


def sent_as(message: Operation, compression: Compression) -> Operation:
    """The call in the format in which it sends: only large floating-point numbers are made smaller.

    Only all-reduces are compressed.
    """
    dtype = _SENT_AS.get(compression, message.dtype)
    shrinks = not message.dtype.is_integer and dtype.element_bytes < message.dtype.element_bytes
    if message.collective is not Collective.ALL_REDUCE or not shrinks:
        return message
    return _of(message, message.element_count, dtype)


def _runs(messages: Sequence[Operation], fusion_bytes: int) -> Iterator[range]:
    """Neighbours that go together: equal all-reduces but for their size, in `fusion_bytes`."""
    first, run_bytes = 0, 0
    for place, message in enumerate(messages):
        joins = (
            place > first
            and message.collective is Collective.ALL_REDUCE
            and replace(message, size_bytes=0) == replace(messages[first], size_bytes=0)
            and run_bytes + message.message_bytes <= fusion_bytes
        )
        if not joins:
            if place > first:
                yield range(first, place)
            first, run_bytes = place, 0
        run_bytes += message.message_bytes
    if messages:
        yield range(first, len(messages))


def _carrier(messages: Sequence[Operation], run: range, setup: Setup) -> Carrier:
    message = messages[run.start]
    if message.collective is not Collective.ALL_REDUCE:
        return Carrier(first=run.start, end=run.stop, parts=(message,), is_copied=False)
    sent = sent_as(message, setup.compression)
    counts = _cut(sum(messages[place].element_count for place in run), setup.chunk_count)
    return Carrier(
        first=run.start,
        end=run.stop,
        parts=tuple(_of(sent, count, sent.dtype) for count in counts),
        is_copied=len(run) > 1 or sent != message,
    )


def _of(message: Operation, element_count: int, dtype: DType) -> Operation:
    """The same call for N elements of this format."""
    return replace(message, size_bytes=element_count * dtype.element_bytes, dtype=dtype)


def _cut(element_count: int, chunk_count: int) -> tuple[int, ...]:
    """Elements of each part: as equal as whole numbers allow, and none without any."""
    part_count = min(chunk_count, element_count)
    least, longer_count = divmod(element_count, part_count)
    return tuple(least + (part < longer_count) for part in range(part_count))
