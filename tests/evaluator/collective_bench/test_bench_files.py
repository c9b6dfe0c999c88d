"""The files of a benchmark: names, rows that are added, and files that are left alone."""

from dataclasses import replace

import pytest

from evaluator.collective_bench.record import HEADER, RECORDS, BenchRecord, ResultFiles, file_name
from evaluator.timing.bench_csv import read_bench
from evaluator.workloads.collectives.operations import Collective, Operation, PointStatus, ReduceOp
from records.codec import from_json
from records.errors import StoreError, StudyError
from tests.support.bench import record

BARRIER = Operation(collective=Collective.BARRIER, size_bytes=0)
ALL_REDUCE = ["all_reduce.csv"]


@pytest.fixture
def files(tmp_path):
    return ResultFiles(tmp_path / "c10d", adapter="c10d", swept=False)


@pytest.mark.parametrize(
    ("collective", "reduce_op", "swept", "name"),
    [
        ("all_reduce", "sum", False, "all_reduce.csv"),
        ("all_reduce", "min", False, "all_reduce_min.csv"),
        ("all_reduce", "sum", True, "all_reduce_sum.csv"),
        ("barrier", "sum", True, "barrier.csv"),
    ],
)
def test_a_file_is_named_after_its_collective_and_reduction(collective, reduce_op, swept, name):
    operation = Operation(
        collective=Collective(collective), size_bytes=4, reduce_op=ReduceOp(reduce_op)
    )
    assert file_name(operation, swept=swept) == name


def test_each_row_is_there_as_soon_as_it_is_added(files):
    files.check([*ALL_REDUCE, "barrier.csv"])
    counts = []
    for added in (record(), record(), record(BARRIER)):
        files.add(added)
        counts.append(len((files.folder / "all_reduce.csv").read_text().splitlines()))

    assert counts == [2, 3, 3]
    assert (files.folder / "barrier.csv").read_text().startswith(",".join(HEADER) + "\n")


def test_a_second_run_adds_replicates(files):
    for run in ("one", "two"):
        again = ResultFiles(files.folder, adapter="c10d", swept=False)
        again.check(ALL_REDUCE)
        again.add(record(run_id=run))

    rows = read_bench(files.folder)
    assert [row.columns["RunId"] for row in rows] == ["one", "two"]
    assert {row.point for row in rows} == {rows[0].point}


def test_what_was_not_measured_is_read_as_such(files):
    files.check(ALL_REDUCE)
    skipped = record(block_ns=())
    late = replace(skipped.point, status=PointStatus.TIMEOUT, reason='no "end", after\t3 s')
    files.add(skipped)
    files.add(replace(skipped, point=late))

    assert [row.latency_us for row in read_bench(files.folder)] == [None, None]


@pytest.mark.parametrize(
    "text", ["Collective,DType\n", ",".join(HEADER[:-1]) + "\n", "\n", "\x00\xff" * 9000]
)
def test_a_file_with_other_columns_is_refused_and_left_alone(files, text):
    files.folder.mkdir()
    path = files.folder / "all_reduce.csv"
    path.write_text(text, encoding="latin-1")

    with pytest.raises(StudyError, match=r"all_reduce\.csv: has other columns.* --output-dir$"):
        files.check(ALL_REDUCE)

    assert path.read_text(encoding="latin-1") == text


def test_a_file_whose_last_row_was_cut_off_is_refused(files):
    files.check(ALL_REDUCE)
    files.add(record())
    path = files.folder / "all_reduce.csv"
    path.write_text(path.read_text()[:-5])

    with pytest.raises(StudyError, match="its last row was cut off and should be removed; give"):
        files.check(ALL_REDUCE)


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_measured(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(StoreError, match="give another folder with --output-dir"):
        ResultFiles(tmp_path / "file" / "c10d", adapter="c10d", swept=False).check(ALL_REDUCE)


def test_results_of_two_adapters_never_share_a_folder(files):
    files.check(ALL_REDUCE)
    files.add(record())

    with pytest.raises(StudyError, match="holds results of c10d, not of mpi; give another folder"):
        ResultFiles(files.folder, adapter="mpi", swept=False).check(["barrier.csv"])


def test_other_tables_beside_ours_are_left_alone_and_an_empty_one_gets_its_header(files):
    files.folder.mkdir()
    (files.folder / "notes.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    (files.folder / "all_reduce.csv").touch()

    files.check(ALL_REDUCE)
    files.add(record())

    assert len(read_bench(files.folder / "all_reduce.csv")) == 1
    (line,) = (files.folder / RECORDS).read_text().splitlines()
    assert from_json(BenchRecord, line) == record()
