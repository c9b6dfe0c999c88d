import json
import shlex
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator.failures.classify import classify
from evaluator.rank.protocol import RankExit
from evaluator.recipes.knobs import rank_program
from records.trial import FailureKind

KEPT = 2
TORCHRUN = f"exec {sys.executable} -P -m torch.distributed.run"
CHILD_IN_A_SESSION_OF_ITS_OWN = "setsid sh -c 'echo $$ >> children.txt; trap \"\" TERM; sleep 99' &"


def log_of(launched):
    return (launched.folder / "job.log").read_text()


def test_a_rank_that_hangs_after_a_cold_start_is_found_and_all_stacks_are_taken(
    launcher, job_of, tmp_path, processes, study
):
    job = job_of("misbehave", what="hang", rank=1, step=2, cold=True, hang_after_s=1)
    rank = f"RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 {shlex.join(rank_program(study))}"
    both = f"for rank in 0 1; do {rank} & done; wait"
    meeting = {"init_method": f"file://{tmp_path}/store"}
    files = {**job.files, "job.json": json.dumps(json.loads(job.files["job.json"]) | meeting)}

    result = launcher.run(replace(job, argv=("sh", "-c", both), files=files), tmp_path, print)

    assert result.reason == "hang"
    assert [(rank.rank, rank.ended_ns) for rank in result.ranks] == [(None, None)]
    assert "in all_reduce" in (tmp_path / "rank0.stacks.txt").read_text()
    assert "in hang" in (tmp_path / "rank1.stacks.txt").read_text()
    assert len(processes()) == KEPT


def test_a_rank_that_fails_after_a_cold_start_is_told_by_its_own_files(launch):
    launched = launch("write much and raise", cold=True)

    failed = classify(launched.result)
    assert launched.result.reason == "rank_failed"
    assert launched.result.ranks[0].rank is None
    assert launched.result.ranks[0].status == 1
    assert failed.kind is FailureKind.CRASH
    assert "rank 1 in timed: ValueError: wrong shape" in failed.message
    assert launched.phases == ["setup", "warmup", "timed"]
    assert "noise" in (launched.folder / "rank1.log").read_text()
    assert "noise" not in log_of(launched)


def test_error_files_of_torchrun_are_kept(command):
    error = '{"message": {"message": "ValueError: 7"}}'
    script = f"echo '{error}' > $TORCHELASTIC_ERROR_FILE; exit 1"

    launched = command(
        f"cat > fails.sh <<'SH'\n{script}\nSH\n"
        f"{TORCHRUN} --standalone --nproc-per-node=1 --no-python sh fails.sh"
    )

    told = json.loads((launched.folder / "rank0.torchelastic.json").read_text())
    assert "ValueError: 7" in told["message"]["message"]


def test_a_port_in_use_is_infrastructure(command):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        launched = command(
            f"{TORCHRUN} --nproc-per-node=1 --master-addr=127.0.0.1"
            f" --master-port={taken.getsockname()[1]} --no-python true"
        )

    assert launched.result.reason == "rank_failed"
    assert classify(launched.result).kind is FailureKind.INFRASTRUCTURE


def test_a_command_that_ends_well_answers_for_its_ranks(command):
    launched = command("echo out; echo err >&2")

    assert launched.result.reason == "finished"
    assert [(rank.rank, rank.status) for rank in launched.result.ranks] == [(0, 0)]
    assert log_of(launched) == "out\nerr\n"


@pytest.mark.parametrize(
    ("script", "status", "number"),
    [
        ("exit 3", 3, None),
        ("kill -SEGV $$", None, signal.SIGSEGV),
        ("no-such-program", 127, None),
        ("kill -KILL 0", None, signal.SIGKILL),  # its whole group
    ],
)
def test_how_a_command_failed_is_told(script, status, number, command, processes):
    before = processes()

    launched = command(script)

    (ended,) = launched.result.ranks
    assert launched.result.reason == "rank_failed"
    assert (ended.rank, ended.status, ended.signal) == (None, status, number)
    assert ended.ended_ns is not None
    assert set(before) <= set(processes())


def test_a_program_that_is_not_there_is_told_in_the_log(launcher, job_of, tmp_path):
    job = job_of("good", cold=True)

    result = launcher.run(replace(job, argv=("./absent",)), tmp_path, print)

    assert result.ranks[0].status == 127
    assert (tmp_path / "job.log").read_text() == "./absent: No such file or directory\n"


def test_a_command_may_clean_up_before_it_is_killed(command):
    launched = command("trap 'touch cleaned_up; exit 0' TERM; sleep 99 & wait", timeout_s=3)

    assert launched.result.reason == "timeout"
    assert (launched.folder / "cleaned_up").exists()
    assert launched.result.ranks == (RankExit(rank=None, status=0),)


@pytest.mark.parametrize(
    ("script", "reason", "timeout_s"),
    [
        ("trap '' TERM; {child} sleep 99; sleep 99", "timeout", 3),
        ("{child} while [ ! -s children.txt ]; do :; done", "finished", 60),
    ],
    ids=["ignores the request", "ends by itself"],
)
def test_what_a_command_started_ends_with_it(command, processes, script, reason, timeout_s):
    launched = command(script.format(child=CHILD_IN_A_SESSION_OF_ITS_OWN), timeout_s=timeout_s)

    assert launched.result.reason == reason
    assert launched.result.ranks[0].signal == (signal.SIGKILL if reason == "timeout" else None)
    (child,) = launched.children
    assert not Path(f"/proc/{child}/exe").exists()
    assert len(processes()) <= KEPT


def test_a_command_sees_what_it_was_given_and_what_its_launch_adds(
    command, launch_environment, monkeypatch
):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a secret")

    launched = command("env > environment.txt; pwd", TP="2", OMP_NUM_THREADS="3")

    lines = (launched.folder / "environment.txt").read_text().splitlines()
    told = dict(line.split("=", 1) for line in lines)
    given = {"PATH": launch_environment["PATH"], "TP": "2", "OMP_NUM_THREADS": "3"}
    assert told.items() >= given.items()
    assert Path(told["TMPDIR"]).parent == Path(told["CCLSEARCH_RENDEZVOUS"])
    assert "ANTHROPIC_API_KEY" not in told
    assert log_of(launched) == f"{launched.folder}\n"


def test_a_command_that_locks_up_after_its_ranks_have_failed_is_ended(command):
    error = {
        "rank": 0,
        "phase": "setup",
        "failed_ns": 1,
        "type": "RuntimeError",
        "message": "no such algorithm",
        "causes": [],
        "memory_limited": False,
        "traceback": "",
    }

    launched = command(f"echo '{json.dumps(error)}' > rank0.error.json; sleep 99")

    assert launched.result.reason == "rank_failed"
    assert classify(launched.result).message == "rank 0 in setup: RuntimeError: no such algorithm"
