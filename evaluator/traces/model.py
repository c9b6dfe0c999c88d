"""The traces of one job as columns: spans, collectives, steps and memory of each rank."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from itertools import compress, pairwise
from pathlib import Path
from typing import Final, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluator.traces.intervals import Intervals, Nanoseconds, Sweep

E = TypeVar("E")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Columns of one length, and fields that are one for all rows."""

    def __post_init__(self) -> None:
        if len({len(column) for column in self.columns().values()}) != 1:
            raise ValueError("columns must be arrays of one length")

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """Every column by its name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(next(iter(self.columns().values())).size)

    def select(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> Self:
        """Only these rows: by a bool each, or by their places in the order wanted."""
        return replace(self, **{name: column[rows] for name, column in self.columns().items()})

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """All rows of the parts, of which there is at least one, and of the tables in them.

        Other fields are those of the first part.
        """
        whole: dict[str, object] = {}
        for name in (field.name for field in fields(cls)):
            values = [getattr(part, name) for part in parts]
            if isinstance(values[0], np.ndarray):
                whole[name] = np.concatenate(values)
            elif isinstance(values[0], Table):
                whole[name] = values[0].concatenate(values)
        return replace(parts[0], **whole)

    def shifted(self, offset_ns: int) -> Self:
        """The same rows on a clock that reads more by `offset_ns`."""
        moments = self.columns().keys() & {"start_ns", "end_ns", "time_ns"}
        return replace(self, **{name: getattr(self, name) + offset_ns for name in moments})


class Activity(IntEnum):
    """What a span did; the reader of a format decides, nothing after it looks at names.

    Up to FILL it is the work of the rank: of its device, or of the host where there is none.
    """

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2
    FILL = 3
    WAIT = 4
    """Waiting or handing over work inside a compute span of the same thread: not compute."""
    LAUNCH = 5
    """The host hands work to the device: the call that work of the same correlation came from."""
    SYNC = 6
    """The host waits for the device."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Where spans run one after the other: a stream of a device, or a thread of the host."""

    process: str
    thread: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spans(Table):
    """Columns of shape (spans,), in order of start; what a trace does not say is 0 or NaN.

    Times are nanoseconds since the Unix epoch on the rank's own clock, or since any moment where
    the trace has no such clock. `name_id` indexes `names`, `lane_id` indexes `lanes`, `activity`
    holds `Activity` values.
    """

    start_ns: Nanoseconds
    end_ns: Nanoseconds
    name_id: NDArray[np.int32]
    lane_id: NDArray[np.int32]
    activity: NDArray[np.int8]
    correlation: NDArray[np.int64]
    """Equal for a launch and the work that it launched; 0 where there is none."""
    bytes: NDArray[np.int64]
    """Moved by a copy or fill, or read and written by an operation that says so; 0: unknown."""
    flops: NDArray[np.float64]
    """Floating-point operations of the span; NaN: unknown."""
    blocks_per_sm: NDArray[np.float32]
    """Blocks of a kernel over the multiprocessors of its device; NaN: unknown."""
    occupancy: NDArray[np.float32]
    """Estimated share of the warps that fit on a multiprocessor, 0 to 1; NaN: unknown."""
    scope_id: NDArray[np.int32]
    """Indexes `scopes`: where in the program the compiler says that the span comes from."""
    names: tuple[str, ...]
    lanes: tuple[Lane, ...]
    scopes: tuple[str, ...]
    """As in `jit(step)/transpose(jvp(Net))/Block_0/dot_general`; empty: unknown."""

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        if np.any(self.start_ns[1:] < self.start_ns[:-1]) or np.any(self.end_ns < self.start_ns):
            raise ValueError("spans must be in order of start and none may end before it starts")

    @classmethod
    def build(
        cls,
        *,
        names: Sequence[str],
        lanes: Sequence[Lane],
        scopes: Sequence[str] = ("",),
        **known: ArrayLike,
    ) -> Self:
        """From columns in any order; what is not given is unknown, names without spans are dropped.

        Lanes and scopes without spans are dropped too.
        """
        start_ns = np.asarray(known["start_ns"], np.int64)
        order = np.argsort(start_ns, kind="stable")
        columns = {
            name: np.asarray(known[name], value.dtype)[order]
            if name in known
            else np.full(order.size, value)
            for name, value in _UNKNOWN.items()
        }
        columns["name_id"], own_names = _compact(columns["name_id"], names)
        columns["lane_id"], own_lanes = _compact(columns["lane_id"], lanes)
        columns["scope_id"], own_scopes = _compact(columns["scope_id"], scopes)
        return cls(names=own_names, lanes=own_lanes, scopes=own_scopes, **columns)

    @property
    def duration_ns(self) -> Nanoseconds:
        """How long each span took."""
        return self.end_ns - self.start_ns

    def doing(self, *activities: Activity) -> NDArray[np.bool_]:
        """Which spans do one of these, bool of shape (spans,)."""
        return np.isin(self.activity, activities)

    def union(self, chosen: NDArray[np.bool_]) -> Intervals:
        """Time in which at least one of the chosen spans ran."""
        return Intervals.union(self.start_ns[chosen], self.end_ns[chosen])


