"""Which rank a launch failed for, where the others only tell that they lost it."""

import json

import pytest

from evaluator.failures.classify import classify
from evaluator.ports import JobResult, RankExit

TORCHRUN = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
evaluator.workloads.collectives.sweep FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-22_01:46:04
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : {status} (pid: 488)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 488
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_01:46:04
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 487)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
MPIRUN = """\
--------------------------------------------------------------------------
prterun noticed that process rank 2 with PID 1533 on node a.b.example exited on
signal 11 (Segmentation fault).
--------------------------------------------------------------------------
"""
LOST = "Read error [127.0.0.1]:7381: Connection reset by peer. Check the remote worker"


@pytest.fixture
def failed(tmp_path):
    def make(log, message=None):
        (tmp_path / "job.log").write_text(log)
        if message is not None:
            error = {
                "rank": 0,
                "phase": "timed",
                "failed_ns": 1,
                "type": "RuntimeError",
                "message": message,
                "causes": [],
                "memory_limited": False,
                "traceback": "",
            }
            (tmp_path / "rank0.error.json").write_text(json.dumps(error))
        command = RankExit(rank=None, status=1, signal=None, ended_ns=1)
        return JobResult(workdir=tmp_path, reason="rank_failed", ranks=(command,), wall_s=1.0)

    return make


def test_a_killed_rank_is_the_cause_of_a_lost_connection(failed):
    assert classify(failed(TORCHRUN.format(status=-9), LOST)).message == (
        "rank 1 died of SIGKILL, sent from outside"
    )


def test_a_rank_that_the_launcher_ended_is_no_cause(failed):
    message = classify(failed(TORCHRUN.format(status=-15), LOST)).message

    assert message.startswith("rank 0 in timed: the connection to another rank was lost")


def test_what_a_rank_says_for_itself_is_the_cause(failed):
    message = classify(failed(TORCHRUN.format(status=-9), "no such algorithm")).message

    assert message == "rank 0 in timed: RuntimeError: no such algorithm"


def test_mpirun_tells_which_rank_died(failed):
    assert classify(failed(MPIRUN)).message == "rank 2 died of SIGSEGV"


def test_a_launch_that_finished_has_no_cause(tmp_path):
    ranks = tuple(RankExit(rank=r, status=0, signal=None, ended_ns=1) for r in range(2))

    assert classify(JobResult(workdir=tmp_path, reason="finished", ranks=ranks, wall_s=1.0)) is None
