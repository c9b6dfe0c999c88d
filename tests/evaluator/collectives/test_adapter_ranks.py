"""Every collective through gloo and MPI, on real ranks."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from evaluator.mpi import mpi_library, mpirun_command, mpirun_environment

PROGRAM = Path(__file__).with_name("adapter_ranks.py")
END_S = 120
HAS_MPI = mpi_library() is not None and mpi_library().mpirun is not None
needs_mpi = pytest.mark.skipif(not HAS_MPI, reason="no MPI library with its mpirun is installed")
CALLS = 195
"""Thirteen collectives in six formats, four of them with each reduction that has a meaning."""
REFUSED_BY_MPI = 40
"""Those that would compute with float16 or bfloat16."""


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def run(command: Sequence[str], folder: Path) -> list[dict[str, object]]:
    """What each rank of this launch saw."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=END_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]


def test_gloo_carries_all_collectives_between_four_ranks(tmp_path: Path) -> None:
    program = (str(PROGRAM), "c10d", str(tmp_path))
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")

    seen = run((*torchrun, "--nproc-per-node=4", *program), tmp_path)

    assert [rank["rank"] for rank in seen] == [0, 1, 2, 3]
    assert [rank["wrong"] for rank in seen] == [[], [], [], []]
    assert {rank["right"] for rank in seen} == {CALLS}
    assert seen[0]["size"] == 4
    assert seen[0]["backend"] == "gloo"
    assert seen[0]["version"] is None
    assert seen[0]["in_group"] is False


def test_tuned_gloo_works_beside_a_control_group_with_a_rank_that_has_no_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (sys.executable, str(PROGRAM), "c10d", str(tmp_path), str(tmp_path / "store"))
    monkeypatch.setenv("WORLD_SIZE", "3")
    ranks = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        ranks.append(subprocess.Popen(program))

    statuses = [rank.wait(timeout=END_S) for rank in ranks]

    assert statuses == [0, 0, 0]
    seen = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(3)]
    tunings = [tuning for rank in seen for tuning in rank["tunings"]]
    assert [tuning["wrong"] for tuning in tunings] == [[]] * 9
    assert {tuning["backend"] for tuning in tunings} == {"gloo"}
    one, two, four = (tuning["threads"] for tuning in seen[0]["tunings"])
    assert one < two < four


@needs_mpi
def test_mpi_carries_all_collectives_between_four_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = mpi_library()
    assert library is not None
    for name, value in mpirun_environment().items():
        monkeypatch.setenv(name, value)
    program = (sys.executable, str(PROGRAM), "mpi", str(tmp_path))

    seen = run(mpirun_command(4, program), tmp_path)

    assert [rank["rank"] for rank in seen] == [0, 1, 2, 3]
    assert [rank["wrong"] for rank in seen] == [[], [], [], []]
    assert {rank["right"] for rank in seen} == {CALLS - REFUSED_BY_MPI}
    assert {len(rank["refused"]) for rank in seen} == {REFUSED_BY_MPI}
    assert seen[0]["refused"][0] == (
        "mpi has no all_reduce sum float16 8248 B: MPI cannot compute with float16"
    )
    assert seen[0]["version"] == library.version
