"""Jobs of warm ranks: how they end, what they see, and what is left of them."""

import json
import mmap
import os
import signal
import time
from _multiprocessing import SemLock, sem_unlink
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator.failures.classify import classify
from evaluator.launchers.local import LocalLauncher
from evaluator.rank.protocol import RankExit
from records.errors import EnvironmentFault
from records.trial import FailureKind

KEPT = 2  # the process above all jobs, and the one that forks ranks


STEPS = {"setup": None, "timed": 2, "profile": 6}


def open_files(pid):
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_a_good_job_finishes_in_every_phase_and_leaves_only_its_files(launch, processes):
    launch()
    server = processes()

    launched = launch("scribble over progress", rank=0, profiled_steps=1)

    assert launched.result.reason == "finished"
    assert [(rank.rank, rank.status) for rank in launched.result.ranks] == [(0, 0), (1, 0)]
    assert classify(launched.result) is None
    assert launched.phases == ["setup", "warmup", "timed", "profile", "done"]
    assert processes() == server
    of_rank = (".log", ".progress.jsonl", ".steps.json", "_trace.json")
    names = {f"rank{rank}{suffix}" for rank in range(2) for suffix in of_rank}
    assert {path.name for path in launched.folder.iterdir()} == names | {"job.json", "misdeed.json"}


def test_nothing_of_a_job_is_kept_not_even_children_in_sessions_of_their_own(
    launch, processes, launch_environment
):
    launch()
    kept = processes()
    open_before = [open_files(pid) for pid in kept]

    launch("fail")
    launched = launch("leave children")

    assert launched.result.reason == "finished"
    assert len(launched.children) == 4
    assert not any(Path(f"/proc/{pid}").exists() for pid in launched.children)
    assert processes() == kept
    assert [open_files(pid) for pid in kept] == open_before
    assert list(Path(launch_environment["TMPDIR"]).glob("cclsearch-*")) == []


@pytest.mark.parametrize(
    ("what", "step", "kind", "message"),
    [
        ("fail", STEPS["setup"], "crash", "rank 1 in setup: ValueError: wrong shape"),
        ("fail", STEPS["timed"], "crash", "rank 1 in timed: ValueError: wrong shape"),
        ("fail", STEPS["profile"], "crash", "rank 1 in profile: ValueError: wrong shape"),
        ("end with status 3", 2, "crash", "rank 1 ended with status 3"),
        ("end with status 0", 2, "crash", "rank 1 ended with status 0 before its work was done"),
        ("segfault", 2, "crash", "rank 1 died of SIGSEGV in timed"),
        ("kill itself", 2, "infrastructure", "rank 1 died of SIGKILL in timed, sent from outside"),
        (
            "ask for too much",
            2,
            "out_of_memory",
            "rank 1 in timed: its memory budget ran out, 1 GiB asked for: RuntimeError",
        ),
    ],
)
def test_the_rank_that_failed_is_named_and_not_the_one_that_lost_it(
    what, step, kind, message, launch, processes
):
    budget = {"memory_budget_bytes": 200 << 20} if what == "ask for too much" else {}

    profiled = 1 if step == STEPS["profile"] else 0
    failed = classify(launch(what, step=step, profiled_steps=profiled, **budget).result)

    assert failed.kind == kind
    assert message in failed.message
    assert len(processes()) == KEPT


@pytest.mark.parametrize("phase", ["setup", "timed"])
def test_a_rank_killed_from_outside_is_told_from_those_that_we_kill(
    phase, launcher, job_of, tmp_path, processes
):
    def kill_the_first_rank(entered):
        if entered == phase:
            os.kill(processes()[KEPT], signal.SIGKILL)

    job = job_of("misbehave", what="sleep", rank=0, step=STEPS[phase])
    result = launcher.run(job, tmp_path, kill_the_first_rank)

    failed = classify(result)
    assert failed.kind is FailureKind.INFRASTRUCTURE
    assert failed.message == f"rank 0 died of SIGKILL in {phase}, sent from outside"
    assert result.ranks[0].signal == signal.SIGKILL
    assert result.ranks[0].ended_ns is not None
    assert len(processes()) == KEPT


def test_peers_that_hang_after_a_rank_failed_are_killed_and_not_the_cause(launch, processes):
    launched = launch("fail while peers hang", rank=None)

    failed = classify(launched.result)
    assert failed.kind is FailureKind.CRASH
    assert failed.message.startswith("rank 1 in timed: ValueError: wrong shape at bad_entries.py:")
    assert launched.result.ranks[0] == RankExit(rank=0, signal=9)
    assert len(processes()) == KEPT


