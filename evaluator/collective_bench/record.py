"""Records of a collective benchmark: points, bandwidth, columns and result files.

A record holds one point of one launch and all that is needed to judge it. Columns are defined once
for files and for the terminal. Results are a CSV for each collective and reduction, and all records
as JSON lines; a row is written as soon as it is known, and none that exists is ever changed.
"""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat, takewhile
from operator import mul
from pathlib import Path
from typing import Final, Literal

import numpy as np

from evaluator.bus_bandwidth import Bandwidth, Convention, bandwidth
from evaluator.machine import Host
from evaluator.timing.bench_csv import ABSENT
from evaluator.workloads.collectives.operations import (
    Collective,
    Operation,
    PointSamples,
    PointStatus,
    ReduceOp,
    SweepFacts,
)
from records.codec import to_json
from records.errors import StoreError, StudyError
from records.machine import Conditions

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchParams:
    """How the points of a launch were measured."""

    comm_adapter: str
    device: str
    num_ranks: int
    async_op: bool
    warmup_iterations: int
    measure_iterations: int
    sync_interval: int
    bandwidth_convention: Convention

    @property
    def dispatch_mode(self) -> Literal["sync", "async"]:
        """Whether calls were started and then waited for."""
        return "async" if self.async_op else "sync"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlace:
    """Which launch measured a point: the command, its launch, and their order.

    Launches of one run that have the same `round` took turns; `order` is the place of this one in
    its round.
    """

    run_id: str
    launch_id: str
    round: int
    round_count: int
    order: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchMetrics:
    """What was measured, in microseconds a call and decimal GB/s.

    A block of calls takes as long as on its slowest rank.
    """

    avg_time_us: float
    min_time_us: float
    max_time_us: float
    p25_time_us: float
    median_time_us: float
    p75_time_us: float
    p99_time_us: float
    slowest_rank: int
    bandwidth: Bandwidth | None
    """None for a barrier."""
    block_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRecord:
    """One point of one launch: measured, or the reason why not."""

    host: Host
    facts: SweepFacts
    params: BenchParams
    place: LaunchPlace
    point: PointSamples
    metrics: BenchMetrics | None = None
    conditions: Conditions | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def reduce_op(self) -> ReduceOp | None:
        """The reduction; None where nothing is reduced."""
        operation = self.point.operation
        return operation.reduce_op if operation.reduces else None

    @property
    def steal_percent(self) -> float | None:
        """CPU time that other guests of the host took."""
        share = None if self.conditions is None else self.conditions.steal_share
        return None if share is None else 100 * share


UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_SIZE = re.compile(r"(?P<number>[0-9]{1,15})\s*(?P<unit>[KMGT]?)(?:I?B)?")


def size_bytes(text: str) -> int | None:
    """Bytes of a size such as 4096, 64K, 1MiB or 64MB, all units of 1024; None for other texts."""
    found = _SIZE.fullmatch(text.strip().upper())
    return int(found["number"]) << UNITS[found["unit"]] if found else None


def size_chain(least: int, most: int, factor: int) -> tuple[int, ...]:
    """Sizes from `least` on, each `factor` times the last, none above `most`.

    `least` is above 0 and `factor` above 1.
    """
    sizes = accumulate(repeat(factor), mul, initial=least)
    return tuple(takewhile(lambda size: size <= most, sizes))


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
    average_us = float(slowest_ns.sum() / calls.sum() / 1e3)
    of_blocks_us = slowest_ns / calls / 1e3
    p25_us, median_us, p75_us, p99_us = np.quantile(of_blocks_us, (0.25, 0.5, 0.75, 0.99)).tolist()
    return BenchMetrics(
        avg_time_us=average_us,
        min_time_us=float(of_blocks_us.min()),
        max_time_us=float(of_blocks_us.max()),
        p25_time_us=p25_us,
        median_time_us=median_us,
        p75_time_us=p75_us,
        p99_time_us=p99_us,
        slowest_rank=int(block_ns.sum(axis=1).argmax()),
        bandwidth=bandwidth(
            operation.collective, operation.message_bytes, world_size, average_us / 1e6, convention
        ),
        block_count=len(samples.block_calls),
    )


