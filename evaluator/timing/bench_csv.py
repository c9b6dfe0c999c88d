"""Rows of collective benchmark results, as CSV files of torchcomms and others with its columns.

Nothing is rounded; `n/a` is what a benchmark writes for a value that does not exist.
"""

import csv
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from records.errors import StudyError, shown
from records.files import read_text

MOST_BYTES = 16 << 20
"""About 100,000 rows; a sweep of every message has some hundreds."""
ABSENT = "n/a"
LATENCY = "LatAvg(us)"
LEAST_LATENCY, MOST_LATENCY = "LatMin(us)", "LatMax(us)"
BUS_BANDWIDTH = "BusBw(GB/s)"
SCHEMA, STATUS, MEASURED = "SchemaVersion", "Status", "measured"
POINT_COLUMNS = (
    *("Collective", "ReduceOp", "DType", "SendMsgSize(B)"),
    *("Ranks", "DispatchMode", "SyncInterval"),
)
NEEDED = (*POINT_COLUMNS, LATENCY)
ACCOMPANYING = {
    "least_latency_us": LEAST_LATENCY,
    "most_latency_us": MOST_LATENCY,
    "bus_gb_per_s": BUS_BANDWIDTH,
}
WHOLE_NUMBER = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class BenchPoint:
    """What was measured, by any benchmark; rows of one point are replicates."""

    collective: str
    operation: str
    dtype: str
    size_bytes: int
    rank_count: int
    dispatch_mode: str
    sync_interval: int

    def __str__(self) -> str:
        operation = () if self.operation == ABSENT else (self.operation,)
        words = (self.collective, *operation, self.dtype, f"{self.size_bytes}B")
        sync = (f"sync {self.sync_interval}",) if self.sync_interval else ()
        return " ".join((*words, f"{self.rank_count} ranks", self.dispatch_mode, *sync))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """Mean latency of one point in microseconds, None where it was not measured.

    The least and the greatest latency and the bus bandwidth are None where the file has none.
    `columns` holds every cell that is not empty, by the name of its column.
    """

    point: BenchPoint
    latency_us: float | None
    columns: Mapping[str, str]
    least_latency_us: float | None = None
    most_latency_us: float | None = None
    bus_gb_per_s: float | None = None

    @property
    def status(self) -> str:
        """How it ended, None in files without such a column."""
        return self.columns.get(STATUS, MEASURED)


def read_bench(path: Path) -> tuple[BenchRow, ...]:
    """The rows of a file, or of all `.csv` files of a folder, in order of their names.

    Raises `StudyError` for a file without these columns, and for rows of several adapters, which
    would pass for replicates of each other.
    """
    files = bench_files(path) if path.is_dir() else (path,)
    rows = tuple(row for file in files for row in _rows(file, NEEDED))
    if not rows:
        raise _empty(path)
    check_one_adapter(path, rows)
    return rows


def bench_files(folder: Path) -> tuple[Path, ...]:
    """The files of a folder that may hold results, by name."""
    return tuple(sorted(folder.glob("*.csv")))


def read_bench_file(path: Path, needed: Sequence[str]) -> tuple[BenchRow, ...]:
    """The rows of one file with these columns; raises `StudyError` for one that lacks them.

    It is also raised for a file without rows, and for one that several versions have written.
    """
    rows = tuple(_rows(path, needed))
    if not rows:
        raise _empty(path)
    return rows


def check_one_adapter(path: Path, rows: Sequence[BenchRow]) -> None:
    """Raise `StudyError` where several adapters gave these rows: they are no replicates."""
    adapters = sorted({row.columns.get("CommAdapter", "") for row in rows})
    if len(adapters) > 1:
        raise StudyError(
            f"{path}: holds results of several adapters ({', '.join(adapters)}); "
            "give those of one, in a separate file or folder"
        )


def _empty(path: Path) -> StudyError:
    return StudyError(f"{path}: holds no results; give a CSV file with a row for each of them")


def _rows(path: Path, needed: Sequence[str]) -> Iterator[BenchRow]:
    schema = None
    try:
        text = read_text(path, MOST_BYTES).removeprefix("\N{BYTE ORDER MARK}")
        lines = csv.reader(StringIO(text), skipinitialspace=True)
        header = [name.strip() for name in next(lines, [])]
        _check_header(path, header, needed)
        for cells in lines:
            if not any(cell.strip() for cell in cells):
                continue
            where = f"{path}: line {lines.line_num}"
            row = _row(where, header, cells)
            own = row.columns.get(SCHEMA, "")
            schema = own if schema is None else schema
            if own != schema:
                raise StudyError(
                    f"{where}: {SCHEMA} is {shown(own)}, but {shown(schema)} above; "
                    "give files that one version has written"
                )
            yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise StudyError(
            f"{path}: cannot be read as CSV ({error}); give a CSV file of a collective benchmark"
        ) from error


def _check_header(path: Path, header: Sequence[str], needed: Sequence[str]) -> None:
    missing = [name for name in needed if name not in header]
    if missing:
        raise StudyError(
            f"{path}: has no column {', '.join(missing)}; a benchmark CSV needs "
            f"{', '.join(needed)}, others are allowed"
        )
    twice = sorted(name for name, count in Counter(header).items() if name and count > 1)
    if twice:
        raise StudyError(f"{path}: has column {', '.join(twice)} twice; keep one of each")


def _row(where: str, header: Sequence[str], cells: Sequence[str]) -> BenchRow:
    if len(cells) != len(header):
        raise StudyError(
            f"{where}: has {len(cells)} cells for {len(header)} columns; is the file whole?"
        )
    named = {name: _printable(cell).strip() for name, cell in zip(header, cells, strict=True)}
    point = BenchPoint(
        collective=named["Collective"],
        operation=named["ReduceOp"] or ABSENT,
        dtype=named["DType"],
        size_bytes=_count(where, named, "SendMsgSize(B)"),
        rank_count=_count(where, named, "Ranks"),
        dispatch_mode=named["DispatchMode"],
        sync_interval=_count(where, named, "SyncInterval"),
    )
    columns = {name: cell for name, cell in named.items() if cell}
    measured = columns.get(STATUS, MEASURED) == MEASURED
    return BenchRow(
        point=point,
        latency_us=_number(where, LATENCY, named[LATENCY]) if measured else None,
        columns=columns,
        **{
            field: _number(where, column, columns.get(column, ABSENT)) if measured else None
            for field, column in ACCOMPANYING.items()
        },
    )


def _printable(cell: str) -> str:
    """The cell without control characters, which could steer a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in cell)


def _count(where: str, named: Mapping[str, str], column: str) -> int:
    text = named[column]
    if not WHOLE_NUMBER.fullmatch(text):
        raise StudyError(f"{where}: {column} is {shown(text)}; it must be a whole number")
    return int(text)


def _number(where: str, column: str, text: str) -> float | None:
    if text == ABSENT:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise StudyError(f"{where}: {column} is {shown(text)}; it must be a number, or {ABSENT}")
    return value
