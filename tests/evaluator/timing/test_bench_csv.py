"""Benchmark CSV files: what is read from them, unrounded, and what is refused by name."""

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.timing.bench_csv import NEEDED, BenchPoint, BenchRow, read_bench
from records.errors import StudyError

ROW = {
    "Collective": "all_reduce",
    "ReduceOp": "sum",
    "DType": "float32",
    "SendMsgSize(B)": "1024",
    "Ranks": "8",
    "DispatchMode": "sync",
    "SyncInterval": "0",
    "LatAvg(us)": "12.5",
}
WORDS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), min_size=1)


def written(path, *rows, columns=None):
    columns = columns or list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, columns, restval="")
    table.writeheader()
    table.writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    return path


def read(tmp_path, **changes):
    return read_bench(written(tmp_path / "a.csv", ROW | changes))


def test_a_row_has_its_point_and_its_latency_wherever_its_columns_stand(tmp_path):
    columns = ["Host", *reversed(NEEDED), "LaunchId"]
    path = written(tmp_path / "a.csv", ROW | {"Host": "", "LaunchId": "7"}, columns=columns)
    path.write_text("\ufeff" + path.read_text() + "\n , ,\n")

    assert read_bench(path) == (
        BenchRow(
            point=BenchPoint(
                collective="all_reduce",
                operation="sum",
                dtype="float32",
                size_bytes=1024,
                rank_count=8,
                dispatch_mode="sync",
                sync_interval=0,
            ),
            latency_us=12.5,
            columns=ROW | {"LaunchId": "7"},
        ),
    )
    (absent,) = read(tmp_path, **{"ReduceOp": "n/a", "LatAvg(us)": "n/a", "DeviceName": "n/a"})
    assert (absent.point.operation, absent.latency_us) == ("n/a", None)


def test_a_cell_cannot_steer_a_terminal(tmp_path):
    (row,) = read(tmp_path, DispatchMode="sync\x1b[2J", CommAdapter="c10d\x07")

    assert row.point.dispatch_mode == "sync\N{REPLACEMENT CHARACTER}[2J"
    assert row.columns["CommAdapter"] == "c10d\N{REPLACEMENT CHARACTER}"


def test_a_folder_is_read_as_one_table(tmp_path):
    written(tmp_path / "b.csv", ROW | {"Collective": "broadcast"})
    written(tmp_path / "a.csv", ROW)
    (tmp_path / "notes.txt").write_text("no table")

    assert [row.point.collective for row in read_bench(tmp_path)] == ["all_reduce", "broadcast"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"Ranks": "eight"}, "line 2: Ranks is 'eight'; it must be a whole number"),
        ({"SendMsgSize(B)": "1024.0"}, "line 2: SendMsgSize(B) is '1024.0'"),
        ({"Ranks": "9" * 5000}, "line 2: Ranks is '9999"),
        ({"SyncInterval": "\u0663"}, "line 2: SyncInterval is '\u0663'"),
        ({"LatAvg(us)": "fast"}, "line 2: LatAvg(us) is 'fast'; it must be a number, or n/a"),
        ({"LatAvg(us)": "nan"}, "line 2: LatAvg(us) is 'nan'"),
    ],
)
def test_a_cell_that_is_no_number_is_named(tmp_path, changes, words):
    with pytest.raises(StudyError) as refusal:
        read(tmp_path, **changes)

    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "has no column"),
        (",".join(NEEDED[1:]).encode(), "has no column Collective; a benchmark CSV needs"),
        (",".join(NEEDED).encode(), "holds no results"),
        (f"{','.join(NEEDED)}\nall_reduce,sum\n".encode(), "line 2: has 2 cells for 8 columns"),
        (f"{','.join(NEEDED)},Ranks\n".encode(), "has column Ranks twice"),
        (b"\xff\xfe\x00", "cannot be read as CSV"),
        (f'{",".join(NEEDED)}\n"{"x" * 200_000}'.encode(), "cannot be read as CSV"),
    ],
)
def test_a_file_that_is_no_such_table_is_refused(tmp_path, content, words):
    (tmp_path / "a.csv").write_bytes(content)

    with pytest.raises(StudyError) as refusal:
        read_bench(tmp_path / "a.csv")

    assert words in str(refusal.value)
    with pytest.raises(StudyError, match="cannot be read as CSV"):
        read_bench(tmp_path / "none.csv")


def test_rows_of_two_adapters_would_pass_for_replicates_and_are_refused(tmp_path):
    adapters = ("c10d", "torchcomms")
    path = written(tmp_path / "a.csv", *(ROW | {"CommAdapter": name} for name in adapters))

    with pytest.raises(StudyError, match=r"several adapters \(c10d, torchcomms\)"):
        read_bench(path)


@settings(max_examples=50)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                **dict.fromkeys(("Collective", "ReduceOp", "DType", "DispatchMode"), WORDS),
                **{
                    name: st.integers(0, 2**63).map(str)
                    for name in ("SendMsgSize(B)", "Ranks", "SyncInterval")
                },
                "LatAvg(us)": st.floats(allow_nan=False, allow_infinity=False).map(repr),
            }
        ),
        min_size=1,
        max_size=4,
    )
)
def test_what_was_written_is_read_without_loss(tmp_path, rows):
    found = read_bench(written(tmp_path / "a.csv", *rows))

    assert [row.columns for row in found] == rows
    assert [row.latency_us for row in found] == [float(row["LatAvg(us)"]) for row in rows]
    assert [row.point.size_bytes for row in found] == [int(row["SendMsgSize(B)"]) for row in rows]


@settings(max_examples=100)
@given(rest=st.binary(max_size=200))
def test_any_bytes_are_rows_or_a_refusal(tmp_path, rest):
    (tmp_path / "a.csv").write_bytes(",".join(NEEDED).encode() + b"\n" + rest)

    try:
        rows = read_bench(tmp_path / "a.csv")
    except StudyError as refusal:
        assert str(tmp_path) in str(refusal)
    else:
        assert all(isinstance(row.point, BenchPoint) for row in rows)