DECIMALS, DIGITS = 2, 3


@dataclass(frozen=True, slots=True)
class BenchColumn:
    """A column: its name, its attribute of a record, and its width on a terminal if shown there."""

    name: str
    attribute: str
    width: int | None = None

    def value(self, record: BenchRecord) -> object:
        """What the record has there; None where it lacks it, or the part that it is in."""
        value: object = record
        for name in self.attribute.split("."):
            value = None if value is None else getattr(value, name)
        return value

    def exact(self, record: BenchRecord) -> str:
        """The cell of a file: nothing is rounded."""
        value = self.value(record)
        return ABSENT if value in (None, "") else str(value)

    def short(self, record: BenchRecord) -> str:
        """The cell of a terminal; what decimals would hide has significant digits instead."""
        value = self.value(record)
        if not isinstance(value, float):
            return self.exact(record)
        return f"{value:.{DECIMALS}f}" if abs(value) >= 1 else f"{value:.{DIGITS}g}"


COLUMNS: Final = (
    BenchColumn("Collective", "point.operation.collective", 21),
    BenchColumn("DType", "point.operation.dtype", 8),
    BenchColumn("ReduceOp", "reduce_op", 8),
    BenchColumn("SendMsgSize(B)", "point.operation.message_bytes", 14),
    BenchColumn("Ranks", "params.num_ranks", 5),
    BenchColumn("DispatchMode", "params.dispatch_mode"),
    BenchColumn("WarmupIters", "params.warmup_iterations"),
    BenchColumn("MeasureIters", "params.measure_iterations"),
    BenchColumn("SyncInterval", "params.sync_interval"),
    BenchColumn("LatAvg(us)", "metrics.avg_time_us", 12),
    BenchColumn("LatMin(us)", "metrics.min_time_us", 12),
    BenchColumn("LatMax(us)", "metrics.max_time_us", 12),
    BenchColumn("BusBw(GB/s)", "metrics.bandwidth.bus_gbps", 11),
    BenchColumn("DeviceType", "params.device"),
    BenchColumn("DeviceName", "facts.device_name"),
    BenchColumn("CommAdapter", "params.comm_adapter"),
    BenchColumn("CommBackend", "facts.backend_name"),
    BenchColumn("CommBackendVersion", "facts.backend_version"),
    BenchColumn("TorchVersion", "facts.torch_version"),
    BenchColumn("TorchCommsVersion", "facts.torchcomms_version"),
    BenchColumn("SchemaVersion", "schema_version"),
    BenchColumn("RunId", "place.run_id"),
    BenchColumn("LaunchId", "place.launch_id"),
    BenchColumn("Block", "place.round"),
    BenchColumn("Order", "place.order"),
    BenchColumn("AlgBw(GB/s)", "metrics.bandwidth.algorithm_gbps"),
    BenchColumn("LatMed(us)", "metrics.median_time_us"),
    BenchColumn("LatP25(us)", "metrics.p25_time_us"),
    BenchColumn("LatP75(us)", "metrics.p75_time_us"),
    BenchColumn("LatP99(us)", "metrics.p99_time_us"),
    BenchColumn("Samples", "metrics.block_count"),
    BenchColumn("SlowestRank", "metrics.slowest_rank"),
    BenchColumn("BwConvention", "params.bandwidth_convention"),
    BenchColumn("StartedAt", "point.started_at"),
    BenchColumn("Load1", "conditions.load_average"),
    BenchColumn("CpuPressure", "conditions.cpu_pressure_share"),
    BenchColumn("StealPct", "steal_percent"),
    BenchColumn("Host", "host.host"),
    BenchColumn("Commit", "host.commit"),
    BenchColumn("Status", "point.status"),
    BenchColumn("Reason", "point.reason"),
)
HEADER: Final = tuple(column.name for column in COLUMNS)


