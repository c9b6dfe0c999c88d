"""Every collective through gloo and MPI, on real ranks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from evaluator.machine import mpi_library, mpirun_command, mpirun_environment

PROGRAM = Path(__file__).with_name("adapter_ranks.py")
END_S = 120
HAS_MPI = mpi_library() is not None and mpi_library().mpirun is not None
needs_mpi = pytest.mark.skipif(not HAS_MPI, reason="no MPI library with its mpirun is installed")
CALLS = 195
"""Thirteen collectives in six formats, four of them with each reduction that has a meaning."""
REFUSED_BY_MPI = 40
"""Those that would compute with float16 or bfloat16."""


def left_in(folder: Path) -> list[dict[str, object]]:
    """What each rank saw."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]


def test_gloo_carries_all_collectives_between_four_ranks(warm_ranks, tmp_path):
    statuses = warm_ranks.run(tmp_path, 4, (str(PROGRAM), "c10d", str(tmp_path)))

    seen = left_in(tmp_path)
    assert statuses == [0, 0, 0, 0]
    assert [rank["rank"] for rank in seen] == [0, 1, 2, 3]
    assert [rank["wrong"] for rank in seen] == [[], [], [], []]
    assert {rank["right"] for rank in seen} == {CALLS}
    assert seen[0]["size"] == 4
    assert seen[0]["backend"] == "gloo"
    assert seen[0]["version"] is None
    assert seen[0]["in_group"] is False


def test_tuned_gloo_works_beside_a_control_group_with_a_rank_that_has_no_pair(warm_ranks, tmp_path):
    program = (str(PROGRAM), "c10d", str(tmp_path), str(tmp_path / "group"))

    statuses = warm_ranks.run(tmp_path, 3, program)

    seen = left_in(tmp_path)
    assert statuses == [0, 0, 0]
    tunings = [tuning for rank in seen for tuning in rank["tunings"]]
    assert [tuning["wrong"] for tuning in tunings] == [[]] * 9
    assert {tuning["backend"] for tuning in tunings} == {"gloo"}
    one, two, four = (tuning["threads"] for tuning in seen[0]["tunings"])
    assert one < two < four


@needs_mpi
def test_mpi_carries_all_collectives_between_three_ranks(tmp_path, monkeypatch):
    library = mpi_library()
    assert library is not None
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name, value in mpirun_environment().items():
        monkeypatch.setenv(name, value)
    program = (sys.executable, str(PROGRAM), "mpi", str(tmp_path))

    command = mpirun_command(3, program)
    done = subprocess.run(command, capture_output=True, text=True, timeout=END_S, check=False)

    seen = left_in(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr
    assert [rank["rank"] for rank in seen] == [0, 1, 2]
    assert [rank["wrong"] for rank in seen] == [[], [], []]
    assert {rank["right"] for rank in seen} == {CALLS - REFUSED_BY_MPI}
    assert {len(rank["refused"]) for rank in seen} == {REFUSED_BY_MPI}
    assert seen[0]["refused"][0] == (
        "mpi has no all_reduce sum float16 8248 B: MPI cannot compute with float16"
    )
    assert seen[0]["version"] == library.version
