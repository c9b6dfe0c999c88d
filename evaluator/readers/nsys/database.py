"""Reads columns out of an SQLite file of unknown origin: bounded, and only from plain tables."""

import sqlite3
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from evaluator.readers.files import ReadLimits, pieces
from evaluator.traces.errors import TraceError

Integers: TypeAlias = dict[str, NDArray[np.int64]]

_MAGIC = b"SQLite format 3\0"
_ROWS_AT_ONCE = 1 << 16
_LARGEST_VALUE_BYTES = 1 << 20
_LARGEST_COLUMN_COUNT = 200
# What SQLite may do: a row takes some 5 steps per column, and no table has rows that take more
# than these for each of its bytes. Pages that point at each other would take forever.
_STEPS_AT_ONCE = 10_000
_STEPS_AT_LEAST = 50_000_000
_STEPS_PER_BYTE = 16
_USES = 8


@contextmanager
def open_database(path: Path, limits: ReadLimits) -> Iterator["Database"]:
    """The database in a file, plain or packed; a packed one is unpacked into a folder of its own.

    Raises TraceError, then and while it is read, when the file is no SQLite database, is damaged,
    passes a limit, or takes longer to read than any sound one of its size.
    """
    if not path.is_file():
        raise TraceError(path, "is no regular file")
    with tempfile.TemporaryDirectory(prefix="cclsearch-") as folder:
        place = path if _is_plain(path) else _unpacked(path, Path(folder) / "trace.sqlite", limits)
        size = place.stat().st_size
        if size > limits.file_bytes and place == path:
            raise TraceError(path, f"holds more than {limits.file_bytes} bytes on disk")
        steps = _STEPS_AT_LEAST + _STEPS_PER_BYTE * size
        try:
            with closing(_connection(place, steps)) as connection:
                # Each text is read once, those of strings that have several uses a few times.
                yield Database(path, connection, limits.event_count, _USES * size)
        # SQLite quotes what it refuses, which need not be text.
        except (sqlite3.Error, UnicodeDecodeError) as error:
            told = "takes longer to read than any sound file of its size" if _gave_up(error) else ""
            raise TraceError(path, told or f"cannot be read as SQLite: {error}") from error


class Database:
    """Tables by their names and columns; what is absent reads as no rows or as a default."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, row_count: int, value_bytes: int
    ) -> None:
        self._path = path
        self._connection = connection
        self._row_limit = row_count
        self._rows_left = row_count
        self._bytes_left = value_bytes
        self._columns: dict[str, frozenset[str]] = {}
        self._keys: dict[str, Integers] = {}
        self._tables = frozenset(
            name
            for name, sql in connection.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
            )
            # Views and virtual tables run what their maker wrote, whatever they are listed as.
            if isinstance(name, str) and str(sql).upper().startswith("CREATE TABLE")
        )

    def columns(self, table: str) -> frozenset[str]:
        """Names of the stored columns of a table; none when there is no such table."""
        if table not in self._columns:
            listed = islice(
                self._connection.execute(f"PRAGMA table_xinfo({_quoted(table)})")
                if table in self._tables
                else (),
                _LARGEST_COLUMN_COUNT,
            )
            # The last field tells columns that are computed when they are read.
            self._columns[table] = frozenset(row[1] for row in listed if row[-1] == 0)
        return self._columns[table]

    def integers(self, table: str, wanted: Mapping[str, int]) -> Integers:
        """Columns of a table, int64 of shape (rows,), with a default each.

        The default stands where a column is absent or a value is no integer.
        """
        columns = self.columns(table)
        if not columns:
            return {name: np.empty(0, np.int64) for name in wanted}
        values = ", ".join(
            _integer(name, default) if name in columns | {"rowid"} else str(default)
            for name, default in wanted.items()
        )
        rows = self._connection.execute(f"SELECT {values} FROM {_quoted(table)}")
        blocks = []
        while True:
            block = np.fromiter(chain.from_iterable(islice(rows, _ROWS_AT_ONCE)), np.int64)
            self._count(block.size // len(wanted))
            blocks.append(block.reshape(-1, len(wanted)))
            if not block.size:
                break
        # One contiguous array per column: they outlive the block of rows.
        return dict(zip(wanted, np.ascontiguousarray(np.concatenate(blocks).T), strict=True))

    def texts(self, table: str, column: str, rows: Collection[int]) -> dict[int, str]:
        """The texts of one column in the rows of these numbers (SQLite's rowid)."""
        found = self._values(table, column, rows)
        return {row: value for row, value in found if isinstance(value, str)}

    def blobs(self, table: str, column: str, rows: Collection[int]) -> dict[int, bytes]:
        """The binary values of one column in the rows of these numbers (SQLite's rowid)."""
        found = self._values(table, column, rows)
        return {row: value for row, value in found if isinstance(value, bytes)}

    def named(self, table: str, key: str, value: str, wanted: NDArray[np.int64]) -> dict[int, str]:
        """The texts of the column `value` where the column `key` is one of the wanted numbers."""
        keys = self._keys.get(table) or self.integers(table, {key: -1, "rowid": -1})
        self._keys[table] = keys
        chosen = np.flatnonzero(np.isin(keys[key], wanted))
        row_of = dict(zip(keys[key][chosen].tolist(), keys["rowid"][chosen].tolist(), strict=True))
        texts = self.texts(table, value, row_of.values())
        return {number: texts[row] for number, row in row_of.items() if row in texts}

    def _values(
        self, table: str, column: str, rows: Collection[int]
    ) -> Iterator[tuple[int, object]]:
        if column not in self.columns(table):
            return
        query = f"SELECT {_quoted(column)} FROM {_quoted(table)} WHERE rowid = ?"
        for row in rows:
            value = next(self._connection.execute(query, (row,)), (None,))[0]
            if isinstance(value, str | bytes):
                self._bytes_left -= len(value)
            if self._bytes_left < 0:
                raise TraceError(self._path, "holds texts larger than itself")
            yield row, value

    def _count(self, row_count: int) -> None:
        self._rows_left -= row_count
        if self._rows_left < 0:
            raise TraceError(self._path, f"holds more than {self._row_limit} events")


def _is_plain(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise TraceError(path, f"cannot be read: {error}") from error


def _unpacked(path: Path, to: Path, limits: ReadLimits) -> Path:
    begun = False
    try:
        with to.open("xb") as file:
            for piece in pieces(path, limits):
                begun = begun or piece.startswith(_MAGIC)
                if not begun:
                    break
                file.write(piece)
    except OSError as error:
        raise TraceError(path, f"cannot be unpacked to {to.parent}: {error}") from error
    if not begun:
        raise TraceError(path, "is no SQLite database")
    return to


def _connection(path: Path, step_count: int) -> sqlite3.Connection:
    """A connection that writes nothing, waits for nobody and gives up after so many steps."""
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    connection.text_factory = lambda text: text.decode(errors="replace")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE_BYTES)
    steps_left = step_count

    def passed() -> bool:
        nonlocal steps_left
        steps_left -= _STEPS_AT_ONCE
        return steps_left < 0

    connection.set_progress_handler(passed, _STEPS_AT_ONCE)
    for setting in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0"):
        connection.execute(f"PRAGMA {setting}")
    return connection


def _gave_up(error: Exception) -> bool:
    return getattr(error, "sqlite_errorname", "") == "SQLITE_INTERRUPT"


def _integer(column: str, default: int) -> str:
    name = _quoted(column)
    return f"CASE typeof({name}) WHEN 'integer' THEN {name} ELSE {default} END"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
