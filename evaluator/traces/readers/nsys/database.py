"""The SQLite export of Nsight Systems: bounded reading of plain tables as columns.

The file is of unknown origin. Host calls and NVTX ranges are read here, as all devices share
them.
"""

import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from itertools import chain, islice
from pathlib import Path
from typing import Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from evaluator.traces.model import Activity, Table
from evaluator.traces.readers.files import ReadLimits, pieces
from evaluator.traces.readers.marks import counted
from records.errors import TraceError

V = TypeVar("V", str, bytes)
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


_TIMES = {"start": -1, "end": -1}
_COLUMNS = {
    "start_ns": "start",
    "end_ns": "end",
    "process": "globalPid",
    "thread": "globalTid",
    "device": "deviceId",
    "stream": "streamId",
    "correlation": "correlationId",
}
"""What the columns of `Rows` are called in the tables of the file."""
_LATEST_NS = 1 << 61


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows(Table):
    """Columns of shape (rows,), in order of start: what ran on devices, or what the host called.

    `process`, `thread` and `device` are the numbers of the file, `name` indexes `names` of the
    database, `activity` holds `Activity` values. `source` and `target` are the devices of a copy
    from one to another, `blocks` those of a kernel's grid. -1 stands where there is no such thing.
    """

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    process: NDArray[np.int64]
    thread: NDArray[np.int64]
    device: NDArray[np.int64]
    stream: NDArray[np.int64]
    correlation: NDArray[np.int64]
    name: NDArray[np.int64]
    activity: NDArray[np.int64]
    bytes: NDArray[np.int64]
    blocks: NDArray[np.int64]
    source: NDArray[np.int64]
    target: NDArray[np.int64]

    @property
    def calls(self) -> NDArray[np.int64]:
        """Numbers that are equal for a call of a process and what it launched; -1: no call."""
        numbers = ((self.process >> 24) & 0x7FFFFFFF) << 32 | (self.correlation & 0xFFFFFFFF)
        return np.where(self.correlation > 0, numbers, -1)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """All rows of the parts, put in order of start."""
        whole = cls.concatenate(parts)
        return whole.select(np.argsort(whole.start_ns, kind="stable"))


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Texts of rows: `texts` has each once, `index` of shape (rows,) says whose is which."""

    texts: tuple[str, ...]
    index: NDArray[np.int64]

    @classmethod
    def of(cls, numbers: NDArray[np.int64], text_of: Callable[[int], str]) -> Self:
        """Name rows by a number that each has."""
        distinct, index = np.unique(numbers, return_inverse=True)
        return cls(tuple(map(text_of, distinct.tolist())), index)


@contextmanager
def open_database(path: Path, limits: ReadLimits) -> Iterator["NsysDatabase"]:
    """The database in a file, plain or packed; a packed one is unpacked into a separate folder.

    Raises TraceError, then and while it is read, when the file is not a SQLite database, is
    damaged, passes a limit, or takes longer to read than any sound one of its size.
    """
    if not path.is_file():
        raise TraceError(path, "is not a regular file")
    with tempfile.TemporaryDirectory(prefix="cclsearch-") as folder:
        place = path if _is_plain(path) else _unpacked(path, Path(folder) / "trace.sqlite", limits)
        size = place.stat().st_size
        if size > limits.file_bytes and place == path:
            raise TraceError(path, f"holds more than {limits.file_bytes} bytes on disk")
        steps = _STEPS_AT_LEAST + _STEPS_PER_BYTE * size
        try:
            with closing(_connection(place, steps)) as connection:
                # Each text is read once, those of strings that have several uses a few times.
                yield NsysDatabase(path, connection, limits.event_count, _USES * size)
        # SQLite quotes what it refuses, which need not be text.
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if getattr(error, "sqlite_errorname", "") == "SQLITE_INTERRUPT":
                what = "takes longer to read than any sound file of its size"
                raise TraceError(path, what) from error
            raise TraceError(path, f"cannot be read as SQLite: {error}") from error


class NsysDatabase:
    """Tables by their names and columns; what is absent reads as no rows or as a default.

    It keeps the names of the rows that are read and counts what has to be left out.
    """

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
        self._names: dict[str, int] = {}
        self._left_out: Counter[str] = Counter()
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
            # The last field marks columns that are computed when they are read.
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
            f"CASE typeof({_quoted(name)}) WHEN 'integer' THEN {_quoted(name)} ELSE {default} END"
            if name in columns | {"rowid"}
            else str(default)
            for name, default in wanted.items()
        )
        rows = self._connection.execute(f"SELECT {values} FROM {_quoted(table)}")
        blocks = []
        while True:
            block = np.fromiter(chain.from_iterable(islice(rows, _ROWS_AT_ONCE)), np.int64)
            self._rows_left -= block.size // len(wanted)
            if self._rows_left < 0:
                raise TraceError(self._path, f"holds more than {self._row_limit} events")
            blocks.append(block.reshape(-1, len(wanted)))
            if not block.size:
                break
        # One contiguous array per column: they outlive the block of rows.
        return dict(zip(wanted, np.ascontiguousarray(np.concatenate(blocks).T), strict=True))

    def values(self, kind: type[V], table: str, column: str, rows: Collection[int]) -> dict[int, V]:
        """The texts, or blobs, of one column in the rows of these numbers (SQLite's rowid)."""
        if column not in self.columns(table):
            return {}
        query = f"SELECT {_quoted(column)} FROM {_quoted(table)} WHERE rowid = ?"
        found: dict[int, V] = {}
        for row in rows:
            value = next(self._connection.execute(query, (row,)), (None,))[0]
            if isinstance(value, str | bytes):
                self._bytes_left -= len(value)
            if self._bytes_left < 0:
                raise TraceError(self._path, "holds texts larger than itself")
            if isinstance(value, kind):
                found[row] = value
        return found

    def named(self, table: str, key: str, value: str, wanted: NDArray[np.int64]) -> dict[int, str]:
        """The texts of the column `value` where the column `key` is one of the wanted numbers."""
        keys = self._keys.get(table) or self.integers(table, {key: -1, "rowid": -1})
        self._keys[table] = keys
        chosen = np.flatnonzero(np.isin(keys[key], wanted))
        row_of = dict(zip(keys[key][chosen].tolist(), keys["rowid"][chosen].tolist(), strict=True))
        texts = self.values(str, table, value, row_of.values())
        return {number: texts[row] for number, row in row_of.items() if row in texts}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all spans so far."""
        return tuple(self._names)

    @property
    def caveats(self) -> list[str]:
        """What was left out so far, as text."""
        return counted(self._left_out)

    def timed(
        self,
        table: str,
        what: str,
        wanted: Mapping[str, int],
        only: tuple[str, Sequence[int]] | None = None,
    ) -> Integers:
        """Columns of the rows of a table that start and, not earlier, end.

        `only` names a column and the values that rows of interest have there.
        """
        columns = self.integers(table, {**_TIMES, **wanted})
        if only:
            columns = _kept(columns, np.isin(columns[only[0]], only[1]))
        start, end = columns["start"], columns["end"]
        sound = (start >= 0) & (start <= end) & (end < _LATEST_NS)
        if sound.all():
            return columns
        self._left_out[f"{what} without a proper start and end were left out"] += int(
            np.sum(~sound)
        )
        return _kept(columns, sound)

    def labels(self, ids: NDArray[np.int64], unknown: str) -> Labels:
        """The strings of these numbers."""
        numbers, index = np.unique(ids, return_inverse=True)
        found = self.named("StringIds", "id", "value", numbers)
        return Labels(tuple(found.get(number, unknown) for number in numbers.tolist()), index)

    def rows(
        self,
        columns: Integers,
        labels: Labels,
        activity: Activity | NDArray[np.integer],
        **more: NDArray[np.int64],
    ) -> Rows:
        """Rows of timed columns with these names; what neither columns nor `more` have is -1."""
        names, count = self._names, columns["start"].size
        numbers = [names.setdefault(text, len(names)) for text in labels.texts]
        given = {
            **{name: columns[column] for name, column in _COLUMNS.items() if column in columns},
            "name": np.array(numbers, np.int64)[labels.index],
            "activity": np.broadcast_to(activity, count).astype(np.int64),
            **more,
        }
        none = np.full(count, -1, np.int64)
        return Rows(**{field.name: given.get(field.name, none) for field in fields(Rows)})


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
        raise TraceError(path, "is not a SQLite database")
    return to


def _connection(path: Path, step_count: int) -> sqlite3.Connection:
    """A connection that writes nothing, never waits and gives up after many steps."""
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


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _kept(columns: Integers, kept: NDArray[np.bool_]) -> Integers:
    return {name: column[kept] for name, column in columns.items()}


NUMBER_BITS = (1 << 24) - 1
"""Of a global id: the number of a thread, or of a process when shifted by as many."""
# Waits for a stream or a context; the other kinds are also recorded where nothing waits.
_WAITS = {3: "Stream sync", 4: "Context sync"}
_RANGES = (59, 60, 70, 71)  # pushed and popped, or started and ended


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranges:
    """NVTX ranges in order of start, columns of shape (ranges,), and the text of each.

    `row` is the number of the row in the file, `payload` that of the string with the payload, -1
    where the payload stands in the row.
    """

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    thread: NDArray[np.int64]
    row: NDArray[np.int64]
    payload: NDArray[np.int64]
    labels: Labels


def process_of(thread: NDArray[np.int64]) -> NDArray[np.int64]:
    """The global ids of the processes of threads, by the threads' global ids."""
    return thread & ~NUMBER_BITS


def host_calls(database: NsysDatabase) -> Rows:
    """Calls into the runtime and the driver, and waits that no call was recorded for.

    A call whose name says so is SYNC, any other is LAUNCH for now: it is one if it turns out that
    something was launched. Older files hold calls twice: of one number, the first is kept.
    """
    columns = database.timed(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "host calls",
        {"globalTid": 0, "correlationId": 0, "nameId": -1},
    )
    labels = database.labels(columns["nameId"], "unnamed call")
    waits = np.array(["Synchronize" in text for text in labels.texts], bool)[labels.index]
    activity = np.where(waits, Activity.SYNC, Activity.LAUNCH)
    calls = database.rows(columns, labels, activity, process=process_of(columns["globalTid"]))
    calls = calls.select(np.argsort(calls.start_ns, kind="stable"))
    numbers = calls.calls
    kept = numbers < 0
    kept[np.unique(numbers, return_index=True)[1]] = True
    columns = database.timed(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        "waits",
        {"globalPid": 0, "correlationId": 0, "syncType": 0},
    )
    labels = Labels.of(columns["syncType"], lambda kind: _WAITS.get(kind, ""))
    others = database.rows(columns, labels, Activity.SYNC)
    blocking = np.isin(columns["syncType"], list(_WAITS)) & ~np.isin(others.calls, numbers)
    return Rows.joined((calls.select(kept), others.select(blocking)))


def nvtx_ranges(database: NsysDatabase) -> Ranges:
    """Every NVTX range that ends; its text stands in its row or among the strings of the file."""
    columns = database.timed(
        "NVTX_EVENTS",
        "ranges",
        {"eventType": -1, "globalTid": 0, "textId": -1, "jsonTextId": -1, "rowid": -1},
        only=("eventType", _RANGES),
    )
    chosen = np.argsort(columns["start"], kind="stable")
    row = columns["rowid"][chosen]
    inline = database.values(
        str, "NVTX_EVENTS", "text", row[columns["textId"][chosen] < 0].tolist()
    )
    shared = database.labels(columns["textId"][chosen], "")
    texts: dict[str, int] = {}
    index = [
        texts.setdefault(inline.get(number) or shared.texts[label], len(texts))
        for number, label in zip(row.tolist(), shared.index.tolist(), strict=True)
    ]
    return Ranges(
        start_ns=columns["start"][chosen],
        end_ns=columns["end"][chosen],
        thread=columns["globalTid"][chosen],
        row=row,
        payload=columns["jsonTextId"][chosen],
        labels=Labels(tuple(texts), np.array(index, np.int64)),
    )
