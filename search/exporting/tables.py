"""Trials as JSON lines, as CSV and as Parquet."""

import csv
import io
import json
from collections.abc import Sequence
from typing import BinaryIO

from records.errors import EnvironmentFault
from search.exporting.columns import Cell, Document, columns_of

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\n")
_NUMBERS = (bool, int, float)


def write_jsonl(documents: Sequence[Document], out: BinaryIO) -> None:
    """Write one object on each line."""
    for document in documents:
        text = json.dumps(document, allow_nan=False, ensure_ascii=False)
        out.write(f"{text}\n".encode("utf-8", "backslashreplace"))


def write_csv(documents: Sequence[Document], out: BinaryIO) -> None:
    """Write a heading and a row for each trial; what does not exist is an empty cell.

    A text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    text = io.TextIOWrapper(out, encoding="utf-8", errors="backslashreplace", newline="")
    columns = columns_of(documents)
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([_defused(column.heading) for column in columns])
    for row in zip(*(column.cells for column in columns), strict=True):
        rows.writerow([_cell(cell) for cell in row])
    text.flush()
    text.detach()


def write_parquet(documents: Sequence[Document], out: BinaryIO) -> None:
    """Write the columns of the CSV with their types; raises `EnvironmentFault` without pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise EnvironmentFault(
            "Parquet is written by pyarrow, which is not installed: "
            'pip install "cclsearch[parquet]", or use --format csv'
        ) from error
    kinds = {
        bool: pyarrow.bool_(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        str: pyarrow.string(),
    }
    columns = columns_of(documents)
    table = pyarrow.table(
        [pyarrow.array(_plain(column.cells), kinds[column.kind]) for column in columns],
        names=[column.heading for column in columns],
    )
    pyarrow.parquet.write_table(table, out)


def _plain(cells: Sequence[Cell]) -> list[Cell]:
    """Texts without what is no Unicode, which Parquet does not hold."""
    return [
        cell.encode("utf-8", "backslashreplace").decode() if isinstance(cell, str) else cell
        for cell in cells
    ]


def _cell(cell: Cell) -> str:
    if cell is None:
        return ""
    return repr(cell) if isinstance(cell, _NUMBERS) else _defused(cell)


def _defused(text: str) -> str:
    """A text that no program runs, and with one kind of line ends, which is quoted."""
    text = "\n".join(text.splitlines()) if "\r" in text else text
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
