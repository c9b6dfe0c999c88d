"""`bench collectives`: misuse, what it prints and writes, ranks that others start or that die."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import cclsearch as api
from evaluator.collective_bench.record import HEADER, BenchRecord, terminal_header, terminal_row
from evaluator.collective_bench.request import BenchContext, read_plan
from evaluator.collective_bench.run import AdapterChoice
from evaluator.launchers.limits import descendants
from evaluator.machine import mpi_library, mpirun_command, mpirun_environment
from evaluator.rank.protocol import RankNumbers
from evaluator.timing.bench_csv import read_bench
from evaluator.workloads.collectives.operations import (
    AdapterName,
    Collective,
    Operation,
    PointStatus,
)
from evaluator.workloads.collectives.sweep import availability
from records.codec import from_json
from search.collective_bench import run as running
from search.collective_bench.run import Output, Table, bench_context
from tests.support import records as testing
from tests.support.bench import record
from tests.support.service import CCLSEARCH, run_cclsearch

SMALL = ("--max-size", "8", "--iters", "20", "--device", "cpu")
LIMIT_S = 240
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
        ("all_reduce --reduce_op sum", "No such option: --reduce_op"),
        ("all_reduce --reduce_op sum", "--reduce-op"),
        ("all_reduce --dtype", "'--dtype' requires an argument"),
        ("", "error: E-collective: collective '': known are all_reduce"),
        ("all_reduce --c10d --mpi", "E-comm-adapter: c10d and mpi are several adapters"),
        ("all_reduce --quiet", "E-quiet: --quiet without --csv would leave nothing"),
        (
            f"all_reduce {' '.join(SMALL)} --c10d --csv --output-dir mine",
            "error: mine/all_reduce.csv: has other columns than we write; give another folder with "
            "--output-dir\n",
        ),
    ],
)
def test_a_misuse_is_told_before_anything_starts(bench, arguments, words):
    Path("mine").mkdir()
    Path("mine/all_reduce.csv").write_text("a,b\n1,2\n", encoding="utf-8")

    ended = bench(*arguments.split())

    assert (ended.code, ended.out) == (2, "")
    assert words in ended.err


def test_a_library_that_is_not_here_is_named_with_the_reason(bench):
    reason = availability(AdapterName.TORCHCOMMS)
    if reason is None:
        pytest.skip("torchcomms can be used here")

    ended = bench("all_reduce", "--torchcomms")

    assert (ended.code, ended.out) == (4, "")
    assert ended.err == f"error: torchcomms is left out: {reason}\n"


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


# What it prints and writes.

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


def test_quiet_tells_only_a_wrong_result_which_is_no_measurement(output, capsys):
    made = output(csv=True, quiet=True)
    for each in (record(), record(block_ns=()), WRONG):
        made.add(each)
    made.end()

    assert made.bad == [WRONG]
    assert capsys.readouterr() == (
        "",
        "error: c10d: all_reduce sum float32 1024 B: wrong result: rank 1: 3 is not 4\n",
    )
    latencies = [row.latency_us for row in read_bench(Path("c10d"))]
    assert [latency is None for latency in latencies] == [False, True, True]


def test_what_is_new_stands_above_a_row_and_nothing_twice(capsys):
    barrier = Operation(collective=Collective.BARRIER, size_bytes=0)
    scatter = Operation(collective=Collective.REDUCE_SCATTER_SINGLE, size_bytes=1024)
    rows = [record(), record(), record(barrier), record(scatter, round_=1)]
    table = Table()
    table.end_launch()
    for row in rows:
        table.add(row)
    table.end_launch()

    facts = (
        "c10d on gloo, cpu n/a, torch 2.13.0, sync, warmup 5, iters 20, sync interval 10, "
        "bandwidth by nccl-tests, round {} of 1"
    )
    assert capsys.readouterr().out.splitlines() == [
        facts.format(1),
        *("", "=== AllReduce Performance ===", terminal_header()),
        *(terminal_row(rows[0]), terminal_row(rows[1])),
        *("", "=== Barrier Performance ===", terminal_header(), terminal_row(rows[2]), ""),
        facts.format(2),
        *("", "=== ReduceScatterSingle Performance ===", terminal_header()),
        *(terminal_row(rows[3]), ""),
    ]


def test_a_machine_that_was_busy_with_other_things_is_warned_of(capsys):
    quiet = testing.conditions(load_average=0.0, others_cpu_share=0.0, steal_share=0.0)
    for conditions in (None, quiet, replace(quiet, others_cpu_share=0.5)):
        table = Table()
        table.add(replace(record(), conditions=conditions))
        table.end_launch()

    warning = "note: while c10d ran, other processes used 50% of the cores\n"
    assert capsys.readouterr().err == warning


# Real launches.


@needs_mpi
@pytest.mark.slow
def test_all_libraries_take_turns_and_what_they_measured_can_be_compared(bench, cclsearch):
    ended = bench(
        *("all_reduce", *SMALL, "--sync-interval", "5", "--all-comm-adapters", "--csv"),
        *("--output-dir", "out"),
    )

    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    places = []
    for name, library in (("c10d", "c10d on gloo, cpu n/a, torch 2."), ("mpi", "mpi on ")):
        start = next(place for place, line in enumerate(lines) if line.startswith(library))
        table = lines[start + 2 : start + 6]
        assert table[:2] == ["=== AllReduce Performance ===", terminal_header()]
        assert [line.split()[:5] for line in table[2:]] == [
            ["all_reduce", "float32", "sum", size, "2"] for size in ("4", "8")
        ]
        rows = read_bench(Path("out", name))
        assert tuple(rows[0].columns) == HEADER
        assert [row.columns["Samples"] for row in rows] == ["4", "4"]
        kept = Path(f"out/{name}/records.jsonl").read_text("utf-8").splitlines()
        records = [from_json(BenchRecord, line) for line in kept]
        assert {record.params.comm_adapter for record in records} == {name}
        assert {len(record.point.block_ns) for record in records} == {2}
        places += [(each.place.run_id, each.place.round, each.place.order) for each in records]
    (run,) = {run for run, _, _ in places}
    assert sorted(set(places)) == [(run, 0, 0), (run, 0, 1)]
    assert "written: out" in lines[-1]
    assert "verdicts: 2 undecided" in cclsearch("compare", "out/c10d", "out/mpi").out


BENCH = (CCLSEARCH, "bench", "collectives")
TORCHRUN = (
    *(sys.executable, "-P", "-m", "torch.distributed.run"),
    *("--standalone", "--nproc-per-node=2", "--no-python"),
)


@pytest.fixture
def start(tmp_path):
    """Starts a program in an empty folder; none of its processes outlives the test."""
    started = []

    def run(*command):
        path = f"{Path(sys.executable).parent}:{os.defpath}"
        started.append(
            subprocess.Popen(
                command,
                cwd=tmp_path,
                env={"PATH": path, "HOME": str(tmp_path), **mpirun_environment()},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        return started[-1]

    yield run
    for process in started:
        for pid in (*descendants(process.pid), process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def rank_processes(above: int, variable: bytes) -> list[int]:
    """Processes of our rank program that were told this."""
    found = []
    for pid in descendants(above):
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            told = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if b"evaluator.workloads.collectives.sweep" in command and variable in told:
                found.append(pid)
    return found


def test_under_torchrun_the_first_rank_alone_speaks_and_writes(start, tmp_path):
    process = start(*TORCHRUN, *BENCH, "gather", *SMALL, "--all-comm-adapters", "--csv")
    out, err = process.communicate(timeout=LIMIT_S)

    assert process.returncode == 0, err
    assert out.count("=== Gather Performance ===") == 1
    assert len([line for line in out.splitlines() if line.startswith("gather ")]) == 2
    assert err.count("mpi is left out: cannot join ranks that torchrun started") == 1
    assert [row.point.rank_count for row in read_bench(tmp_path / "c10d")] == [2, 2]


@needs_mpi
@pytest.mark.slow
def test_under_mpirun_it_measures_mpi(start, tmp_path):
    process = start(*mpirun_command(2, BENCH), "scatter", *SMALL, "--csv", "--quiet")
    out, err = process.communicate(timeout=LIMIT_S)

    assert (process.returncode, out, err) == (0, "", "")
    rows = read_bench(tmp_path / "mpi")
    assert [(row.point.size_bytes, row.point.rank_count) for row in rows] == [(4, 2), (8, 2)]


DIED = (
    *(*BENCH, "all_reduce", "--c10d", "--device", "cpu", "--nproc-per-node", "2"),
    *("--csv", "--output-dir", "out"),
)


@pytest.mark.slow
def test_a_rank_that_dies_in_the_middle_leaves_its_rows_and_the_reason(start, tmp_path):
    process = start(*DIED, "--max-size", "64M", "--iters", "100")
    csv = tmp_path / "out" / "all_reduce.csv"
    deadline_s = time.monotonic() + LIMIT_S
    while not csv.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    (rank,) = rank_processes(process.pid, b"RANK=1")
    os.kill(rank, signal.SIGKILL)
    _, err = process.communicate(timeout=LIMIT_S)

    *measured, last = read_bench(csv)
    assert process.returncode == 3
    assert measured
    assert {row.columns["Status"] for row in measured} == {"measured"}
    assert (last.latency_us, last.columns["Status"]) == (None, "failed")
    assert last.columns["Reason"] == "rank 1 died of SIGKILL, sent from outside"
    assert last.point.size_bytes == 2 * measured[-1].point.size_bytes
    assert f"error: c10d: {csv.stem} sum float32 {last.point.size_bytes} B: failed: rank 1" in err


def test_a_point_that_takes_too_long_is_recorded_as_such(bench):
    ended = bench(*DIED[3:], "--max-size", "4", "--iters", "999999999", "--timeout", "2", "-q")

    (row,) = read_bench(Path("out"))
    assert (ended.code, ended.out) == (3, "")
    assert (row.latency_us, row.columns["Status"]) == (None, "timeout")
    assert "no end after 2 s" in row.columns["Reason"]
    assert "error: c10d: all_reduce sum float32 4 B: timeout: rank " in ended.err


# Whole searches over setups of collectives.

QUICK = """
[environment]
device = "cpu"
world_size = 2
ranks_per_node = 2
[launch]
recipe = "collectives"
[measure]
max_timed_steps = 5
self_test_rounds = 0
race_rounds = 0
confirm_top = 1
confirm_rounds = 1
max_confirm_rounds = 1
infrastructure_retries = 0
[[message]]
collective = "all_reduce"
size_bytes = 65536
count = 4
"""
GLOO = """
[space.fusion_bytes]
choices = [0, 1048576]
[space.chunk_count]
choices = [1, 2]
[[constraint]]
name = "whole_or_together"
expression = "fusion_bytes == 0 or chunk_count == 1"
"""
OPEN_MPI = """
[space.comm_adapter]
choices = ["mpi"]
[space.ompi_allreduce_algorithm]
choices = ["ring"]
"""
needs_library = pytest.mark.skipif(mpi_library() is None, reason="mpi4py loads no MPI library here")


@pytest.mark.parametrize(
    ("knobs", "names", "setups"),
    [
        (GLOO, ("fusion_bytes", "chunk_count"), {(0, 1), (0, 2), (1048576, 1)}),
        pytest.param(
            *(OPEN_MPI, ("comm_adapter", "ompi_allreduce_algorithm")),
            {("mpi", "ring")},
            marks=needs_library,
        ),
    ],
    ids=["gloo", "open_mpi"],
)
def test_a_search_over_setups_of_a_library_measures_every_one(tmp_path, knobs, names, setups):
    budget = f"[budget]\ntrials = {len(setups)}\nlaunches = {len(setups)}\n"
    (tmp_path / "study.toml").write_text(f"{QUICK}{knobs}{budget}", encoding="utf-8")

    ended = run_cclsearch(tmp_path, "run", "-c", "study.toml", "--strategy", "coordinate")

    assert (ended.returncode, ended.stderr) == (0, "")
    trials = api.trials(store=tmp_path / ".cclsearch")
    assert f"{len(setups)} measured, 0 failed" in ended.stdout
    found = trials[[f"config.{name}" for name in names]].itertuples(index=False)
    assert set(map(tuple, found)) == setups
    assert (trials["score"] > 0).all()