def row(record: BenchRecord) -> tuple[str, ...]:
    """The cells of a file, in the order of `HEADER`."""
    return tuple(column.exact(record) for column in COLUMNS)


def terminal_header() -> str:
    """The names of the columns that a terminal shows, each over its cells."""
    return _aligned([column.name for column in _SHOWN])


def terminal_row(record: BenchRecord) -> str:
    """The cells that a terminal shows, with the reason where a point was not measured."""
    cells, point = _aligned([column.short(record) for column in _SHOWN]), record.point
    measured = point.status is PointStatus.MEASURED
    return cells if measured else f"{cells}  {point.status}: {point.reason}"


_SHOWN: Final = tuple(column for column in COLUMNS if column.width is not None)


def _aligned(cells: Sequence[str]) -> str:
    first, *others = zip(_SHOWN, cells, strict=True)
    padded = [cell.rjust(column.width or 0) for column, cell in others]
    return "  ".join((first[1].ljust(first[0].width or 0), *padded))


RECORDS: Final = "records.jsonl"
ADAPTER: Final = "CommAdapter"
LINE_BYTES = 100_000


class ResultFiles:
    """Appends results to the files of one adapter's folder.

    `swept` is whether every reduction has a separate file.
    """

    def __init__(self, folder: Path, *, adapter: str, swept: bool) -> None:
        self.folder = folder
        self._adapter = adapter
        self._swept = swept

    def check(self, names: Sequence[str]) -> None:
        """Make the folder; raises `StudyError` if it, or a file of such a name, is not for us.

        Rows of several adapters in one folder would pass for replicates of each other.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(self.folder.glob("*.csv")):
                fault = _fault(path, self._adapter, is_added_to=path.name in names)
                if fault is not None:
                    raise StudyError(f"{path}: {fault}; give another folder with --output-dir")
        except OSError as error:
            raise self._unwritable(error) from error

    def add(self, record: BenchRecord) -> None:
        """Append a record; raises `StoreError` if that cannot be done."""
        path = self.folder / file_name(record.point.operation, swept=self._swept)
        lines = [row(record)]
        try:
            if not path.exists() or not path.stat().st_size:
                lines.insert(0, HEADER)
            _append(path, _csv(lines))
            _append(self.folder / RECORDS, f"{to_json(record)}\n")
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> StoreError:
        return StoreError(
            f"{self.folder}: results cannot be written ({error.strerror}); "
            "give another folder with --output-dir"
        )


def file_name(operation: Operation, *, swept: bool) -> str:
    """The CSV file of a point: one for each collective, and one for each way to reduce.

    Plain sums are named like the collective alone, unless reductions are swept.
    """
    named = operation.reduces and (swept or operation.reduce_op is not ReduceOp.SUM)
    reduction = f"_{operation.reduce_op}" if named else ""
    return f"{operation.collective}{reduction}.csv"


def _fault(path: Path, adapter: str, *, is_added_to: bool) -> str | None:
    """Why results of an adapter cannot be in or next to a file; None if they can."""
    if not path.stat().st_size:
        return None
    with path.open("rb") as file:
        first, second = (file.readline(LINE_BYTES).decode(errors="replace") for _ in range(2))
        file.seek(-1, io.SEEK_END)
        is_whole = file.read() == b"\n"
    if first != _csv([HEADER]):
        return "has other columns than we write" if is_added_to else None
    if is_added_to and not is_whole:
        return "its last row was cut off and should be removed"
    cells = dict(zip(HEADER, next(csv.reader([second]), []), strict=False))
    theirs = cells.get(ADAPTER, adapter)
    return None if theirs == adapter else f"holds results of {theirs}, not of {adapter}"


def _csv(lines: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8", newline="") as file:
        file.write(text)
