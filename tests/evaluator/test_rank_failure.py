import json
from pathlib import Path

import pytest
import torch

from evaluator.rank.failure import is_out_of_memory, write_failure
from evaluator.rank.progress import Phase


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        RuntimeError("std::bad_alloc"),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_a_failed_allocation_is_out_of_memory(error):
    assert is_out_of_memory(error, memory_limited=False)


def test_a_failed_allocation_is_found_behind_the_error_that_wraps_it():
    cause = RuntimeError("stage 1 failed to run forward")
    cause.__context__ = MemoryError()
    error = RuntimeError("the schedule failed")
    error.__cause__ = cause

    assert is_out_of_memory(error, memory_limited=False)


def test_an_ordinary_error_is_not_out_of_memory():
    error = RuntimeError("Connection closed by peer")
    error.__cause__ = error

    assert not is_out_of_memory(error, memory_limited=True)


@pytest.mark.parametrize("memory_limited", [True, False])
def test_a_thread_that_cannot_start_is_out_of_memory_only_under_a_limit(memory_limited):
    error = RuntimeError("Resource temporarily unavailable")

    assert is_out_of_memory(error, memory_limited=memory_limited) is memory_limited


def test_a_failure_is_written_whole(tmp_path: Path):
    error = ValueError("wrong shape")

    write_failure(tmp_path, error, rank=3, phase=Phase.WARMUP, memory_limited=False)

    (path,) = tmp_path.iterdir()
    document = json.loads(path.read_text())
    assert path.name == "rank3.error.json"
    assert document == {
        "rank": 3,
        "phase": "warmup",
        "type": "ValueError",
        "message": "wrong shape",
        "out_of_memory": False,
        "traceback": "ValueError: wrong shape\n",
    }


def test_a_wrapped_shortage_is_told_in_its_own_words(tmp_path: Path):
    error = RuntimeError("stage 0 failed to run forward")
    error.__cause__ = MemoryError("9 bytes")

    write_failure(tmp_path, error, rank=0, phase=Phase.TIMED, memory_limited=False)

    document = json.loads((tmp_path / "rank0.error.json").read_text())
    assert (document["type"], document["message"]) == ("MemoryError", "9 bytes")
    assert document["out_of_memory"]
    assert "stage 0 failed to run forward" in document["traceback"]