def test_ranks_see_the_environment_they_are_given_and_nothing_of_ours(
    launch, launch_environment, monkeypatch
):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a secret")

    launched = launch("tell environment", rank=1)

    told = json.loads((launched.folder / "environment.json").read_text())
    rendezvous = told.pop("CCLSEARCH_RENDEZVOUS")
    assert rendezvous.startswith(f"{launch_environment['TMPDIR']}/")
    assert told.pop("CCLSEARCH_LAUNCH_OF").startswith(f"{os.getpid()}-")
    assert told == {
        **launch_environment,
        "TMPDIR": f"{rendezvous}/tmp",
        "TORCHINDUCTOR_CACHE_DIR": f"{launch_environment['TMPDIR']}/torchinductor_{os.getuid()}",
        "CCLSEARCH_INIT_METHOD": f"file://{rendezvous}/store",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LC_CTYPE": "C.UTF-8",
    }


def test_a_relative_folder_of_any_name_is_taken_from_where_we_are(
    launcher, job_of, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    folder = Path("with space q?x#b%41")
    folder.mkdir()

    result = launcher.run(job_of("good"), folder, print)

    assert result.reason == "finished"
    assert (folder / "rank1.steps.json").is_file()
    assert list(tmp_path.iterdir()) == [tmp_path / folder]


def test_a_module_that_cannot_be_imported_is_told_in_its_own_words(
    launch_environment, job_of, tmp_path
):
    (tmp_path / "bad_entries.py").write_text("import no_such_module")
    launcher = LocalLauncher(launch_environment | {"PYTHONPATH": str(tmp_path)}, 1)

    with pytest.raises(EnvironmentFault, match="No module named 'no_such_module'"):
        launcher.run(job_of("good"), tmp_path, print)


def test_what_was_prepared_is_used_by_a_job_whose_ranks_have_several_threads(
    launch_environment, job_of, tmp_path, processes
):
    before = processes()
    launcher = LocalLauncher(launch_environment, threads_per_rank=2)
    try:
        launcher.prepare(job_of("good"))
        prepared = eventually(lambda: [pid for pid in processes() if pid not in before], KEPT)
        result = launcher.run(job_of("good"), tmp_path, print)
        kept = [pid for pid in processes() if pid not in before]
    finally:
        launcher.close()

    assert result.reason == "finished"
    assert kept == prepared
    assert processes() == before


def eventually(look, count):
    while len(found := look()) < count:
        time.sleep(0.02)
    return found


SHARED_MEMORY = Path("/dev/shm")


def test_the_environment_of_a_job_ends_with_it(launcher, job_of, tmp_path):
    told = []
    for name, environment in (("first", {"ONLY_HERE": "1"}), ("second", {})):
        folder = tmp_path / name
        folder.mkdir()
        job = job_of("misbehave", what="tell environment", rank=1, step=2)
        launcher.run(replace(job, environment=environment), folder, print)
        told.append(json.loads((folder / "environment.json").read_text()))

    differ = {name for name in {**told[0], **told[1]} if told[0].get(name) != told[1].get(name)}
    assert differ == {"ONLY_HERE", "TMPDIR", "CCLSEARCH_RENDEZVOUS", "CCLSEARCH_INIT_METHOD"}


def test_shared_memory_that_a_killed_rank_left_is_removed_and_nobody_elses(launch, request):
    kept = SHARED_MEMORY / f"data-of-{request.node.name}"
    kept.touch()
    request.addfinalizer(kept.unlink)

    launched = launch("leave shared memory")

    assert launched.result.reason == "finished"
    assert not (SHARED_MEMORY / (launched.folder / "shared_memory.txt").read_text()).exists()
    assert kept.exists()


def test_what_somebody_else_made_meanwhile_and_uses_is_left_alone(launcher, job_of, tmp_path):
    name = f"meanwhile-{os.getpid()}"
    memory, semaphore = SHARED_MEMORY / f"psm_{name}", SHARED_MEMORY / f"sem.{name}"
    made = []

    with ExitStack() as opened:

        def make_both(phase):
            if phase == "timed":
                file = opened.enter_context(memory.open("wb+"))
                opened.callback(memory.unlink)
                file.truncate(4096)
                opened.enter_context(mmap.mmap(file.fileno(), 4096))
                made.append(SemLock(1, 1, 1, f"/{name}", False))
                opened.callback(sem_unlink, f"/{name}")

        launcher.run(job_of("slow"), tmp_path, make_both)

        assert len(made) == 1
        assert memory.exists()
        assert semaphore.exists()


def test_sockets_pipes_and_temporary_files_of_a_rank_are_no_results(launch):
    left, made = launch("leave sockets and pipes"), launch("make a temporary file")

    assert left.result.reason == "finished"
    assert not list(left.folder.glob("left.*"))
    path = Path((made.folder / "temporary.txt").read_text())
    assert path.parent.name == "tmp"
    assert path.parents[1].name.startswith("cclsearch-")
    assert not path.parents[1].exists()
