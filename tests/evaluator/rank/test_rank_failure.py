import json
import subprocess
import time
from pathlib import Path

import pytest

from evaluator.failures.logs import RankError, Weight, elastic_findings, rank_error, rank_finding
from evaluator.rank.protocol import Phase, write_failure
from records.trial import FailureKind


class OutOfRangeError(RuntimeError):
    """An exception that is not Python's own."""


@pytest.fixture
def written(tmp_path):
    """Writes the failure of rank 3 and gives what is read of it."""

    def write(error: Exception, *, memory_limited: bool = False) -> RankError:
        write_failure(tmp_path, error, rank=3, phase=Phase.WARMUP, memory_limited=memory_limited)
        read = rank_error(tmp_path / "rank3.error.json")
        assert read is not None
        return read

    return write


def raised(error: Exception, cause: BaseException | None = None) -> Exception:
    try:
        raise error from cause
    except Exception as caught:  # noqa: BLE001 - it is what is asked for
        return caught


def test_a_failure_is_written_whole(tmp_path):
    before_ns = time.time_ns()

    write_failure(
        tmp_path, ValueError("wrong shape"), rank=3, phase=Phase.WARMUP, memory_limited=False
    )

    (path,) = tmp_path.iterdir()
    assert path.name == "rank3.error.json"
    written = json.loads(path.read_text())
    assert before_ns <= written.pop("failed_ns") <= time.time_ns()
    assert written == {
        "rank": 3,
        "phase": "warmup",
        "type": "ValueError",
        "message": "wrong shape",
        "causes": [],
        "memory_limited": False,
        "traceback": "ValueError: wrong shape\n",
    }


def test_a_failure_has_the_full_name_of_its_type_a_bounded_message_and_each_cause_once(written):
    error = RuntimeError("round and round")
    error.__cause__ = error

    assert written(OutOfRangeError("9")).type == f"{__name__}.OutOfRangeError"
    assert len(written(ValueError("x" * 20_000_000)).message) == 10_000
    assert written(error).causes == ()


def test_an_exception_is_told_with_the_line_that_raised_it(written):
    found = rank_finding(written(raised(ValueError("wrong shape"))))

    assert (found.kind, str(found)) == (FailureKind.CRASH, "ValueError: wrong shape")
    assert found.where.startswith(f" at {Path(__file__).name}:")
    assert found.where.endswith(" in raised")


@pytest.mark.parametrize(
    "shortage",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        OSError(12, "Cannot allocate memory"),
        ExceptionGroup("stages failed", [ValueError("a"), MemoryError("9 bytes")]),
    ],
)
def test_a_failed_allocation_is_found_behind_what_it_became(shortage, written):
    stage = raised(RuntimeError("stage 0 failed to run forward"), shortage)

    found = rank_finding(written(raised(RuntimeError("the schedule failed"), stage)))

    inner = shortage.exceptions[1] if isinstance(shortage, ExceptionGroup) else shortage
    assert found.kind is FailureKind.OUT_OF_MEMORY
    assert found.said.startswith(type(inner).__name__)


def test_a_lost_connection_behind_a_wrapper_is_nobodys_fault_but_an_ordinary_error_is(written):
    lost = RuntimeError("Connection closed by peer")

    found = rank_finding(written(raised(RuntimeError("stage 0 failed"), lost)))
    ordinary = rank_finding(written(raised(ValueError("no layer 9"), KeyError(9))))

    assert found.kind is FailureKind.INFRASTRUCTURE
    assert str(ordinary) == "ValueError: no layer 9"


def test_an_exception_about_a_child_process_is_a_cause_and_not_only_an_end(written):
    found = rank_finding(written(subprocess.CalledProcessError(1, ["false"])))

    assert (found.kind, found.weight) == (FailureKind.CRASH, Weight.CAUSE)
    assert str(found).startswith("CalledProcessError: Command '['false']'")


def elastic(folder: Path, local_rank: int, error: object, *, at: int = 1) -> None:
    path = folder / f"rank{local_rank}.torchelastic.json"
    stack = f'Traceback (most recent call last):\n  File "t.py", line 4, in main\n{error}\n'
    extra = {"py_callstack": stack, "timestamp": str(at)}
    path.write_text(json.dumps({"message": {"message": str(error), "extraInfo": extra}}))


def test_error_files_of_torchrun_are_read_in_the_order_of_their_times(tmp_path):
    elastic(tmp_path, 0, "RuntimeError: Connection closed by peer", at=1795211693)
    elastic(tmp_path, 1, "ValueError: wrong shape", at=1795211692)
    (tmp_path / "rank2.torchelastic.json").write_text('{"message": {}}')

    first, second = elastic_findings(tmp_path)

    told = first.rank, first.said, first.where
    assert told == (1, "ValueError: wrong shape", " at t.py:4 in main")
    assert (second.rank, second.kind) == (0, FailureKind.INFRASTRUCTURE)
