"""Read the benchmark results of each label from its folder of CSV files."""

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Final

from evaluator.timing.bench_csv import (
    ABSENT,
    BUS_BANDWIDTH,
    LEAST_LATENCY,
    MOST_LATENCY,
    NEEDED,
    BenchPoint,
    BenchRow,
    bench_files,
    check_one_adapter,
    read_bench_file,
)
from records.errors import StudyError, shown

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
"""What may become a part of a file's name."""
UNITS: Final = ("B", "KB", "MB", "GB", "TB")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledFolder:
    """A folder of benchmark CSV files, and what its results are called."""

    label: str
    path: Path


def labelled_folders(texts: Sequence[str]) -> tuple[LabelledFolder, ...]:
    """What `LABEL:PATH` and `PATH` stand for; raises `StudyError` where labels are not clear."""
    if not texts:
        raise StudyError("there is nothing to analyse; give a folder, as in --dir c10d:results")
    folders = tuple(_labelled(text) for text in texts)
    twice = [label for label, count in Counter(each.label for each in folders).items() if count > 1]
    if twice:
        raise StudyError(
            f"several folders are labelled {', '.join(twice)}; "
            "give each a separate label, as in --dir LABEL:PATH"
        )
    return folders


def _labelled(text: str) -> LabelledFolder:
    """A colon parts label and path, unless it belongs to a folder that is there."""
    label, _, rest = text.partition(":")
    if NAME.fullmatch(label) and rest and (Path(rest).is_dir() or not Path(text).is_dir()):
        path = Path(rest)
    else:
        path, label = Path(text), Path(text).absolute().name
    if not NAME.fullmatch(label):
        raise StudyError(
            f"--dir {shown(text)}: {shown(label)} cannot be a label; give one of letters, digits "
            "and . _ + -, as in --dir LABEL:PATH"
        )
    return LabelledFolder(label=label, path=path)


THEIR_CONVENTION = "torchcomms"
"""How files without a column for it reckon bandwidth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePoint(BenchPoint):
    """A point and the kind of device it was measured on; results are joined on all of it."""

    device_type: str
    device_name: str

    @property
    def place(self) -> tuple[str, str, int, str, int, str, int, str, str]:
        """Where it stands among others: by collective, then by size."""
        what = (self.collective, self.operation, self.size_bytes, self.dtype, self.rank_count)
        how = (self.dispatch_mode, self.sync_interval, self.device_type, self.device_name)
        return (*what, *how)

    @property
    def name(self) -> str:
        """What tables and files call its collective; the operation is named unless it is a sum."""
        plain = self.operation in (ABSENT, "sum")
        return self.collective if plain else f"{self.collective}_{self.operation}"

    @property
    def variant(self) -> "DevicePoint":
        """The same for all sizes, which a curve is drawn through."""
        return replace(self, size_bytes=0)

    @property
    def variant_words(self) -> str:
        """What a curve stands for, beyond its collective."""
        sync = (f"sync interval {self.sync_interval}",) if self.sync_interval else ()
        device = self.device_type if self.device_name == ABSENT else self.device_name
        ranks = f"{self.rank_count} rank{'s' if self.rank_count != 1 else ''}"
        return ", ".join((self.dtype, ranks, self.dispatch_mode, *sync, device))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the rows of one point say together; None for what none of them has.

    Latencies are in microseconds. Averages of several rows are their geometric mean, so that two
    of them give the mean ratio; `least_us` and `most_us` are the extremes of all rows.
    """

    latency_us: float
    least_us: float | None
    most_us: float | None
    bus_gb_per_s: float | None
    convention: str | None
    row_count: int


