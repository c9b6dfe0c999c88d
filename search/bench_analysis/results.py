"""Results of one label: what its folder holds, and what of it cannot be used."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final

from evaluator.timing.bench_csv import (
    ABSENT,
    BUS_BANDWIDTH,
    LEAST_LATENCY,
    MOST_LATENCY,
    NEEDED,
    BenchRow,
    bench_files,
    check_one_adapter,
    read_bench_file,
)
from records.errors import StudyError, shown
from search.bench_analysis.folders import NAME, LabelledFolder
from search.bench_analysis.points import DevicePoint, Figures, by_point, figures

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
        """What rows say in a column, each value once."""
        rows = chain(*self.rows.values(), self.left_out)
        return tuple(sorted({row.columns.get(column, ABSENT) for row in rows}))

    def told(self, column: str) -> str:
        """What rows say in a column, in words."""
        return ", ".join(self.values(column))

    @property
    def left_out_words(self) -> tuple[str, ...]:
        """How many rows were not measured, for each status and reason."""
        found = Counter((row.status, row.columns.get("Reason", "")) for row in self.left_out)
        return tuple(
            f"{count} {'row' if count == 1 else 'rows'} not measured: {status}"
            + (f" ({reason})" if reason else "")
            for (status, reason), count in found.items()
        )


def read_results(
    folders: Sequence[LabelledFolder], warn: Callable[[str], None]
) -> tuple[Results, ...]:
    """What each folder holds; what cannot be used is told to `warn` and left out.

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
            warn(f"{folder.label}: its rows differ in {column} ({results.told(column)})")
    for words in results.left_out_words:
        warn(f"{folder.label}: {words}")
    return results


def _check_names(path: Path, rows: Sequence[BenchRow]) -> None:
    """Refuse names that would lead out of the folder that results are written to."""
    for row in rows:
        for name in (row.point.collective, row.point.operation):
            if name != ABSENT and not NAME.fullmatch(name):
                raise StudyError(
                    f"{path}: {shown(name)} is no name of a collective or operation; "
                    "is it the right file?"
                )


def _nothing_in(path: Path) -> str:
    inner = sorted({file.parent.name for file in path.glob("*/*.csv")})
    hint = f", but its folders {', '.join(inner)} do" if inner else ""
    return f"{path} holds no CSV file with results{hint}"
