import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from evaluator.failures.classify import classify
from evaluator.launchers.connection import MARKER, kill_orphans
from evaluator.launchers.local import LocalLauncher
from records.trial import FailureKind
from tests.evaluator.conftest import living_descendants
from tests.support.processes import await_unread

HERE = Path(__file__).parents[1]
LIMIT_S = 60
KEPT = 2  # the process above all jobs, and the one that forks ranks
A_TIMED_STEP = 2
HOLD_A_LAUNCHER = """
import json
import sys
from pathlib import Path
from evaluator.ports import Job
from evaluator.launchers.local import LocalLauncher

folder, tests, path = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
job = Job(
    argv=(),
    world_size=2,
    files=json.loads((folder / "asked.json").read_text()),
    modules=("bad_entries",),
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
def holder(job_of, launch_environment, tmp_path, request):
    """A process that holds a launcher and runs a job that never ends; says each phase."""
    what = getattr(request, "param", "sleep")
    asked = job_of("misbehave", what=what, rank=1, step=A_TIMED_STEP)
    (tmp_path / "asked.json").write_text(json.dumps(dict(asked.files)))
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


def await_text(path):
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and not (path.exists() and path.read_text()):
        time.sleep(0.02)
    return path.read_text()


def survivors(pids):
    deadline = time.monotonic() + LIMIT_S
    while pids and time.monotonic() < deadline:
        time.sleep(0.02)
        pids = [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]
    return pids


@pytest.mark.parametrize("phase", ["setup", "timed"])
def test_no_rank_outlives_a_launcher_that_was_killed(phase, holder, processes, tmp_path):
    wait_for(holder, phase)
    below = [pid for pid in processes() if pid != holder.pid]
    ours = [pid for pid in below if str(tmp_path) in environment_of(pid)]

    holder.kill()

    assert len(ours) == KEPT + 2
    assert survivors(ours) == []
    assert list(tmp_path.glob("cclsearch-*")) == []


def environment_of(pid):
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_text(encoding="utf-8")
    return ""


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
def new_launcher(launch_environment):
    launcher = LocalLauncher(launch_environment, threads_per_rank=1)
    yield launcher
    launcher.close()


@pytest.fixture(scope="module")
def own_launcher(launch_environment):
    """What these tests kill, so that no other test loses its warm process."""
    launcher = LocalLauncher(launch_environment, threads_per_rank=1)
    yield launcher
    launcher.close()


@pytest.fixture(scope="module")
def processes_before(own_launcher):  # noqa: ARG001 - before its first job it has none
    return set(living_descendants())


@pytest.fixture
def launched(processes_before, processes):
    """Gives the processes of `own_launcher`, in order of their start."""
    return lambda: [pid for pid in processes() if pid not in processes_before]


@pytest.fixture
def run(own_launcher, job_of, tmp_path):
    """Runs a job of `own_launcher`, each in a folder of its own."""

    def launch(entry="good", on_phase=print, **misdeed):
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        return own_launcher.run(job_of(entry, **misdeed), folder, on_phase)

    return launch


@pytest.fixture
def run_and_kill(run, launched, tmp_path):
    """Runs a job with a stray, kills one of the processes kept for it, and runs another job."""

    def kill_one(number, what):
        ours, children = [], tmp_path / "0" / "children.txt"

        def kill(phase):
            if phase == "timed":
                await_text(children)
                ours.extend(launched())
                os.kill(ours[number], signal.SIGKILL)

        first = run("misbehave", kill, what=what, rank=1, step=2)
        strays = [int(pid) for pid in children.read_text().split()]
        left = [pid for pid in ours[KEPT:] + strays if Path(f"/proc/{pid}/exe").exists()]
        return first, left, run()

    return kill_one


def test_nothing_outlives_a_killed_supervisor_and_the_next_job_runs(
    run_and_kill, launch_environment
):
    lost, left, found = run_and_kill(0, "leave a child and a stray and hang")

    failed = classify(lost)
    assert lost.reason == "launcher_lost"
    assert failed.kind is FailureKind.INFRASTRUCTURE
    assert failed.message == "the process above the job was lost: exit status -9"
    assert left == []
    assert list(Path(launch_environment["TMPDIR"]).glob("cclsearch-*")) == []
    assert found.reason == "finished"


def test_a_job_outlives_the_process_that_forked_its_ranks_and_the_next_job_runs(run_and_kill):
    first, left, found = run_and_kill(1, "leave children")

    assert first.reason == "finished"
    assert [rank.status for rank in first.ranks] == [0, 0]
    assert left == []
    assert found.reason == "finished"


def test_a_warm_process_lost_while_it_forks_leaves_no_rank_and_the_next_job_runs(run, launched):
    run()
    warm = launched()[-1]
    os.kill(warm, signal.SIGSTOP)

    def kill_when_asked():
        await_unread(warm, 0)
        os.kill(warm, signal.SIGKILL)

    killer = threading.Thread(target=kill_when_asked)
    killer.start()

    lost = run()
    left = launched()
    found = run()

    killer.join()
    assert lost.reason == "launcher_lost"
    assert lost.message == "the process that forks the ranks was lost: exit status -9"
    assert len(left) == 1
    assert found.reason == "finished"


@pytest.mark.parametrize("number", range(KEPT), ids=["supervisor", "warm process"])
def test_a_process_killed_between_two_jobs_is_started_again(number, run, launched):
    run()
    kept = launched()

    os.kill(kept[number], signal.SIGKILL)
    while kept[number] in launched():
        time.sleep(0.02)

    assert len(kept) == KEPT
    assert run().reason == "finished"


@pytest.mark.parametrize("holder", ["leave a stray and sleep"], indirect=True)
def test_what_outlives_a_launcher_killed_with_its_supervisor_ends_when_the_next_one_starts(
    holder, new_launcher, job_of, processes, tmp_path
):
    wait_for(holder, "timed")
    below = [pid for pid in processes() if pid != holder.pid]
    supervisor = next(pid for pid in below if str(tmp_path) in environment_of(pid))
    stray = int(await_text(tmp_path / "children.txt"))
    holder.send_signal(signal.SIGSTOP)
    os.kill(supervisor, signal.SIGKILL)
    holder.kill()
    outlived = Path(f"/proc/{stray}/exe").exists()
    holder.wait(LIMIT_S)
    folder = tmp_path / "next"
    folder.mkdir()

    result = new_launcher.run(job_of("good"), folder, print)

    assert outlived
    assert not Path(f"/proc/{stray}/exe").exists()
    assert result.reason == "finished"


def test_a_listener_that_raises_ends_the_ranks(run, launched):
    def refuse(phase):
        if phase == "warmup":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("slow", refuse)

    assert launched() == []


@pytest.fixture
def left_by():
    """Starts processes as launchers left them that no longer run, in a namespace of processes."""
    started = []

    def start(namespace):
        ended = subprocess.Popen(["true"])
        ended.wait()
        owner = f"{ended.pid}-1-{namespace}-{len(started)}"
        started.append(subprocess.Popen(["sleep", "60"], env={MARKER: owner, "PATH": os.defpath}))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_what_a_container_on_this_machine_runs_is_not_taken_for_an_orphan(left_by):
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    orphan, of_a_container = left_by(namespace), left_by(namespace + 1)

    kill_orphans()

    assert orphan.wait(LIMIT_S) == -signal.SIGKILL
    assert of_a_container.poll() is None
