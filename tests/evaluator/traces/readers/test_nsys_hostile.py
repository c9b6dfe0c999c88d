"""Whatever an SQLite file holds, the Nsight Systems reader gives traces or a TraceError."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluator.traces.errors import TraceError
from evaluator.traces.model import RankTrace
from evaluator.traces.readers.files import ReadLimits
from evaluator.traces.readers.nsys.reader import read_devices

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


def changed(nsys, *statements, **tables):
    """An export that the statements were run on afterwards."""
    path = nsys.write(**({"kernels": [nsys.kernel(1, 2)]} | tables))
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)
    return path


def outcome(path: Path) -> TraceError | tuple[RankTrace, ...]:
    try:
        return read_devices(path)
    except TraceError as error:
        return error


@pytest.mark.parametrize(
    "content", [b"", b"no database", b"SQLite format 3\0", b"\x1f\x8b\x08", b"{}"]
)
def test_what_is_no_database_is_refused(tmp_path, content):
    path = tmp_path / "report.sqlite"
    path.write_bytes(content)
    with pytest.raises(TraceError):
        read_devices(path)


def test_what_is_no_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.sqlite")
    with pytest.raises(TraceError, match="no regular file"):
        read_devices(tmp_path / "pipe.sqlite")


def test_a_path_with_characters_of_an_address_is_read(nsys, tmp_path):
    odd = tmp_path / "a?mode=memory#%41.sqlite"
    nsys.write(kernels=[nsys.kernel(1, 2)]).rename(odd)
    assert len(read_devices(odd)) == 1


@pytest.mark.parametrize(
    "view",
    [
        "SELECT * FROM other",
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"
        " SELECT n AS start, n + 1 AS [end] FROM c",
    ],
)
def test_a_view_in_place_of_a_table_is_not_read(nsys, view):
    path = changed(
        nsys, f"ALTER TABLE {KERNELS} RENAME TO other", f"CREATE VIEW {KERNELS} AS {view}"
    )
    with pytest.raises(TraceError, match="no work of a device"):
        read_devices(path)


def test_a_view_that_is_listed_as_a_table_is_not_read(nsys):
    path = changed(
        nsys,
        f"ALTER TABLE {KERNELS} RENAME TO other",
        f"CREATE VIEW {KERNELS} AS SELECT * FROM {KERNELS}",
        "PRAGMA writable_schema = ON",
        f"UPDATE sqlite_master SET type = 'table' WHERE name = '{KERNELS}'",
    )
    assert isinstance(outcome(path), TraceError)


def test_a_column_that_is_computed_when_read_is_not_there(nsys):
    costly = "length(hex(zeroblob(100000000)))"
    path = changed(nsys, f"ALTER TABLE {KERNELS} ADD COLUMN graphId AS ({costly})")
    assert len(read_devices(path)) == 1


def test_a_trigger_changes_nothing(nsys):
    path = changed(
        nsys, f"CREATE TRIGGER t AFTER INSERT ON {KERNELS} BEGIN DELETE FROM {KERNELS}; END"
    )
    assert len(read_devices(path)) == 1


@pytest.mark.parametrize("value", ["'text'", "NULL", "1.5", "x'00'", "-5", str(2**63 - 1)])
def test_a_row_without_proper_times_is_left_out_and_told(nsys, value):
    path = changed(
        nsys,
        f"UPDATE {KERNELS} SET start = {value} WHERE start = 50",
        kernels=[nsys.kernel(1, 2), nsys.kernel(50, 60)],
    )
    [trace] = read_devices(path)
    assert trace.spans.count == 1
    assert trace.caveats[0] == "1 kernels without a proper start and end were left out"


@pytest.mark.parametrize("value", ["'text'", "NULL", "1.5", "x'00'", str(-(2**63)), str(2**63 - 1)])
@pytest.mark.parametrize(
    "column", ["deviceId", "globalPid", "streamId", "correlationId", "demangledName", "gridX"]
)
def test_any_value_in_any_column_is_borne(nsys, column, value):
    path = changed(nsys, f"UPDATE {KERNELS} SET {column} = {value}")
    [trace] = read_devices(path)
    assert trace.computing().total_ns == 1


def test_a_table_without_times_has_no_spans(nsys):
    path = changed(nsys, kernels=[{"deviceId": 0}])
    with pytest.raises(TraceError, match="no work of a device"):
        read_devices(path)


def test_text_that_is_not_utf_8_is_read_somehow(nsys):
    path = changed(nsys, "UPDATE StringIds SET value = CAST(x'ff67656d6d' AS TEXT) WHERE id = 1")
    [trace] = read_devices(path)
    assert trace.spans.names == ("\ufffdgemm",)


def test_a_name_of_many_megabytes_is_refused(nsys):
    path = changed(nsys, strings={1: "x" * 3_000_000})
    with pytest.raises(TraceError, match="too big"):
        read_devices(path)


def test_a_text_of_many_megabytes_that_names_no_span_is_no_matter(nsys):
    path = changed(nsys, strings={**nsys.STRINGS, 99: "x" * 3_000_000})
    assert len(read_devices(path)) == 1


def test_more_rows_than_the_limit_are_refused(nsys):
    path = nsys.write(kernels=[nsys.kernel(at, at + 1) for at in range(30)])
    with pytest.raises(TraceError, match="more than 20 events"):
        read_devices(path, ReadLimits(event_count=20))


def test_more_bytes_than_the_limit_are_refused(nsys):
    path = nsys.write(kernels=[nsys.kernel(1, 2)])
    with pytest.raises(TraceError, match="more than 100 bytes on disk"):
        read_devices(path, ReadLimits(file_bytes=100))


def test_thousands_of_devices_are_refused(nsys):
    path = nsys.write(kernels=[nsys.kernel(1, 2, device=number) for number in range(2000)])
    with pytest.raises(TraceError, match="names 2000 devices"):
        read_devices(path)


def test_pages_that_stand_for_many_rows_end_at_the_limit(nsys):
    """A page of the tree that points at one leaf 100 times makes 100 times its rows."""
    path = nsys.write(kernels=[nsys.kernel(at, at + 1) for at in range(2000)])
    content = bytearray(path.read_bytes())
    with closing(sqlite3.connect(path)) as database:
        [(root,)] = database.execute(f"SELECT rootpage FROM sqlite_master WHERE name = '{KERNELS}'")
    page = (root - 1) * 4096
    cells = [
        int.from_bytes(content[page + 12 + 2 * at : page + 14 + 2 * at]) + page
        for at in range(int.from_bytes(content[page + 3 : page + 5]))
    ]
    for cell in cells:
        content[cell : cell + 4] = content[cells[0] : cells[0] + 4]
    path.write_bytes(content)
    assert isinstance(outcome(path), TraceError | tuple)
    with pytest.raises(TraceError, match="events"):
        read_devices(path, ReadLimits(event_count=1000))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 1 << 15), st.binary(min_size=1, max_size=8)), max_size=12))
def test_a_damaged_file_is_read_or_refused(nsys, changes):
    if not nsys.path.exists():
        rows = [nsys.kernel(10 * at, 10 * at + 5, 1 + at % 3, call=at + 1) for at in range(40)]
        calls = [nsys.call(10 * at, 10 * at + 1, at + 1) for at in range(40)]
        nsys.write(kernels=rows, calls=calls, ranges=[nsys.marked(0, 400, "step 3")])
    content = bytearray(nsys.path.read_bytes())
    for place, piece in changes:
        content[place % len(content) : place % len(content) + len(piece)] = piece
    path = nsys.path.with_name("damaged.sqlite")
    path.write_bytes(content)
    assert isinstance(outcome(path), TraceError | tuple)
