"""The same table as CSV, unrounded, and as aligned text."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from evaluator.timing.bench_csv import ABSENT, BUS_BANDWIDTH
from search.tables import Column, numbers, table_lines

SIZE: Final = "SendMsgSize(B)"
FOR_PROGRAMS: Final = (SIZE, "ReduceOp")
"""Columns of the CSV alone: the text says the same in others."""
TOLD_ONCE: Final = ("DType", "DispatchMode", "SyncInterval")
"""Columns that text has only where rows differ in them."""
ANY_WIDTH: Final = 100_000
UNITS: Final = ("B", "KB", "MB", "GB", "TB")


class Mark(Enum):
    """A cell without a value of its own."""

    BASELINE = "baseline"
    """The row is what others are compared with."""
    BLANK = ""


Cell: TypeAlias = str | int | float | Mark | None
"""None is a value that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns by name, and rows with a cell for each."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def csv_text(table: Table) -> str:
    """The table with every digit; marks are empty cells."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([_plain(cell) for cell in row] for row in table.rows)
    return text.getvalue()


def text_lines(table: Table) -> list[str]:
    """The table for people: what all rows have in common is told once, above it."""
    cells: dict[str, Sequence[Cell]] = {
        name: [row[place] for row in table.rows]
        for place, name in enumerate(table.columns)
        if name not in FOR_PROGRAMS
    }
    common = {
        name: cells.pop(name)[0]
        for name in TOLD_ONCE
        if name in cells and table.rows and len(set(cells[name])) == 1
    }
    above = [", ".join(f"{name} {value}" for name, value in common.items()), ""] if common else []
    return [*above, *table_lines([_column(name, told) for name, told in cells.items()], ANY_WIDTH)]


def size_words(size_bytes: int) -> str:
    """A size in powers of 1024."""
    size, unit = float(size_bytes), UNITS[0]
    for unit in UNITS:
        if size < 1024 or unit == UNITS[-1]:
            break
        size /= 1024
    return f"{size:.4g}{unit}"


def _plain(cell: Cell) -> str | int | float:
    match cell:
        case None:
            return ABSENT
        case Mark():
            return ""
        case _:
            return cell


def _column(name: str, cells: Sequence[Cell]) -> Column:
    texts = [_words(name, cell) for cell in cells]
    if any(isinstance(cell, int | float) for cell in cells) or name.endswith(")"):
        return numbers(name, texts)
    return Column(heading=name, cells=texts)


def _words(name: str, cell: Cell) -> str:
    match cell:
        case None:
            return ABSENT
        case Mark():
            return cell.value
        case float():
            # One decimal of GB/s would hide everything that small messages reach.
            return f"{cell:.3g}" if name == BUS_BANDWIDTH and cell < 100 else f"{cell:z.1f}"
        case _:
            return str(cell)
