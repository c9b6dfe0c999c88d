import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evaluator.classify import classify
from evaluator.launchers.local import LocalLauncher
from records.trial import FailureKind

HERE = Path(__file__).parent
LIMIT_S = 20
HOLD_A_LAUNCHER = """
import sys
from pathlib import Path
from evaluator.job import Job
from evaluator.launchers.local import LocalLauncher

folder, tests, path = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
job = Job(
    argv=(),
    world_size=2,
    files={"job.json": (folder / "asked.json").read_text()},
    module="bad_entries",
    timeout_s=60,
)
launcher = LocalLauncher({"PATH": path, "PYTHONPATH": tests, "TMPDIR": str(folder)}, 1)
print("import", flush=True)
try:
    launcher.run(job, folder, lambda phase: print(phase, flush=True))
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""


@pytest.fixture
def holder(job_of, launch_environment, tmp_path):
    """A process that holds a launcher and runs a slow job; says each phase in a line."""
    (tmp_path / "asked.json").write_text(job_of("slow", profiled_steps=1).files["job.json"])
    started = subprocess.Popen(
        [sys.executable, "-c", HOLD_A_LAUNCHER, tmp_path, HERE, launch_environment["PATH"]],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with started as process:
        yield process
        process.kill()


def wait_for(process, phase):
    return next(line for line in process.stdout if line == f"{phase}\n")


def survivors(pids):
    deadline = time.monotonic() + LIMIT_S
    while pids and time.monotonic() < deadline:
        time.sleep(0.02)
        pids = [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]
    return pids


@pytest.mark.parametrize("phase", ["setup", "warmup", "timed", "profile"])
def test_no_rank_outlives_a_launcher_that_was_killed(phase, holder, processes, tmp_path):
    wait_for(holder, phase)
    below = [pid for pid in processes() if pid != holder.pid]
    ours = [pid for pid in below if str(tmp_path) in environment_of(pid)]

    holder.kill()

    assert len(ours) == 3
    assert survivors(ours) == []
    assert list(tmp_path.glob("cclsearch-*")) == []


def environment_of(pid):
    return Path(f"/proc/{pid}/environ").read_text(encoding="utf-8")


def test_a_launcher_killed_while_torch_is_imported_leaves_no_warm_process(holder, processes):
    wait_for(holder, "import")
    below = processes()
    while below[-1] == holder.pid:
        below = processes()

    holder.kill()

    assert survivors(below[below.index(holder.pid) :]) == []


def test_an_interrupt_ends_the_ranks_and_reaches_the_caller(holder, processes, tmp_path):
    wait_for(holder, "timed")
    ours = [pid for pid in processes() if str(tmp_path) in environment_of(pid)]

    holder.send_signal(signal.SIGINT)

    assert wait_for(holder, "interrupted")
    assert [pid for pid in ours if Path(f"/proc/{pid}/exe").exists()] == []
    assert holder.wait(LIMIT_S) == -signal.SIGINT
    assert list(tmp_path.glob("cclsearch-*")) == []


@pytest.fixture
def own_launcher(launch_environment):
    launcher = LocalLauncher(launch_environment, threads_per_rank=1)
    yield launcher
    launcher.close()


def test_a_killed_warm_process_takes_its_ranks_with_it_and_the_next_job_runs(
    own_launcher, job_of, processes, tmp_path
):
    before = processes()
    folders = [tmp_path / "first", tmp_path / "second"]
    ours = []

    def kill_the_warm_process(phase):
        if phase == "timed":
            ours.extend(pid for pid in processes() if pid not in before)
            os.kill(ours[0], signal.SIGKILL)

    for folder in folders:
        folder.mkdir()
    job = job_of("misbehave", what="leave a child and hang", rank=1, step=2)
    lost = own_launcher.run(job, folders[0], kill_the_warm_process)
    left = [pid for pid in processes() if pid not in before]
    found = own_launcher.run(job_of("good"), folders[1], print)

    failed = classify(lost)
    assert lost.reason == "launcher_lost"
    assert failed.kind is FailureKind.INFRASTRUCTURE
    assert failed.message == "the process that forks the ranks was lost: exit status -9"
    assert len(ours) >= 3
    assert left == []
    assert not any(Path(f"/proc/{pid}/exe").exists() for pid in ours)
    assert found.reason == "finished"


def test_a_warm_process_killed_between_two_jobs_is_started_again(
    own_launcher, job_of, processes, tmp_path
):
    before = processes()
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    own_launcher.run(job_of("good"), folders[0], print)
    (server,) = (pid for pid in processes() if pid not in before)

    os.kill(server, signal.SIGKILL)
    assert survivors([server]) == []
    result = own_launcher.run(job_of("good"), folders[1], print)

    assert result.reason == "finished"


def test_a_listener_that_raises_ends_the_ranks(own_launcher, job_of, processes, tmp_path):
    before = processes()

    def refuse(phase):
        if phase == "warmup":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        own_launcher.run(job_of("slow"), tmp_path, refuse)

    assert processes() == before
