"""`bench collectives` as it is typed: misuse, what it prints, what it writes."""

from pathlib import Path

import pytest

from evaluator.collective_bench.record import HEADER, BenchRecord, terminal_header
from evaluator.rank.main import RankNumbers
from evaluator.timing.bench_csv import read_bench
from evaluator.workloads.collectives.operations import AdapterName
from evaluator.workloads.collectives.sweep import availability
from records.codec import from_json
from search.collective_bench import run as running
from search.collective_bench.run import bench_context

SMALL = ("--max-size", "8", "--iters", "20", "--sync-interval", "5", "--device", "cpu")
needs_mpi = pytest.mark.skipif(
    availability(AdapterName.MPI) is not None, reason=str(availability(AdapterName.MPI))
)


@pytest.fixture
def bench(cclsearch, monkeypatch):
    """Runs the command in a process that no launcher started."""
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    return lambda *arguments: cclsearch("bench", "collectives", *arguments)


def test_all_options_that_cannot_be_read_are_reported_with_2_and_where_help_is(bench):
    ended = bench("all_redcue", "--iters", "ten", "--dtype", "fp8", "--warmup", "-1", "-q")

    lines = ended.err.splitlines()
    assert (ended.code, ended.out) == (2, "")
    assert [line.split(":")[1] for line in lines[:-1]] == [
        *(" E-collective", " E-dtype", " E-warmup", " E-iters"),
    ]
    assert "did you mean 'all_reduce'?" in lines[0]
    assert lines[-1] == "Try 'cclsearch bench collectives --help' for help."
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("all_reduce", "--reduce_op", "sum"), "No such option: --reduce_op"),
        (("all_reduce", "--reduce_op", "sum"), "--reduce-op"),
        (("all_reduce", "--dtype"), "'--dtype' requires an argument"),
        ((), "error: E-collective: collective '': known are all_reduce"),
        (("all_reduce", "--c10d", "--mpi"), "E-comm-adapter: c10d and mpi are several adapters"),
        (("all_reduce", "--quiet"), "E-quiet: --quiet without --csv would leave nothing"),
    ],
)
def test_a_misuse_is_told_before_anything_starts(bench, arguments, words):
    ended = bench(*arguments)

    assert (ended.code, ended.out) == (2, "")
    assert words in ended.err


def test_who_asks_for_a_window_is_shown_the_sync_interval(bench):
    ended = bench("all_reduce", "--window", "4")

    assert (ended.code, "--sync-interval" in ended.err) == (2, True)


def test_a_library_that_is_not_here_is_named_with_the_reason(bench):
    reason = availability(AdapterName.TORCHCOMMS)
    if reason is None:
        pytest.skip("torchcomms can be used here")

    ended = bench("all_reduce", "--torchcomms")

    assert (ended.code, ended.out) == (4, "")
    assert ended.err == f"error: torchcomms is left out: {reason}\n"


def test_a_file_of_somebody_else_is_refused_before_anything_starts(bench):
    Path("mine").mkdir()
    Path("mine/all_reduce.csv").write_text("a,b\n1,2\n", encoding="utf-8")

    ended = bench("all_reduce", *SMALL, "--c10d", "--csv", "--output-dir", "mine")

    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        "error: mine/all_reduce.csv: has other columns than we write; give another folder with "
        "--output-dir\n"
    )


@pytest.mark.parametrize(("rank", "told"), [("0", True), ("1", False)])
def test_of_ranks_that_somebody_started_only_the_first_tells_a_misuse(
    bench, monkeypatch, rank, told
):
    monkeypatch.setattr(running, "SILENT_RANK_S", 0)
    for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)

    ended = bench("all_reduce", "--mpi", "--nproc-per-node", "3", "--rounds", "2")

    assert (ended.code, ended.out) == (2, "")
    assert [line.split(":")[1] for line in ended.err.splitlines()[:-1]] == (
        [" E-comm-adapter", " E-nproc-per-node", " E-rounds"] if told else []
    )


def test_a_rank_that_is_told_only_a_part_of_its_numbers_says_what_to_do(bench, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("LOCAL_RANK", raising=False)

    ended = bench("all_reduce")

    assert (ended.code, ended.out) == (4, "")
    assert "the environment gives no number in LOCAL_RANK; start it with torchrun" in ended.err


def test_without_a_meeting_place_ranks_of_mpirun_use_mpi_alone(monkeypatch):
    for name in ("RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("RANK", "LOCAL_RANK", "SIZE"):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", "1")

    started = bench_context()

    assert started.numbers == RankNumbers(rank=1, local_rank=1, world_size=1)
    assert set(started.closed) == set(AdapterName) - {AdapterName.MPI}
    assert not started.prints


def test_one_launch_prints_a_table_and_writes_what_it_measured(bench):
    ended = bench("all_reduce", *SMALL, "--c10d", "--csv")

    lines = ended.out.splitlines()
    assert ended.code == 0, ended.err
    assert lines[0].startswith("c10d on gloo, cpu n/a, torch 2.")
    assert lines[2:4] == ["=== AllReduce Performance ===", terminal_header()]
    assert [line.split()[:5] for line in lines[4:6]] == [
        ["all_reduce", "float32", "sum", size, "2"] for size in ("4", "8")
    ]
    assert lines[-1] == "written: c10d"
    rows = read_bench(Path("c10d"))
    assert tuple(rows[0].columns) == HEADER
    assert [row.columns["Samples"] for row in rows] == ["4", "4"]


@needs_mpi
def test_all_libraries_take_turns_quietly_and_can_be_compared(bench, cclsearch):
    ended = bench(
        *("barrier", *SMALL, "--all-comm-adapters", "--rounds", "2"),
        *("--csv", "--output-dir", "out", "-q"),
    )

    assert (ended.code, ended.out, ended.err) == (0, "", "")
    records = {
        name: [
            from_json(BenchRecord, line)
            for line in Path(f"out/{name}/records.jsonl").read_text("utf-8").splitlines()
        ]
        for name in ("c10d", "mpi")
    }
    for name, of_adapter in records.items():
        assert [record.place.round for record in of_adapter] == [0, 1]
        assert {record.params.comm_adapter for record in of_adapter} == {name}
        assert {len(record.point.block_ns) for record in of_adapter} == {2}
        assert len(read_bench(Path("out", name, "barrier.csv"))) == 2
    first = [(r.place.round, r.place.order) for each in records.values() for r in each]
    assert sorted(first) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len({r.place.run_id for each in records.values() for r in each}) == 1
    assert "verdict: undecided" in cclsearch("compare", "out/c10d", "out/mpi").out
