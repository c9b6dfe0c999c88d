import json
import os
import signal
import time
from pathlib import Path

import pytest

from evaluator.failures.classify import classify
from evaluator.launchers.local import LocalLauncher
from evaluator.rank.protocol import RankExit
from records.errors import EnvironmentFault
from records.trial import FailureKind

KEPT = 2  # the process above all jobs, and the one that forks ranks
ALL_PHASES = ["setup", "warmup", "timed", "profile", "done"]
STEPS = {"setup": None, "timed": 2, "profile": 6}


def failure(launched):
    failed = classify(launched.result)
    return failed.kind, failed.message


def open_files(pid):
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_a_good_job_finishes_in_every_phase_and_leaves_only_its_files(launch, processes):
    launch()
    server = processes()

    launched = launch(profiled_steps=1)

    assert launched.result.reason == "finished"
    assert [(rank.rank, rank.status) for rank in launched.result.ranks] == [(0, 0), (1, 0)]
    assert classify(launched.result) is None
    assert launched.phases == ALL_PHASES
    assert processes() == server
    assert sorted(path.name for path in launched.folder.iterdir()) == [
        "job.json",
        "misdeed.json",
        "rank0.log",
        "rank0.progress.jsonl",
        "rank0.steps.json",
        "rank0_trace.json",
        "rank1.log",
        "rank1.progress.jsonl",
        "rank1.steps.json",
        "rank1_trace.json",
    ]


def test_nothing_of_a_job_is_kept(launch, processes, launch_environment):
    launch()
    kept = processes()
    open_before = [open_files(pid) for pid in kept]

    launch()
    launch("raise")
    launch("leave children")

    assert processes() == kept
    assert [open_files(pid) for pid in kept] == open_before
    assert list(Path(launch_environment["TMPDIR"]).glob("cclsearch-*")) == []


@pytest.mark.parametrize(
    ("what", "step", "kind", "message"),
    [
        ("raise", STEPS["setup"], "crash", "rank 1 in setup: ValueError: wrong shape"),
        ("raise", STEPS["timed"], "crash", "rank 1 in timed: ValueError: wrong shape"),
        ("raise", STEPS["profile"], "crash", "rank 1 in profile: ValueError: wrong shape"),
        ("sys.exit(3)", 2, "crash", "rank 1 ended with status 3"),
        ("end with status 0", 2, "crash", "rank 1 ended with status 0 before its work was done"),
        ("segfault", 2, "crash", "rank 1 died of SIGSEGV in timed"),
        ("kill itself", 2, "infrastructure", "rank 1 died of SIGKILL in timed, sent from outside"),
    ],
)
def test_the_rank_that_failed_is_named_and_not_the_one_that_lost_it(
    what, step, kind, message, launch, processes
):
    launched = launch(what, step=step, profiled_steps=1)

    assert failure(launched)[0] == kind
    assert message in failure(launched)[1]
    assert len(processes()) == KEPT


@pytest.mark.parametrize("phase", ["setup", "timed"])
def test_a_rank_killed_from_outside_is_told_from_those_that_we_kill(
    phase, launcher, job_of, tmp_path, processes
):
    def kill_the_first_rank(entered):
        if entered == phase:
            os.kill(processes()[KEPT], signal.SIGKILL)

    result = launcher.run(job_of("slow", profiled_steps=1), tmp_path, kill_the_first_rank)

    failed = classify(result)
    assert failed.kind is FailureKind.INFRASTRUCTURE
    assert failed.message == f"rank 0 died of SIGKILL in {phase}, sent from outside"
    assert result.ranks[0].signal == signal.SIGKILL
    assert result.ranks[0].ended_ns is not None
    assert len(processes()) == KEPT


def test_children_and_grandchildren_in_sessions_of_their_own_die_with_the_job(launch, processes):
    launched = launch("leave children")

    assert launched.result.reason == "finished"
    assert len(launched.children) == 4
    assert not any(Path(f"/proc/{pid}").exists() for pid in launched.children)
    assert len(processes()) == KEPT


def test_peers_that_hang_after_a_rank_failed_are_killed_and_not_the_cause(launch, processes):
    launched = launch("fail while peers hang", rank=None)

    kind, message = failure(launched)
    assert kind is FailureKind.CRASH
    assert message.startswith("rank 1 in timed: ValueError: wrong shape at bad_entries.py:")
    assert launched.result.ranks[0] == RankExit(rank=0, status=None, signal=9, ended_ns=None)
    assert len(processes()) == KEPT


def test_a_job_that_fills_its_standard_output_runs_on(launch):
    launched = launch("write much", rank=None)

    assert classify(launched.result) is None
    assert (launched.folder / "rank0.log").stat().st_size > 3_000_000


def test_a_progress_file_full_of_other_things_is_read_past(launch):
    launched = launch("scribble over progress", rank=0, profiled_steps=1)

    assert classify(launched.result) is None
    assert launched.phases == ALL_PHASES


def test_memory_beyond_the_budget_is_out_of_memory(launch):
    launched = launch("ask for too much", memory_budget_bytes=200 << 20)

    kind, message = failure(launched)
    assert kind is FailureKind.OUT_OF_MEMORY
    assert message.startswith("rank 1 in timed: host memory ran out, 1 GiB asked for: RuntimeError")


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
