import json
import os
import re
import subprocess
import sys
from contextlib import closing

import pytest

from evaluator.failures.classify import classify
from evaluator.launchers import limits
from evaluator.launchers.limits import Limits
from evaluator.launchers.local import LocalLauncher
from evaluator.launchers.watch import HEAD_BYTES, TAIL_BYTES
from evaluator.ports import Job
from records.trial import FailureKind

MIB = 1 << 20
PYTHON = "exec python3 -c"


def log_of(launched):
    return (launched.folder / "job.log").read_text()


@pytest.fixture(scope="module")
def narrow_launcher(launch_environment):
    """Lets the files of a job take 32 MiB."""
    launcher = LocalLauncher(launch_environment, threads_per_rank=1, disk_bytes=32 * MIB)
    yield launcher
    launcher.close()


@pytest.fixture
def on_a_small_disk(narrow_launcher, tmp_path):
    def run(script):
        job = Job(argv=("sh", "-c", script), world_size=1, files={}, timeout_s=60)
        return narrow_launcher.run(job, tmp_path, print)

    return run


def test_a_rank_that_floods_its_log_runs_on_and_its_first_and_last_words_are_kept(launch):
    launched = launch("flood", rank=0)

    log = launched.folder / "rank0.log"
    assert classify(launched.result) is None
    assert HEAD_BYTES < log.stat().st_size < HEAD_BYTES + 2 * TAIL_BYTES
    assert log.read_text().startswith("flood flood")
    assert "the last words\n" in log.read_text()[-1000:]
    left_out = re.search(r"\n\[(\d+) bytes were left out here\]\n", log.read_text())
    assert int(left_out[1]) > 300 * 60_000 - HEAD_BYTES - 2 * TAIL_BYTES


def test_a_command_that_never_stops_printing_fills_no_disk(command):
    launched = command("yes", timeout_s=1)

    assert launched.result.reason == "timeout"
    assert (launched.folder / "job.log").stat().st_size < HEAD_BYTES + 2 * TAIL_BYTES


@pytest.mark.parametrize("place", [".", '"$TMPDIR"'])
def test_files_beyond_the_quota_are_the_configurations_own_doing(place, on_a_small_disk):
    result = on_a_small_disk(
        f"cd {place}; n=0; while sleep 0.02; do n=$((n+1)); head -c 1000000 /dev/zero > $n; done"
    )

    failed = classify(result)
    assert result.reason == "disk_quota"
    assert re.fullmatch(r"the job's files took \d+ MiB, it may have 32 MiB", result.message)
    assert failed.kind is FailureKind.CRASH


def test_one_file_beyond_the_quota_cannot_be_written(on_a_small_disk, tmp_path):
    result = on_a_small_disk(f'{PYTHON} \'open("big", "wb").write(bytes(64 << 20))\'')

    assert result.reason == "rank_failed"
    assert (tmp_path / "big").stat().st_size <= 32 * MIB
    assert classify(result).kind is FailureKind.CRASH
    assert "File too large" in (tmp_path / "job.log").read_text()


def test_a_command_that_asks_for_all_memory_is_out_of_memory_itself(command):
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    launched = command(f"{PYTHON} 'bytearray({memory_bytes})'")

    assert launched.result.reason == "rank_failed"
    assert log_of(launched).endswith("MemoryError\n")
    assert classify(launched.result).kind is FailureKind.OUT_OF_MEMORY


def test_a_rank_without_a_budget_cannot_ask_for_all_memory_either(launch):
    launched = launch("ask for all memory")

    assert launched.result.reason == "rank_failed"
    assert classify(launched.result).kind is FailureKind.OUT_OF_MEMORY


def test_the_kernel_takes_a_job_before_anything_else_and_writes_no_core(command):
    launched = command("cat /proc/self/oom_score_adj; ulimit -c")

    assert log_of(launched) == "1000\n0\n"


def test_jobs_have_the_priority_that_their_launcher_was_asked_for(launch_environment, tmp_path):
    job = Job(argv=("nice",), world_size=1, files={}, timeout_s=60)

    with closing(LocalLauncher(launch_environment, threads_per_rank=1, niceness=7)) as launcher:
        result = launcher.run(job, tmp_path, print)

    assert (result.workdir / "job.log").read_text() == "7\n"


def test_without_the_right_to_raise_priorities_nothing_can_be_isolated():
    lines = (
        "import os, resource",
        "from evaluator.launchers.local import may_isolate",
        "resource.setrlimit(resource.RLIMIT_NICE, (0, 0))",
        "os.getuid() or os.setuid(65534)",
        "print(may_isolate(), os.getpriority(os.PRIO_PROCESS, 0))",
    )

    told = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, check=True, text=True
    )

    assert told.stdout == f"False {os.getpriority(os.PRIO_PROCESS, 0)}\n"


@pytest.mark.parametrize(("maps_freely", "told"), [(False, r"\d+\n"), (True, r"unlimited\n")])
def test_only_a_job_that_maps_freely_is_not_held_to_a_share(maps_freely, told, launcher, tmp_path):
    argv = ("bash", "-c", "ulimit -d")
    job = Job(argv=argv, world_size=1, files={}, timeout_s=60, maps_freely=maps_freely)

    result = launcher.run(job, tmp_path, print)

    assert re.fullmatch(told, (result.workdir / "job.log").read_text())


def test_a_job_that_holds_what_the_machine_lacks_is_told_to_end(tmp_path, monkeypatch):
    held = bytearray(os.urandom(1)) * (limits.LEAST_SHARE_BYTES + MIB)
    few_bytes_each = Limits([tmp_path], 1 << 20, limits.DISK_BYTES)
    monkeypatch.setattr(limits, "MEMORY_FLOOR_BYTES", 1 << 60)

    overrun = few_bytes_each.overrun(lambda: [os.getpid()])

    assert overrun[0] == "out_of_memory"
    assert re.fullmatch(
        r"the job held \d+ MiB of memory, \d+ MiB were left on the machine", overrun[1]
    )
    assert len(held) > limits.LEAST_SHARE_BYTES


def test_a_job_is_not_blamed_for_memory_that_somebody_else_took(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MEMORY_FLOOR_BYTES", 1 << 60)

    assert Limits([tmp_path], 1, limits.DISK_BYTES).overrun(lambda: [os.getpid()]) is None


def test_ranks_are_pinned_within_what_their_launcher_may_use(launch_environment, job_of, tmp_path):
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    launcher = LocalLauncher(launch_environment, threads_per_rank=1)
    try:
        launcher.run(job_of("misbehave", what="tell cores", rank=1, step=2), tmp_path, print)
    finally:
        launcher.close()
        os.sched_setaffinity(0, allowed)

    assert json.loads((tmp_path / "cores.json").read_text()) == [max(allowed)]
