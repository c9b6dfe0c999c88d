import json
import signal

import pytest

from evaluator.classify import classify
from evaluator.job import JobResult, RankExit
from records.trial import FailureKind

KILLED_BY_US = RankExit(rank=1, status=None, signal=signal.SIGKILL, ended_s=None)
LOST = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]"

# Distinct errors of 69 failed trials of recorded searches on a GPU cluster: their label, whether it
# names the infrastructure, and how many there were. The text that was kept is short, so a label
# says what was thrown, which is only likely the cause: most bare exit statuses were probably
# exhausted memory. Where only the connection is told, what ended it is unknown: see the next test.
RECORDED_ERRORS = [
    ("infra_no_gpu", True, 1, "No CUDA GPUs are available"),
    (
        "infra_slurm_step",
        True,
        2,
        "Unable to create step for job <id>: <path> already completing or completed",
    ),
    ("infra_time_limit", True, 1, "DUE TO TIME LIMIT ***"),
    ("policy_exception", False, 3, "generate_config raised: 'name'"),
    (
        "framework_exception",
        False,
        1,
        "TypeError: PipelineStage.__init__() got an unexpected keyword argument 'get_mesh'",
    ),
    (
        "framework_exception",
        False,
        2,
        "IndexError: Dimension specified as 0 but tensor has no dimensions",
    ),
    (
        "sigterm_no_root_cause",
        False,
        4,
        "SignalException: Process <pid> got signal: 15",
    ),
    ("child_exit_1_no_traceback", False, 23, "exitcode  : 1"),
    ("child_exit_2", False, 6, "exitcode  : 2"),
    ("framework_segv", False, 13, "Signal 11 (SIGSEGV) received by PID <pid> | exitcode  : -11"),
    ("oom", False, 1, "ut of memory. Tried to allocate 896.00 MiB. GPU 0 has a total capacity"),
]
RECORDED_LOST_CONNECTIONS = 12
LOST_CONNECTION = (
    "Failed to recv, got 0 bytes. Connection was likely closed. "
    "Did the remote server shutdown or crash?"
)


@pytest.fixture
def failed_job(tmp_path):
    """Makes the result of a job whose rank 0, and 1 unless told otherwise, failed with an error."""

    def make(*ranks, reason="rank_failed", memory_kill_count=0, **errors):
        (tmp_path / "progress.jsonl").write_text('{"phase": "setup"}\n{"phase": "timed"}\n')
        for name, error in errors.items():
            (tmp_path / f"{name}.error.json").write_text(json.dumps(error))
        return JobResult(
            workdir=tmp_path,
            reason=reason,
            ranks=ranks,
            wall_s=12.3,
            memory_kill_count=memory_kill_count,
        )

    return make


def error(rank, message, *, kind="RuntimeError", out_of_memory=False):
    return {
        "rank": rank,
        "phase": "timed",
        "type": kind,
        "message": message,
        "out_of_memory": out_of_memory,
        "traceback": "",
    }


def ended(rank, *, status=1, at_s=1.0):
    return RankExit(rank=rank, status=status, signal=None, ended_s=at_s)


def died(rank, of, *, at_s=1.0):
    return RankExit(rank=rank, status=None, signal=of, ended_s=at_s)


@pytest.mark.parametrize(("label", "infrastructure", "count", "text"), RECORDED_ERRORS)
def test_recorded_errors_are_told_apart_by_their_text(
    label, infrastructure, count, text, failed_job
):
    failed = classify(failed_job(ended(0), KILLED_BY_US, rank0=error(0, text)))

    assert (failed.kind is FailureKind.INFRASTRUCTURE) is infrastructure, (label, count)
    assert text in failed.message


def test_the_recorded_errors_are_all_failures_there_were():
    assert sum(count for _, _, count, _ in RECORDED_ERRORS) + RECORDED_LOST_CONNECTIONS == 69


def test_a_lost_connection_is_not_held_against_the_configuration_when_nothing_else_is_known(
    failed_job,
):
    lost = error(0, LOST_CONNECTION, kind="DistNetworkError")

    failed = classify(failed_job(ended(0), KILLED_BY_US, rank0=lost))

    assert failed.kind is FailureKind.INFRASTRUCTURE
    assert failed.message.startswith("rank 0 in timed: DistNetworkError: Failed to recv")


