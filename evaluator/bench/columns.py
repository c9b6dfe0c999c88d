"""The columns of a benchmark's results: one definition for files and for the terminal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, TypeAlias

from evaluator.bench.record import BenchRecord
from evaluator.timing.bench_csv import ABSENT

Value: TypeAlias = str | int | float | None
DECIMALS, DIGITS = 2, 3


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, what of a record it tells, and its width on a terminal if it is there."""

    name: str
    value: Callable[[BenchRecord], Value]
    width: int | None = None

    def exact(self, record: BenchRecord) -> str:
        """The cell of a file: nothing is rounded."""
        value = self.value(record)
        return ABSENT if value is None else str(value)

    def short(self, record: BenchRecord) -> str:
        """The cell of a terminal; what decimals would hide has significant digits instead."""
        value = self.value(record)
        if not isinstance(value, float):
            return self.exact(record)
        return f"{value:.{DECIMALS}f}" if abs(value) >= 1 else f"{value:.{DIGITS}g}"


def _measured(name: str) -> Callable[[BenchRecord], Value]:
    """Reads what exists of measured points only."""
    read: Callable[[object], Value] = attrgetter(name)
    return lambda record: None if record.metrics is None else read(record.metrics)


def _sample_count(record: BenchRecord) -> int | None:
    return None if record.metrics is None else len(record.metrics.block_calls)


def _condition(name: str) -> Callable[[BenchRecord], Value]:
    read: Callable[[object], Value] = attrgetter(name)
    return lambda record: None if record.conditions is None else read(record.conditions)


def _steal_percent(record: BenchRecord) -> float | None:
    share = None if record.conditions is None else record.conditions.steal_share
    return None if share is None else 100 * share


COLUMNS: Final = (
    Column("Collective", attrgetter("params.collective_name"), 21),
    Column("DType", attrgetter("params.dtype"), 8),
    Column("ReduceOp", attrgetter("params.reduce_op"), 8),
    Column("SendMsgSize(B)", attrgetter("message_size_bytes"), 14),
    Column("Ranks", attrgetter("params.num_ranks"), 5),
    Column("DispatchMode", attrgetter("params.dispatch_mode")),
    Column("WarmupIters", attrgetter("params.warmup_iterations")),
    Column("MeasureIters", attrgetter("params.measure_iterations")),
    Column("SyncInterval", attrgetter("params.sync_interval")),
    Column("LatAvg(us)", _measured("avg_time_us"), 12),
    Column("LatMin(us)", _measured("min_time_us"), 12),
    Column("LatMax(us)", _measured("max_time_us"), 12),
    Column("BusBw(GB/s)", _measured("bus_bw_gbps"), 11),
    Column("DeviceType", attrgetter("environment.device_type")),
    Column("DeviceName", attrgetter("environment.device_name")),
    Column("CommAdapter", attrgetter("environment.comm_adapter_name")),
    Column("CommBackend", attrgetter("environment.comm_backend_name")),
    Column("CommBackendVersion", attrgetter("environment.comm_backend_version")),
    Column("TorchVersion", attrgetter("environment.torch_version")),
    Column("TorchCommsVersion", attrgetter("environment.torchcomms_version")),
    Column("SchemaVersion", attrgetter("schema_version")),
    Column("RunId", attrgetter("place.run_id")),
    Column("LaunchId", attrgetter("place.launch_id")),
    Column("Block", attrgetter("place.round")),
    Column("Order", attrgetter("place.order")),
    Column("AlgBw(GB/s)", _measured("algorithm_bw_gbps")),
    Column("LatMed(us)", _measured("median_time_us")),
    Column("LatP25(us)", _measured("p25_time_us")),
    Column("LatP75(us)", _measured("p75_time_us")),
    Column("LatP99(us)", _measured("p99_time_us")),
    Column("Samples", _sample_count),
    Column("SlowestRank", _measured("slowest_rank")),
    Column("BwConvention", attrgetter("config.bandwidth_convention")),
    Column("StartedAt", attrgetter("place.started_at")),
    Column("Load1", _condition("load_average")),
    Column("CpuPressure", _condition("cpu_pressure_share")),
    Column("StealPct", _steal_percent),
    Column("Host", attrgetter("environment.host")),
    Column("Commit", attrgetter("environment.commit")),
    Column("Status", attrgetter("status")),
    Column("Reason", lambda record: record.reason or None),
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
    cells = _aligned([column.short(record) for column in _SHOWN])
    return cells if record.status == "measured" else f"{cells}  {record.status}: {record.reason}"


_SHOWN: Final = tuple(column for column in COLUMNS if column.width is not None)


def _aligned(cells: Sequence[str]) -> str:
    first, *others = zip(_SHOWN, cells, strict=True)
    padded = [cell.rjust(column.width or 0) for column, cell in others]
    return "  ".join((first[1].ljust(first[0].width or 0), *padded))
