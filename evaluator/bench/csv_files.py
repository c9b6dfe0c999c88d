"""The files of a benchmark: a CSV for each collective and reduction, and all records as JSON lines.

A row is in its file as soon as it is known, and none that is there is ever changed.
"""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from evaluator.bench.columns import HEADER, row
from evaluator.bench.record import BenchRecord
from records.codec import to_json
from records.errors import StoreError, StudyError

RECORDS: Final = "records.jsonl"
ADAPTER: Final = "CommAdapter"
LINE_BYTES = 100_000


class ResultFiles:
    """Appends results to the files of one adapter's folder.

    `swept` tells whether every reduction has a file of its own name.
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
        name = file_name(record.params.collective_name, record.params.reduce_op, swept=self._swept)
        path = self.folder / name
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


def file_name(collective: str, reduce_op: str | None, *, swept: bool) -> str:
    """The CSV file of a point: one for each collective, and one for each way to reduce.

    Plain sums are named like the collective alone, unless reductions are swept.
    """
    named = reduce_op is not None and (swept or reduce_op != "sum")
    return f"{collective}_{reduce_op}.csv" if named else f"{collective}.csv"


def _fault(path: Path, adapter: str, *, is_added_to: bool) -> str | None:
    """Why results of an adapter cannot lie in or beside a file; None if they can."""
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
