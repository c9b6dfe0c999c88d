"""The first cause of a failed job, and how each of its ranks ended."""

import json
import signal
from types import SimpleNamespace

import pytest

from evaluator.failures.classify import classify, rank_ends
from evaluator.ports import JobResult
from evaluator.rank.protocol import LastHeartbeat, RankExit
from records.machine import RankEnd
from records.trial import FailureKind
from tests.evaluator.failures.conftest import torchrun_summary

KILLED_BY_US = RankExit(rank=1, signal=signal.SIGKILL)
LOST = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]"

OF_THE_LAUNCHER = ("launcher_lost", "out_of_memory", "disk_quota")
LOST_CONNECTION = (
    "Failed to recv, got 0 bytes. Connection was likely closed. "
    "Did the remote server shutdown or crash?"
)


@pytest.fixture
def failed_job(tmp_path):
    """Makes the result of a job with these exits, `rank0=` error files and `logs`."""

    def make(*ranks, reason="rank_failed", memory_kill_count=0, heartbeats=None, logs=(), **errors):
        for name, error in errors.items():
            (tmp_path / f"{name}.error.json").write_text(json.dumps(error))
        for name, text in dict(logs).items():
            (tmp_path / name).write_text(text)
        return JobResult(
            workdir=tmp_path,
            reason=reason,
            ranks=ranks,
            wall_s=12.3,
            heartbeats=(beat(0), beat(1)) if heartbeats is None else heartbeats,
            memory_kill_count=memory_kill_count,
            message="as the launcher says" if reason in OF_THE_LAUNCHER else "",
        )

    return make


def beat(rank, *, phase="timed", step=3, silent_s=5.0):
    return LastHeartbeat(rank=rank, phase=phase, step=step, silent_s=silent_s)


def error(rank, message, *, kind="RuntimeError", memory_limited=False, at_s=1.0):
    return {
        "rank": rank,
        "phase": "timed",
        "failed_ns": round(at_s * 1e9),
        "type": kind,
        "message": message,
        "causes": [],
        "memory_limited": memory_limited,
        "traceback": "",
    }


def ended(rank, *, status=1, at_s=1.0):
    return RankExit(rank=rank, status=status, ended_ns=round(at_s * 1e9))


def died(rank, of, *, at_s=1.0):
    return RankExit(rank=rank, signal=of, ended_ns=round(at_s * 1e9))


def command(*, status=1, by=None):
    return RankExit(rank=None, status=None if by else status, signal=by, ended_ns=1)


WRONG = error(1, "wrong shape", kind="ValueError")
OUT_OF_TIME = {"reason": "timeout", "heartbeats": ()}
CAUSES = {
    "a lost connection of which nothing else is known": (
        (ended(0), KILLED_BY_US),
        {"rank0": error(0, LOST_CONNECTION, kind="DistNetworkError")},
        "infrastructure",
        "rank 0 in timed: the connection to another rank was lost: DistNetworkError: Failed to",
    ),
    "a peer that lost its neighbour ended first": (
        (ended(0, at_s=1.0), ended(1, at_s=1.1)),
        {"rank0": error(0, LOST), "rank1": WRONG},
        "crash",
        "rank 1 in timed: ValueError: wrong shape",
    ),
    "a rank died before another raised": (
        (died(0, signal.SIGSEGV), ended(1, at_s=1.2)),
        {"rank1": error(1, "wrong shape", at_s=1.1)},
        "crash",
        "rank 0 died of SIGSEGV",
    ),
    "a watchdog aborted a rank after another failed": (
        (died(0, signal.SIGABRT, at_s=1.1), ended(1)),
        {"rank1": WRONG},
        "crash",
        "rank 1 in timed: ValueError: wrong shape",
    ),
    "memory ran out after another rank ended": (
        (died(0, signal.SIGSEGV), ended(1, at_s=1.5)),
        {"rank1": error(1, "can't allocate memory")},
        "out_of_memory",
        "rank 1 in timed: host memory ran out: RuntimeError: can't allocate memory",
    ),
    "the kernel killed a rank for memory": (
        (ended(0, at_s=1.1), died(1, signal.SIGKILL)),
        {"memory_kill_count": 1, "rank0": error(0, LOST)},
        "out_of_memory",
        "rank 1 died of SIGKILL in timed: the kernel killed it, the machine's memory was used up",
    ),
    **{
        f"somebody else sent {name} while {count} were killed for memory": (
            (ended(0, at_s=1.1), died(1, signal.Signals[name])),
            {"memory_kill_count": count, "rank0": error(0, LOST)},
            "infrastructure",
            f"rank 1 died of {name} in timed, sent from outside",
        )
        for name in ("SIGKILL", "SIGTERM")
        for count in (0, None)
    },
    "a signal without a name": (
        (ended(0, status=0), died(1, signal.SIGRTMIN + 3)),
        {"logs": {"rank0.steps.json": "{}"}},
        "crash",
        f"rank 1 died of signal {signal.SIGRTMIN + 3} in timed",
    ),
    "the last line of a log": (
        (KILLED_BY_US, ended(0, status=2)),
        {"logs": {"rank0.log": "\x00\nso it goes\n\n"}},
        "crash",
        "rank 0 ended with status 2: so it goes",
    ),
    "silence from the beginning": (
        (KILLED_BY_US,),
        OUT_OF_TIME,
        "hang",
        "no end after 12 s before its first sign of life",
    ),
    "a rank failed and left the others waiting": (
        (KILLED_BY_US,),
        {"reason": "hang", "rank1": WRONG, "rank0": error(0, LOST)},
        "crash",
        "rank 1 in timed: ValueError: wrong shape",
    ),
    "a command waits for a rank without memory": (
        (command(by=15),),
        {"logs": {"job.log": "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried ...\n"}}
        | OUT_OF_TIME,
        "out_of_memory",
        "rank 1: device memory ran out: torch.OutOfMemoryError",
    ),
    "the output of a command": (
        (command(),),
        {"logs": {"job.log": "[rank1]: ValueError: 30 heads must be divisible by 4\n"}},
        "invalid_config",
        "rank 1: sizes do not fit together: ValueError: 30 heads must be divisible by 4",
    ),
    "error files say more than output": (
        (command(),),
        {
            "logs": {"job.log": "srun: error: nid001: task 0: Exited with exit code 1\n"},
            "rank0": error(0, LOST),
            "rank1": WRONG,
        },
        "crash",
        "rank 1 in timed: ValueError: wrong shape",
    ),
    "a command's rank was killed while memory was used up": (
        (command(),),
        {"logs": {"job.log": "srun: error: nid001: task 1: Killed\n"}, "memory_kill_count": 1},
        "out_of_memory",
        "",
    ),
    "a command that says nothing": (
        (command(status=7),),
        {},
        "crash",
        "the command ended with status 7 and said nothing",
    ),
    **{
        f"the launcher saw {reason}": (
            (KILLED_BY_US,),
            {"reason": reason},
            kind,
            "as the launcher says",
        )
        for reason, kind in zip(
            OF_THE_LAUNCHER, ("infrastructure", "out_of_memory", "crash"), strict=True
        )
    },
}


