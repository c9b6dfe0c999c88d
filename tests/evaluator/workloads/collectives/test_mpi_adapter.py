"""How the MPI adapter starts, refuses and ends, on real processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from evaluator.machine import mpi_library, mpirun_command, mpirun_environment

LIBRARY = mpi_library()
pytestmark = pytest.mark.skipif(
    LIBRARY is None or LIBRARY.mpirun is None, reason="no MPI library with its mpirun is installed"
)
IMPORTS = """
import json
import weakref
import torch
from evaluator.rank.main import read_rank_numbers
from evaluator.workloads.collectives.operations import Tensors
from evaluator.workloads.collectives.sweep import new_adapter
from evaluator.workloads.collectives.operations import Collective, Operation

CPU = torch.device("cpu")
adapter = new_adapter("mpi")
"""
ALONE = """
def answer(call, *given):
    try:
        return call(*given)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def join(rank, size):
    return answer(adapter.init, "mpi", CPU, rank, size)

def gather(collective, inputs, outputs):
    operation = Operation(collective=collective, size_bytes=4)
    tensors = Tensors(inputs=inputs, outputs=outputs)
    return answer(adapter.run_collective, operation, tensors)

def kept_alive():
    tensor = torch.ones(1000)
    all_reduce = Operation(collective=Collective.ALL_REDUCE, size_bytes=4000)
    tensors = Tensors(inputs=(tensor,), outputs=(tensor,))
    return weakref.ref(tensor), adapter.resolve_collective(all_reduce, tensors)

parts = torch.zeros(3).unbind()
seen = {
    "of two": join(1, 2),
    "of one": join(0, 1),
    "apart": gather(Collective.ALL_GATHER, parts[:1], parts[::2]),
    "too long": gather(Collective.ALL_GATHER_SINGLE, (torch.zeros(4),), (torch.zeros(2),)),
    "kept": (lambda reference, call: reference() is not None)(*kept_alive()),
    "unknown": answer(adapter.get_reduce_op, "mean"),
    "leave": [adapter.finalize(), adapter.finalize()],
    "again": join(0, 1),
}
print(json.dumps(seen))
"""


@pytest.fixture(autouse=True)
def leave_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in mpirun_environment().items():
        monkeypatch.setenv(name, value)


def ended(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def seen() -> dict[str, object]:
    """What a process sees that no mpirun started: MPI gives it a world of its own."""
    done = ended(sys.executable, "-c", IMPORTS + ALONE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_ranks_that_mpirun_did_not_start_are_refused(seen: dict[str, object]) -> None:
    assert str(seen["of two"]).startswith(
        "UnavailableError: MPI is rank 0 of 1 where the launcher started rank 1 of 2; "
        "start the ranks with the mpirun of "
    )
    assert seen["of one"] is None


def test_tensors_of_a_list_that_lie_apart_are_refused(seen: dict[str, object]) -> None:
    assert str(seen["apart"]).startswith(
        "ValueError: MPI takes tensors of a list that lie side by side in memory, in order"
    )


def test_a_call_keeps_the_memory_that_it_works_on(seen: dict[str, object]) -> None:
    assert seen["kept"] is True


def test_an_error_of_mpi_is_raised(seen: dict[str, object]) -> None:
    assert "truncated" in str(seen["too long"])


def test_an_unknown_reduction_is_answered_with_those_there_are(seen: dict[str, object]) -> None:
    assert seen["unknown"] == (
        "ValueError: mpi has no reduction 'mean', only sum, min, max, avg, product"
    )


def test_mpi_ends_once_and_does_not_start_again(seen: dict[str, object]) -> None:
    assert seen["leave"] == [None, None]
    assert str(seen["again"]).startswith("UnavailableError: MPI has ended in this process")


def test_mpi_that_somebody_else_started_is_left_running() -> None:
    program = (
        f"from mpi4py import MPI\n{IMPORTS}adapter.init('mpi', CPU, 0, 1)\n"
        "adapter.finalize()\nprint(MPI.Is_finalized())"
    )

    assert ended(sys.executable, "-c", program).stdout == "False\n"


def test_a_rank_that_fails_ends_those_that_wait_for_it(tmp_path: Path) -> None:
    program = tmp_path / "rank.py"
    program.write_text(
        IMPORTS + "numbers = read_rank_numbers()\n"
        "adapter.init('mpi', CPU, numbers.rank, numbers.world_size)\n"
        "barrier = Operation(collective=Collective.BARRIER, size_bytes=0)\n"
        "try:\n"
        "    adapter.run_collective(barrier, Tensors())\n"
        "    if numbers.rank == 1:\n"
        "        raise ValueError('this rank goes')\n"
        "    adapter.run_collective(barrier, Tensors())\n"
        "finally:\n"
        "    adapter.finalize()\n"
    )

    done = ended(*mpirun_command(2, (sys.executable, str(program))))

    assert done.returncode != 0
    assert "this rank goes" in done.stderr
