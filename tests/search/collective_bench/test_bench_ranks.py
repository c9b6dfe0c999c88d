"""`bench collectives` under launchers that started it as their ranks, and ranks that die."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from evaluator.launchers.limits import descendants
from evaluator.machine import mpirun_command, mpirun_environment
from evaluator.timing.bench_csv import read_bench
from evaluator.workloads.collectives.operations import AdapterName
from evaluator.workloads.collectives.sweep import availability
from tests.support.service import CCLSEARCH

BENCH = (CCLSEARCH, "bench", "collectives")
TORCHRUN = (
    *(sys.executable, "-P", "-m", "torch.distributed.run"),
    *("--standalone", "--nproc-per-node=2", "--no-python"),
)
SMALL = ("--max-size", "8", "--iters", "20", "--device", "cpu")
LIMIT_S = 100
needs_mpi = pytest.mark.skipif(
    availability(AdapterName.MPI) is not None, reason=str(availability(AdapterName.MPI))
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
def test_under_mpirun_it_measures_mpi(start, tmp_path):
    process = start(*mpirun_command(2, BENCH), "scatter", *SMALL, "--csv", "--quiet")
    out, err = process.communicate(timeout=LIMIT_S)

    assert (process.returncode, out, err) == (0, "", "")
    rows = read_bench(tmp_path / "mpi")
    assert [(row.point.size_bytes, row.point.rank_count) for row in rows] == [(4, 2), (8, 2)]


def test_a_rank_that_dies_in_the_middle_leaves_its_rows_and_the_reason(start, tmp_path):
    process = start(
        *(*BENCH, "all_reduce", "--c10d", "--device", "cpu", "--nproc-per-node", "2"),
        *("--max-size", "64M", "--iters", "100", "--csv", "--output-dir", "out"),
    )
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


def test_a_point_that_takes_too_long_is_recorded_as_such(start, tmp_path):
    process = start(
        *(*BENCH, "all_reduce", "--c10d", "--device", "cpu", "--nproc-per-node", "2"),
        *("--max-size", "4", "--iters", "999999999", "--timeout", "2"),
        *("--csv", "--output-dir", "out", "-q"),
    )
    out, err = process.communicate(timeout=LIMIT_S)

    (row,) = read_bench(tmp_path / "out")
    assert (process.returncode, out) == (3, "")
    assert (row.latency_us, row.columns["Status"]) == (None, "timeout")
    assert "no end after 2 s" in row.columns["Reason"]
    assert "error: c10d: all_reduce sum float32 4 B: timeout: rank " in err