@pytest.mark.parametrize(("exits", "left", "kind", "message"), CAUSES.values(), ids=CAUSES)
def test_the_first_cause_is_told_and_whose_fault_it_is(exits, left, kind, message, failed_job):
    failed = classify(failed_job(*exits, **left))

    assert failed.kind == kind
    assert failed.message.startswith(message)


@pytest.mark.parametrize(
    "exits",
    [
        (ended(0, at_s=1.3), ended(1, at_s=1.4)),
        (ended(0, at_s=1.4), ended(1, at_s=1.3)),
        (ended(0, at_s=1.3), KILLED_BY_US),
        (ended(None, at_s=1.3),),
    ],
    ids=["first ended first", "first ended last", "first was killed", "under a command"],
)
def test_the_rank_that_raised_first_is_the_cause_however_processes_ended(exits, failed_job):
    first = error(1, "wrong shape", at_s=1.1)
    second = error(0, "list index out of range", kind="IndexError", at_s=1.2)

    failed = classify(failed_job(*exits, rank0=second, rank1=first))

    assert failed.message == "rank 1 in timed: RuntimeError: wrong shape"


@pytest.mark.parametrize(
    "content", ["", "null", '{"rank": 1', '{"rank": "one"}', "[" * 100_000, '"\ud800"']
)
def test_an_error_file_that_is_none_leaves_the_exit_status_to_speak(content, failed_job):
    result = failed_job(ended(0, status=7), KILLED_BY_US)
    (result.workdir / "rank0.error.json").write_text(content, errors="surrogatepass")

    assert classify(result).message == "rank 0 ended with status 7 and said nothing"


def test_a_long_message_is_cut_and_leaves_room_for_the_place(failed_job):
    told = error(0, "x" * 100_000) | {"traceback": '  File "train.py", line 80, in step\n'}

    failed = classify(failed_job(ended(0), KILLED_BY_US, rank0=told))

    assert len(failed.message) == 400
    assert failed.message.endswith("x at train.py:80 in step")


def test_a_hang_tells_the_rank_that_is_behind_and_where_all_are(failed_job):
    stack = 'Current thread 0x7f (most recent call first):\n  File "t.py", line {} in {}\n'
    logs = {
        "rank0.stacks.txt": stack.format(39, "all_reduce"),
        "rank1.stacks.txt": stack.format(99, "read"),
    }
    heartbeats = (beat(0, step=3), beat(1, step=2, silent_s=7.0))

    failed = classify(failed_job(KILLED_BY_US, reason="hang", heartbeats=heartbeats, logs=logs))

    assert failed.kind is FailureKind.HANG
    assert failed.message == (
        "no sign of life for 5 s in timed, step 2, rank 1 behind the others: "
        "rank 0 in all_reduce (t.py:39); rank 1 in read (t.py:99)"
    )


@pytest.mark.parametrize("ranks", [(command(status=0),), (ended(0, status=0), ended(1, status=0))])
def test_a_job_that_went_well_did_not_fail(ranks, failed_job):
    assert classify(failed_job(*ranks, reason="finished")) is None


