"""How the MPI adapter starts, refuses and ends, on real processes."""

import json
from collections.abc import Callable

import pytest

from evaluator.machine import mpi_library

LIBRARY = mpi_library()
pytestmark = pytest.mark.skipif(
    LIBRARY is None or LIBRARY.mpirun is None, reason="no MPI library with its mpirun is installed"
)
IMPORTS = """
import json
import weakref
import torch
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


@pytest.fixture
def printed(warm_ranks, tmp_path) -> Callable[[str], str]:
    """What a process prints that no mpirun started: MPI gives it a world of its own."""

    def run(program: str) -> str:
        (tmp_path / "program.py").write_text(program)
        (status,) = warm_ranks.run(tmp_path, 1, (str(tmp_path / "program.py"),))
        log = (tmp_path / "rank0.log").read_text()
        assert status == 0, log
        return log

    return run


def test_a_rank_of_its_own_joins_calls_refuses_and_ends_as_mpi_allows(printed):
    seen = json.loads(printed(IMPORTS + ALONE))

    assert str(seen["of two"]).startswith(
        "UnavailableError: MPI is rank 0 of 1 where the launcher started rank 1 of 2; "
        "start the ranks with the mpirun of "
    )
    assert seen["of one"] is None
    assert str(seen["apart"]).startswith(
        "ValueError: MPI takes tensors of a list that lie side by side in memory, in order"
    )
    assert seen["kept"] is True
    assert "truncated" in str(seen["too long"])
    assert seen["unknown"] == (
        "ValueError: mpi has no reduction 'mean', only sum, min, max, avg, product"
    )
    assert seen["leave"] == [None, None]
    assert str(seen["again"]).startswith("UnavailableError: MPI has ended in this process")


def test_mpi_that_somebody_else_started_is_left_running(printed):
    program = (
        f"from mpi4py import MPI\n{IMPORTS}adapter.init('mpi', CPU, 0, 1)\n"
        "adapter.finalize()\nprint(MPI.Is_finalized())"
    )

    assert printed(program) == "False\n"