def test_a_peer_that_lost_its_neighbour_is_not_the_cause_even_if_it_ended_first(failed_job):
    result = failed_job(
        ended(0, at_s=1.0),
        ended(1, at_s=1.1),
        rank0=error(0, LOST),
        rank1=error(1, "wrong shape", kind="ValueError"),
    )

    failed = classify(result)

    assert failed.kind is FailureKind.CRASH
    assert failed.message == "rank 1 in timed: ValueError: wrong shape"


def test_the_first_of_two_causes_is_told(failed_job):
    result = failed_job(
        ended(0, at_s=1.2),
        ended(1, at_s=1.1),
        rank0=error(0, "second"),
        rank1=error(1, "first"),
    )

    assert classify(result).message == "rank 1 in timed: RuntimeError: first"


def test_a_rank_that_a_watchdog_aborts_after_another_failed_is_not_the_cause(failed_job):
    result = failed_job(
        died(0, signal.SIGABRT, at_s=1.1),
        ended(1, at_s=1.0),
        rank1=error(1, "wrong shape", kind="ValueError"),
    )

    assert classify(result).message == "rank 1 in timed: ValueError: wrong shape"


def test_memory_that_ran_out_on_one_rank_is_told_whatever_ended_first(failed_job):
    result = failed_job(
        died(0, signal.SIGSEGV, at_s=1.0),
        ended(1, at_s=1.5),
        rank1=error(1, "can't allocate memory", out_of_memory=True),
    )

    failed = classify(result)

    assert failed.kind is FailureKind.OUT_OF_MEMORY
    assert failed.message == "rank 1 in timed: RuntimeError: can't allocate memory"


def test_a_rank_that_the_kernel_killed_for_memory_is_out_of_memory(failed_job):
    result = failed_job(
        ended(0, at_s=1.1), died(1, signal.SIGKILL), memory_kill_count=1, rank0=error(0, LOST)
    )

    failed = classify(result)

    assert failed.kind is FailureKind.OUT_OF_MEMORY
    assert failed.message == (
        "rank 1 died of SIGKILL in timed: the kernel killed it, the machine's memory was used up"
    )


@pytest.mark.parametrize("memory_kill_count", [0, None])
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_a_rank_that_someone_else_killed_is_infrastructure(name, memory_kill_count, failed_job):
    result = failed_job(
        ended(0, at_s=1.1),
        died(1, signal.Signals[name]),
        memory_kill_count=memory_kill_count,
        rank0=error(0, LOST),
    )

    failed = classify(result)

    assert failed.kind is FailureKind.INFRASTRUCTURE
    assert failed.message == f"rank 1 died of {name} in timed, sent from outside"


def test_a_signal_without_a_name_is_told_by_its_number(failed_job):
    result = failed_job(ended(0, status=0), died(1, signal.SIGRTMIN + 3))
    (result.workdir / "rank0.steps.json").write_text("{}")

    assert classify(result).message == f"rank 1 died of signal {signal.SIGRTMIN + 3} in timed"


def test_the_last_line_of_the_log_is_told_when_a_rank_left_nothing_else(failed_job):
    result = failed_job(KILLED_BY_US, ended(0, status=2))
    (result.workdir / "rank0.log").write_bytes(b"\xff\xfe\nerror: unknown option --x\n\n")

    assert classify(result).message == "rank 0 ended with status 2: error: unknown option --x"


@pytest.mark.parametrize(
    "content", ["", "null", '{"rank": 1', '{"rank": "one"}', "[" * 100_000, '"\ud800"']
)
def test_an_error_file_that_is_none_leaves_the_exit_status_to_speak(content, failed_job):
    result = failed_job(ended(0, status=7), KILLED_BY_US)
    (result.workdir / "rank0.error.json").write_text(content, errors="surrogatepass")

    assert classify(result).message == "rank 0 ended with status 7 and said nothing"


def test_a_message_without_end_is_cut(failed_job):
    result = failed_job(ended(0), KILLED_BY_US, rank0=error(0, "x" * 100_000))

    assert len(classify(result).message) == 400


def test_a_hang_before_the_first_sign_of_life_says_so(failed_job):
    result = failed_job(KILLED_BY_US, reason="timeout")
    (result.workdir / "progress.jsonl").unlink()

    failed = classify(result)

    assert failed.kind is FailureKind.HANG
    assert failed.message == "no end after 12 s before its first sign of life"