@pytest.mark.parametrize("reason", ["rank_failed", "disk_quota"])
@pytest.mark.parametrize(("free_bytes", "kind"), [(1 << 40, "crash"), (1 << 20, "infrastructure")])
def test_a_job_that_wrote_too_much_is_only_to_blame_where_there_was_room(
    reason, free_bytes, kind, failed_job, monkeypatch
):
    monkeypatch.setattr("shutil.disk_usage", lambda _: disk_with(free_bytes))
    large = error(0, "[Errno 27] File too large", kind="OSError")

    assert classify(failed_job(ended(0), reason=reason, rank0=large)).kind == kind


def test_a_rank_that_could_not_even_write_why_on_a_full_disk_is_infrastructure(
    failed_job, monkeypatch
):
    monkeypatch.setattr("shutil.disk_usage", lambda _: disk_with(4096))

    failed = classify(failed_job(ended(0)))

    assert failed.kind is FailureKind.INFRASTRUCTURE
    assert failed.message == "rank 0 ended with status 1: the disk of its folder is full"


def disk_with(free_bytes):
    return SimpleNamespace(free=free_bytes)


# Ranks that their launcher saw killed.


MPIRUN = """\
--------------------------------------------------------------------------
prterun noticed that process rank 2 with PID 1533 on node a.b.example exited on
signal 11 (Segmentation fault).
--------------------------------------------------------------------------
"""
LOST_READ = "Read error [127.0.0.1]:7381: Connection reset by peer. Check the remote worker"


@pytest.mark.parametrize(
    ("log", "errors", "message"),
    [
        (
            torchrun_summary(rank=0),
            {"rank0": LOST_READ},
            "rank 1 died of SIGKILL, sent from outside",
        ),
        (
            torchrun_summary(rank=0, other_status=-15),
            {"rank0": LOST_READ},
            "rank 0 in timed: the connection to another rank was lost",
        ),
        (
            torchrun_summary(rank=0),
            {"rank0": "no such algorithm"},
            "rank 0 in timed: RuntimeError: no such algorithm",
        ),
        (MPIRUN, {}, "rank 2 died of SIGSEGV"),
    ],
    ids=["killed", "ended by its launcher", "killed after another failed", "seen by mpirun"],
)
def test_a_rank_that_its_launcher_saw_killed_is_the_cause_unless_one_speaks_for_itself(
    log, errors, message, failed_job
):
    said = {name: error(0, text) for name, text in errors.items()}

    assert classify(failed_job(command(), logs={"job.log": log}, **said)).message.startswith(
        message
    )


# How each rank ended.

TRACEBACK = """[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "train.py", line 3, in step
[rank{rank}]: ValueError: bad batch of rank {rank}
"""


def test_of_a_job_that_went_well_no_log_is_read(failed_job):
    ranks = (ended(0, status=0), ended(1, status=0))

    found = rank_ends(failed_job(*ranks, reason="finished", logs={"rank0.log": "ValueError: x\n"}))

    assert found == tuple(RankEnd(rank=rank, status=0, signal=None) for rank in (0, 1))


def test_every_rank_has_its_own_error(failed_job):
    logs = {
        "rank0.log": "ValueError: less than the file says\n",
        "rank2.log": TRACEBACK.format(rank=2),
    }
    ranks = (ended(0), died(1, signal.SIGKILL), ended(2))

    ends = rank_ends(failed_job(*ranks, logs=logs, rank0=error(0, "first of all")))

    assert [(end.status, end.signal) for end in ends] == [(1, None), (None, 9), (1, None)]
    assert [end.first_error for end in ends] == [
        "RuntimeError: first of all",
        None,
        "ValueError: bad batch of rank 2 at train.py:3 in step",
    ]


def test_ranks_of_a_command_are_separated_in_its_output(failed_job):
    log = TRACEBACK.format(rank=1) + TRACEBACK.format(rank=0) + "KeyError: of nobody\n"

    ends = rank_ends(failed_job(command(), logs={"job.log": log}))

    assert [(end.rank, end.first_error) for end in ends] == [
        (None, "KeyError: of nobody"),
        *((r, f"ValueError: bad batch of rank {r} at train.py:3 in step") for r in (0, 1)),
    ]
    assert {(end.status, end.signal) for end in ends[1:]} == {(None, None)}


def test_a_rank_that_its_launcher_saw_killed_has_the_signal(failed_job):
    log = "mpirun noticed that process rank 3 with PID 7 on node n exited on signal 11.\n"

    ends = rank_ends(failed_job(command(status=139), logs={"job.log": log}))

    assert RankEnd(rank=3, status=None, signal=11) in ends


def test_a_long_error_is_cut_to_one_line(failed_job):
    (end,) = rank_ends(failed_job(ended(0), rank0=error(0, "x" * 9000 + "\nmore")))

    assert len(end.first_error) == 400
    assert "\n" not in end.first_error


def test_a_hang_without_stacks_says_what_takes_them(failed_job):
    notes = {"missing.stacks.txt": "py-spy is not on the PATH of the job"}
    failed = classify(failed_job(command(), reason="hang", logs=notes))

    assert "the job's PATH has no py-spy" in failed.message