_UNKNOWN: Final[dict[str, np.generic]] = {
    "start_ns": np.int64(0),
    "end_ns": np.int64(0),
    "name_id": np.int32(0),
    "lane_id": np.int32(0),
    "activity": np.int8(0),
    "correlation": np.int64(0),
    "bytes": np.int64(0),
    "flops": np.float64(np.nan),
    "blocks_per_sm": np.float32(np.nan),
    "occupancy": np.float32(np.nan),
    "scope_id": np.int32(0),
}


class CollectiveKind(IntEnum):
    """What a communication span does."""

    OTHER = 0
    """Unknown, or several together."""
    ALL_REDUCE = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    ALL_TO_ALL = 4
    BROADCAST = 5
    REDUCE = 6
    GATHER = 7
    SCATTER = 8
    SEND = 9
    RECV = 10
    SEND_RECV = 11
    """A transfer between two ranks of unknown direction."""
    BARRIER = 12
    PUT = 13
    """A copy into the memory of another rank: one side makes it alone, and waits for no other."""


TRANSFERS: Final = (
    CollectiveKind.SEND,
    CollectiveKind.RECV,
    CollectiveKind.SEND_RECV,
    CollectiveKind.PUT,
)
"""Between two ranks; all other kinds are collectives."""

SYNCHRONISING: Final = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.BARRIER,
)
"""Kinds that no rank can leave before the last one has come."""


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks that communicate: their numbers in order and how many, as far as the trace says."""

    name: str
    ranks: tuple[int, ...] | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Collectives(Table):
    """Columns of shape (collectives,), in order of start: one row per communication span.

    `span` is the row of the span; `kind` holds `CollectiveKind` values; `group_id` indexes
    `groups`.
    """

    span: NDArray[np.int64]
    kind: NDArray[np.int8]
    group_id: NDArray[np.int32]
    bytes: NDArray[np.int64]
    """S of nccl-tests: the whole buffer, that is the input of an all-reduce, reduce-scatter or
    all-to-all, the output of an all-gather, the message of a transfer; 0: unknown."""
    sequence: NDArray[np.int64]
    """Number of the collective within its group, equal on all its ranks; -1: unknown."""
    groups: tuple[RankGroup, ...]

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        if np.any(self.span[1:] <= self.span[:-1]):
            raise ValueError("collectives must be in order of their spans")

    @classmethod
    def build(
        cls,
        *,
        span: NDArray[np.int64],
        kind: ArrayLike,
        groups: Iterable[RankGroup],
        group: NDArray[np.integer] | None = None,
        bytes: ArrayLike,
        sequence: ArrayLike = -1,
    ) -> Self:
        """From columns in order of span; `group` indexes `groups`, of which some may be equal.

        Without it there is one group for each row.
        """
        numbers: dict[RankGroup, int] = {}
        ids = np.array([numbers.setdefault(one, len(numbers)) for one in groups], np.int32)
        return cls(
            span=np.asarray(span, np.int64),
            kind=np.asarray(kind, np.int8),
            group_id=ids if group is None else ids[group],
            bytes=np.asarray(bytes, np.int64),
            sequence=np.broadcast_to(np.asarray(sequence, np.int64), len(span)),
            groups=tuple(numbers),
        )


class StepKind(IntEnum):
    """What a step does."""

    PLAIN = 0
    """A training step, or one that does not say."""
    PREFILL = 1
    DECODE = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepWindows(Table):
    """When each profiled step ran, [start, end); arrays of shape (steps,), by rising number.

    `kind` holds `StepKind` values.
    """

    number: NDArray[np.int64]
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    kind: NDArray[np.int8]

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        if np.any(self.number[1:] <= self.number[:-1]) or np.any(self.end_ns < self.start_ns):
            raise ValueError("step numbers must rise and no step may end before it starts")

    @classmethod
    def plain(cls, number: NDArray[np.int64], start_ns: Nanoseconds, end_ns: Nanoseconds) -> Self:
        """Steps that do not say what they do."""
        return cls(
            number=number, start_ns=start_ns, end_ns=end_ns, kind=np.zeros(number.size, np.int8)
        )

    @classmethod
    def none(cls) -> Self:
        """No step at all."""
        empty = np.empty(0, np.int64)
        return cls.plain(empty, empty, empty)

    @property
    def of_a_server(self) -> bool:
        """Whether any of them says that it answers requests."""
        return bool(np.any(self.kind != StepKind.PLAIN))

    @property
    def duration_ns(self) -> Nanoseconds:
        """How long each step took."""
        return self.end_ns - self.start_ns

    def among(self, numbers: NDArray[np.int64]) -> Self:
        """Only the steps of these numbers."""
        return self.select(np.isin(self.number, numbers))

    def of_kind(self, kind: StepKind) -> Self:
        """Only the steps of this kind."""
        return self.select(self.kind == kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The accelerator that a rank computes on, as far as the trace says."""

    name: str
    multiprocessor_count: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryUse(Table):
    """What the allocator had handed out, bytes, each time it changed; shape (changes,)."""

    time_ns: Nanoseconds
    allocated_bytes: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpanWaits(Table):
    """Which span starts only after another one has ended; rows of spans, shape (waits,)."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankTrace:
    """What one rank did, on its own clock.

    `steps` are windows on the device: from the first work of a step to the last, where the trace
    says. `host_steps` are the same steps as the host saw them; both are equal for a job on CPUs.
    `world_size`, `backend`, `device` and `memory` are None where the trace does not say.
    `caveats` say what had to be repaired or left out, and how often. A `reduced` trace has each
    collective, but of other work only when any of a kind ran: no names, no launches.
    """

    rank: int
    world_size: int | None
    backend: str | None
    device: Device | None
    source: str
    """Format of the file: kineto, xla or nsys."""
    spans: Spans
    collectives: Collectives
    steps: StepWindows
    host_steps: StepWindows
    memory: MemoryUse | None = None
    waits: SpanWaits | None = None
    """What spans wait for apart from their stream and launch; None if the trace does not say."""
    caveats: tuple[str, ...] = ()
    reduced: bool = False

    @property
    def on_device(self) -> bool:
        """Whether the work is that of an accelerator; else it is the host's own."""
        return self.device is not None

    @property
    def has_work(self) -> bool:
        """Whether the trace holds any work of the rank."""
        return bool(np.any(self.spans.activity <= Activity.FILL))

    def covered(self, *activities: Activity) -> Intervals:
        """Time in which at least one span of these activities ran."""
        return self.spans.union(self.spans.doing(*activities))

    def computing(self) -> Intervals:
        """Time in which something computed: compute spans without the waits of their thread."""
        spans = self.spans
        compute, waits = spans.doing(Activity.COMPUTE), spans.doing(Activity.WAIT)
        waiting = np.isin(spans.lane_id, np.unique(spans.lane_id[waits]))
        busy = spans.union(compute & ~waiting)
        rows = np.flatnonzero((compute | waits) & waiting)
        sweep = Sweep.over(
            spans.start_ns[rows],
            spans.end_ns[rows],
            spans.lane_id[rows],
            groups=(compute[rows], waits[rows]),
        )
        computes, waits_open = sweep.depth
        return busy.unite(sweep.where((computes > 0) & (waits_open == 0)))

    def communicating(self) -> Intervals:
        """Time in which at least one collective or transfer between ranks was under way."""
        return self.covered(Activity.COMMUNICATION)

    def shifted(self, offset_ns: int) -> Self:
        """The same trace on a clock that reads more by `offset_ns`."""
        return replace(
            self,
            spans=self.spans.shifted(offset_ns),
            steps=self.steps.shifted(offset_ns),
            host_steps=self.host_steps.shifted(offset_ns),
            memory=self.memory and self.memory.shifted(offset_ns),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """How the clocks of ranks were brought together.

    `offsets_ns` were added to the ranks' clocks, in their order; `residual_ns` is what the ends of
    matched collectives still differ by, at the median; `matched_count` is how many there were.
    """

    offsets_ns: tuple[int, ...]
    residual_ns: int
    matched_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSet:
    """The traces of one job, by rising rank; ranks may be missing, none is there twice.

    `alignment` is None where nothing says how clocks differ. `remarks` say what concerns no
    rank alone. `files` has the file of each rank, where they come from files.
    """

    ranks: tuple[RankTrace, ...]
    alignment: Alignment | None = None
    remarks: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        numbers = [trace.rank for trace in self.ranks]
        if not numbers or numbers != sorted(set(numbers)):
            raise ValueError(f"ranks must rise and be one at least, not {numbers}")

    @property
    def world_size(self) -> int | None:
        """How many ranks the job had; None when no trace says."""
        return next((t.world_size for t in self.ranks if t.world_size is not None), None)

    @property
    def whole(self) -> Self | None:
        """The same without the ranks whose traces were reduced; None where all were."""
        kept = [not trace.reduced for trace in self.ranks]
        if all(kept):
            return self
        return self._only(kept) if any(kept) else None

    def _only(self, kept: Sequence[bool]) -> Self:
        """Some of the ranks."""
        alignment = self.alignment
        return replace(
            self,
            ranks=tuple(compress(self.ranks, kept)),
            files=tuple(compress(self.files, kept)),
            alignment=alignment
            and replace(alignment, offsets_ns=tuple(compress(alignment.offsets_ns, kept))),
        )

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the job without a trace; empty when the size of the job is unknown."""
        present = {trace.rank for trace in self.ranks}
        return tuple(rank for rank in range(self.world_size or 0) if rank not in present)

    @property
    def common_steps(self) -> NDArray[np.int64]:
        """Numbers of the steps that every rank profiled, int64, shape (steps,), rising."""
        numbers = self.ranks[0].steps.number
        for trace in self.ranks[1:]:
            numbers = np.intersect1d(numbers, trace.steps.number, assume_unique=True)
        return numbers

    @property
    def caveats(self) -> tuple[str, ...]:
        """What is wrong with the traces and was repaired or left out."""
        count = len(self.missing_ranks)
        lacking = [f"{count} of {self.world_size} ranks left no trace"] if count else []
        reduced = sum(trace.reduced for trace in self.ranks)
        if reduced:
            lacking.append(
                f"the traces of {reduced} of {len(self.ranks)} ranks were reduced on their nodes: "
                "kernels and launches are those of the others"
            )
        by_rank = [f"rank {one.rank}: {caveat}" for one in self.ranks for caveat in one.caveats]
        return (*self.remarks, *lacking, *by_rank)


def distinct_rows(*columns: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct rows, shape (columns, distinct), rising, and the number of each row among them.

    As `numpy.unique` along an axis, which sorts rows as records: several times slower.
    """
    numbers = [np.asarray(column, np.int64) for column in columns]
    index = np.zeros(numbers[0].size, np.int64)
    first = np.empty(0, np.int64)
    for column in numbers:
        values, place = np.unique(column, return_inverse=True)
        _, first, index = np.unique(
            index * values.size + place, return_index=True, return_inverse=True
        )
    return np.stack([column[first] for column in numbers]), index


def _compact(
    ids: NDArray[np.integer], entries: Sequence[E]
) -> tuple[NDArray[np.int32], tuple[E, ...]]:
    """Numbers of only those entries that occur, shape (ids,), and these."""
    used = np.bincount(ids, minlength=len(entries)) > 0
    number = (np.cumsum(used) - 1).astype(np.int32)
    return number[ids], tuple(entries[place] for place in np.flatnonzero(used).tolist())


def rows_by_number(number: NDArray[np.int64], count: int) -> list[NDArray[np.int64]]:
    """The rows of each number from 0 to `count`, in the order they stand; others are left out."""
    order = np.argsort(number, kind="stable")
    bounds = np.searchsorted(number[order], np.arange(count + 1))
    return [order[first:behind] for first, behind in pairwise(bounds.tolist())]
