"""Where records of a benchmark go: files of their adapter, a table or JSON, and a last word."""

from dataclasses import replace
from pathlib import Path

import pytest

from evaluator.collective_bench.record import BenchRecord
from evaluator.collective_bench.request import BenchContext, read_plan
from evaluator.collective_bench.run import AdapterChoice
from evaluator.timing.bench_csv import read_bench
from evaluator.workloads.collectives.operations import AdapterName, PointStatus
from records.codec import from_json
from search.collective_bench.run import Output
from tests.support.bench import record

WRONG = replace(
    record(),
    metrics=None,
    point=replace(record().point, status=PointStatus.WRONG_RESULT, reason="rank 1: 3 is not 4"),
)


@pytest.fixture
def output(tmp_path, monkeypatch):
    """Makes the output of a command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def make(*names, as_json=False, **options):
        asked = {"collective": "all_reduce", "as_json": as_json, **options}
        plan = read_plan(asked, BenchContext())
        requests = tuple(plan.request(AdapterName(name), "gloo") for name in names or ("c10d",))
        choice = AdapterChoice(requests=requests, left_out=("x is left out: it is not here",))
        return Output(plan, choice, as_json=as_json)

    return make


@pytest.mark.parametrize(
    ("options", "folders"),
    [
        ({}, []),
        ({"csv": True}, ["c10d"]),
        ({"csv": True, "output_dir": "a/b"}, ["a/b"]),
        ({"csv": True, "all_adapters": True}, ["c10d", "mpi"]),
        ({"csv": True, "all_adapters": True, "output_dir": "a"}, ["a/c10d", "a/mpi"]),
    ],
)
def test_results_lie_in_a_folder_of_their_adapter(output, options, folders):
    names = ("c10d", "mpi") if "all_adapters" in options else ("c10d",)
    made = output(*names, **options)
    for name in names:
        made.add(record(adapter=name))

    found = sorted(str(path.parent) for path in Path().rglob("all_reduce.csv"))
    assert found == folders
    assert [len(read_bench(Path(folder))) for folder in folders] == [1] * len(folders)


def test_records_are_printed_as_json_lines_and_nothing_else_on_stdout(output, capsys):
    made = output(as_json=True, csv=True)
    made.add(record())
    made.add(WRONG)
    made.end()

    printed = capsys.readouterr()
    assert [from_json(BenchRecord, line) for line in printed.out.splitlines()] == [record(), WRONG]
    assert "note: x is left out: it is not here\n" in printed.err


def test_a_wrong_result_is_no_measurement_and_is_told_at_the_end(output, capsys):
    made = output(csv=True, quiet=True)
    made.add(WRONG)
    made.end()

    assert made.bad == [WRONG]
    assert capsys.readouterr() == (
        "",
        "error: c10d: all_reduce sum float32 1024 B: wrong result: rank 1: 3 is not 4\n",
    )
    assert [row.latency_us for row in read_bench(Path("c10d"))] == [None]


def test_what_was_skipped_is_not_bad(output):
    made = output()
    made.add(record(block_ns=()))

    assert made.bad == []


def test_quiet_says_nothing(output, capsys):
    made = output(csv=True, quiet=True)
    made.add(record())
    made.end()

    assert capsys.readouterr() == ("", "")