def size_words(size_bytes: int) -> str:
    """A size in powers of 1024."""
    power = min(max(size_bytes.bit_length() - 1, 0) // 10, len(UNITS) - 1)
    return f"{size_bytes / 1024**power:.4g}{UNITS[power]}"


def device_point(row: BenchRow) -> DevicePoint:
    """The point of a row."""
    return DevicePoint(
        **asdict(row.point),
        device_type=row.columns.get("DeviceType", ABSENT),
        device_name=row.columns.get("DeviceName", ABSENT),
    )


def by_point(rows: Iterable[BenchRow]) -> Mapping[DevicePoint, tuple[BenchRow, ...]]:
    """Rows of each point, in order of the points; those of one point are replicates."""
    found: dict[DevicePoint, list[BenchRow]] = defaultdict(list)
    for row in rows:
        found[device_point(row)].append(row)
    return {point: tuple(found[point]) for point in sorted(found, key=lambda each: each.place)}


def figures(rows: Sequence[BenchRow]) -> Figures:
    """What measured rows of one point give together."""
    least = [row.least_latency_us for row in rows if row.least_latency_us is not None]
    most = [row.most_latency_us for row in rows if row.most_latency_us is not None]
    speeds = [row.bus_gb_per_s for row in rows if row.bus_gb_per_s is not None]
    conventions = {row.columns.get("BwConvention", THEIR_CONVENTION) for row in rows}
    return Figures(
        latency_us=_centre([row.latency_us for row in rows if row.latency_us is not None]),
        least_us=min(least, default=None),
        most_us=max(most, default=None),
        bus_gb_per_s=_centre(speeds) if speeds else None,
        convention=conventions.pop() if len(conventions) == 1 else None,
        row_count=len(rows),
    )


def _centre(values: Sequence[float]) -> float:
    """The geometric mean, or the median where a value has no logarithm."""
    if len(values) == 1:
        return values[0]
    return statistics.geometric_mean(values) if min(values) > 0 else statistics.median(values)


COLUMNS: Final = (*NEEDED, LEAST_LATENCY, MOST_LATENCY, BUS_BANDWIDTH)

ONE_EACH: Final = ("CommBackend", "CommBackendVersion", "TorchVersion", "TorchCommsVersion")
"""Columns in which replicates do not differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Rows of one label: those that were measured, and those that were not, with their status."""

    label: str
    folder: Path
    rows: Mapping[DevicePoint, tuple[BenchRow, ...]]
    left_out: tuple[BenchRow, ...] = ()
    figures: Mapping[DevicePoint, Figures] = field(init=False)

    def __post_init__(self) -> None:
        found = {point: figures(rows) for point, rows in self.rows.items()}
        object.__setattr__(self, "figures", found)

    def values(self, column: str) -> tuple[str, ...]:
        """The values of a column, each once."""
        rows = chain(*self.rows.values(), self.left_out)
        return tuple(sorted({row.columns.get(column, ABSENT) for row in rows}))

    def text(self, column: str) -> str:
        """The values of a column, with commas."""
        return ", ".join(self.values(column))


def read_results(
    folders: Sequence[LabelledFolder], warn: Callable[[str], None]
) -> tuple[Results, ...]:
    """What each folder holds; what cannot be used goes to `warn` and is left out.

    Raises `StudyError` where nothing is left.
    """
    there = [folder for folder in folders if folder.path.is_dir()]
    for folder in folders:
        if folder not in there:
            warn(f"{folder.label}: there is no folder {folder.path}; it is left out")
    if not there:
        raise StudyError(
            "none of the folders is there; give those that hold benchmark CSV files, as in "
            "--dir c10d:results/c10d"
        )
    found = tuple(each for each in (_results(folder, warn) for folder in there) if each)
    if not found:
        raise StudyError(
            f"no CSV file with results is in {', '.join(str(folder.path) for folder in there)}; "
            "measure with --csv first, or give other folders"
        )
    return found


def _results(folder: LabelledFolder, warn: Callable[[str], None]) -> Results | None:
    rows: list[BenchRow] = []
    for path in bench_files(folder.path):
        try:
            read = read_bench_file(path, COLUMNS)
            _check_names(path, read)
        except StudyError as error:
            warn(f"{folder.label}: left out {error}")
        else:
            rows += read
    if not rows:
        warn(f"{folder.label}: {_nothing_in(folder.path)}; it is left out")
        return None
    check_one_adapter(folder.path, rows)
    results = Results(
        label=folder.label,
        folder=folder.path,
        rows=by_point(row for row in rows if row.latency_us is not None),
        left_out=tuple(row for row in rows if row.latency_us is None),
    )
    for column in ONE_EACH:
        if len(results.values(column)) > 1:
            warn(f"{folder.label}: its rows differ in {column} ({results.text(column)})")
    causes = Counter((row.status, row.columns.get("Reason", "")) for row in results.left_out)
    for (status, reason), count in causes.items():
        rows_words, why = "row" if count == 1 else "rows", f" ({reason})" if reason else ""
        warn(f"{folder.label}: {count} {rows_words} not measured: {status}{why}")
    return results


def _check_names(path: Path, rows: Sequence[BenchRow]) -> None:
    """Refuse names that would lead out of the folder that results are written to."""
    for row in rows:
        for name in (row.point.collective, row.point.operation):
            if name != ABSENT and not NAME.fullmatch(name):
                raise StudyError(
                    f"{path}: {shown(name)} is not a name of a collective or operation; "
                    "is it the right file?"
                )


def _nothing_in(path: Path) -> str:
    inner = sorted({file.parent.name for file in path.glob("*/*.csv")})
    hint = f", but its folders {', '.join(inner)} do" if inner else ""
    return f"{path} holds no CSV file with results{hint}"
