"""How each rank ended, and the first error that it told, whoever's fault it was."""

import json
import signal

import pytest

from evaluator.failures.classify import rank_ends
from evaluator.ports import JobResult, RankExit
from records.machine import RankEnd

TRACEBACK = """[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "train.py", line 3, in step
[rank{rank}]: ValueError: bad batch of rank {rank}
"""


@pytest.fixture
def job(tmp_path):
    """Makes the result of a job with these files and exits."""

    def make(*ranks, reason="rank_failed", **texts):
        for name, text in texts.items():
            stem, _, kind = name.partition("__")
            text = text if isinstance(text, str) else json.dumps(text)
            (tmp_path / f"{stem}.{kind.replace('__', '.')}").write_text(text, encoding="utf-8")
        return JobResult(workdir=tmp_path, reason=reason, ranks=ranks, wall_s=1.0)

    return make


def exit_of(rank, status=None, by=None):
    return RankExit(rank=rank, status=status, signal=by, ended_ns=1)


def error(rank, message):
    facts = {"rank": rank, "phase": "timed", "type": "RuntimeError", "message": message}
    return {**facts, "failed_ns": 1, "causes": [], "memory_limited": False, "traceback": ""}


def test_of_a_job_that_went_well_no_log_is_read(job):
    ended = job(exit_of(0, 0), exit_of(1, 0), reason="finished", rank0__log="ValueError: x\n")

    assert rank_ends(ended) == (
        RankEnd(rank=0, status=0, signal=None),
        RankEnd(rank=1, status=0, signal=None),
    )


def test_every_rank_tells_its_own_error(job):
    ends = rank_ends(
        job(
            exit_of(0, 1),
            exit_of(1, by=signal.SIGKILL),
            exit_of(2, 1),
            rank0__error__json=error(0, "first of all"),
            rank0__log="ValueError: less than the file says\n",
            rank2__log=TRACEBACK.format(rank=2),
        )
    )

    assert [(end.status, end.signal) for end in ends] == [(1, None), (None, 9), (1, None)]
    assert ends[0].first_error == "RuntimeError: first of all"
    assert ends[1].first_error is None
    assert ends[2].first_error == "ValueError: bad batch of rank 2 at train.py:3 in step"


def test_ranks_of_a_command_are_told_apart_in_its_output(job):
    told = TRACEBACK.format(rank=1) + TRACEBACK.format(rank=0) + "KeyError: of nobody\n"

    ends = rank_ends(job(exit_of(None, 1), job__log=told))

    assert [end.rank for end in ends] == [None, 0, 1]
    assert ends[0].first_error == "KeyError: of nobody"
    assert [end.first_error for end in ends[1:]] == [
        f"ValueError: bad batch of rank {rank} at train.py:3 in step" for rank in (0, 1)
    ]
    assert {(end.status, end.signal) for end in ends[1:]} == {(None, None)}


def test_a_rank_that_its_launcher_saw_killed_has_the_signal(job):
    told = "mpirun noticed that process rank 3 with PID 7 on node n exited on signal 11.\n"

    ends = rank_ends(job(exit_of(None, 139), job__log=told))

    assert RankEnd(rank=3, status=None, signal=11) in ends


def test_a_long_error_is_cut_to_one_line(job):
    (end,) = rank_ends(job(exit_of(0, 1), rank0__error__json=error(0, "x" * 9000 + "\nmore")))

    assert len(end.first_error) == 400
    assert "\n" not in end.first_error
