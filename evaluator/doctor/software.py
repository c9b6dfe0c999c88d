"""What is installed: torch with its backends, a compiler, tools that a search can use."""

import os
import shutil
from pathlib import Path

from evaluator.doctor.finding import Finding, State
from evaluator.mpi import mpi_library

_SLURM = ("sbatch", "srun", "squeue", "scancel")


def torch_backends() -> Finding:
    """The version of torch and the communication libraries in it."""
    # Imported here: it takes seconds, and nothing else in this process needs it.
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        return Finding(
            subject="torch",
            state=State.MISSING,
            told=f"{torch.__version__}, built without torch.distributed",
            remedy="install a build of torch with torch.distributed",
            needed=True,
        )
    built_in = {
        "gloo": dist.is_gloo_available(),
        _nccl_name(): dist.is_nccl_available(),
        "MPI": dist.is_mpi_available(),
    }
    present = ", ".join(name for name, there in built_in.items() if there)
    return Finding(
        subject="torch",
        state=State.OK if dist.is_gloo_available() else State.MISSING,
        told=f"{torch.__version__} with {present or 'no backend'}",
        remedy=None if dist.is_gloo_available() else "install a build of torch with gloo",
        needed=True,
    )


def compiler() -> Finding:
    """The C++ compiler that torch.compile needs on a CPU."""
    return _tool("compiler", ("g++", "clang++"), "torch.compile on CPUs needs it: install g++")


def stack_reader() -> Finding:
    """The tool that shows where a hanging rank is, native frames included."""
    return _tool(
        "py-spy", ("py-spy",), "stacks of hanging ranks come from Python alone: pip install py-spy"
    )


def mpi() -> Finding:
    """The MPI that ranks load, and the command that starts them with it."""
    library = mpi_library()
    remedy = 'only needed to measure and search MPI: pip install "cclsearch[mpi]"'
    if library is None:
        told = "mpi4py loads no MPI library"
        return Finding(subject="MPI", state=State.MISSING, told=told, remedy=remedy)
    name = f"{library.kind} {library.version}"
    if library.mpirun is None:
        told = f"{name} without the mpirun of this version"
        return Finding(subject="MPI", state=State.MISSING, told=told, remedy=remedy)
    return Finding(subject="MPI", state=State.OK, told=f"{name}, {library.mpirun}")


def slurm() -> Finding:
    """Slurm's commands."""
    lacking = [command for command in _SLURM if shutil.which(command) is None]
    if not lacking:
        return Finding(subject="Slurm", state=State.OK, told="all commands found")
    return Finding(
        subject="Slurm",
        state=State.MISSING,
        told=f"no {', '.join(lacking)}",
        remedy="only needed to launch on a cluster: run on its login node",
    )


def containers(root: Path = Path("/")) -> Finding:
    """Whether containers and control groups of our own can be made."""
    docker = shutil.which("docker") is not None
    groups = _writable(root / "sys/fs/cgroup")
    told = f"docker {'found' if docker else 'not found'}, control groups " + (
        "writable" if groups else "read-only"
    )
    return Finding(
        subject="containers",
        state=State.OK if groups else State.WARN,
        told=told,
        remedy=None if groups else "limits on ranks come from rlimits; nothing needs to be done",
    )


def _nccl_name() -> str:
    import torch

    if not torch.distributed.is_nccl_available():
        return "NCCL"
    version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call] # torch has no types here
    return f"NCCL {'.'.join(map(str, version))}"


def _tool(subject: str, names: tuple[str, ...], remedy: str) -> Finding:
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return Finding(subject=subject, state=State.OK, told=path)
    return Finding(
        subject=subject,
        state=State.MISSING,
        told=f"no {' or '.join(names)}",
        remedy=remedy,
    )


def _writable(mount: Path) -> bool:
    """Whether a group can be made in the tree that is mounted here, of either version."""
    return any(os.access(path, os.W_OK) for path in (mount, mount / "memory") if path.is_dir())
