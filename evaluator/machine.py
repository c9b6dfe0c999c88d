"""What the machine in front of us offers: GPUs if there are any, else CPU ranks."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

from records.errors import EnvironmentFault
from records.study import Environment

DEFAULT_CPU_RANKS = 4
CPU_RANKS_PER_CORE = 4


def local_environment() -> Environment:
    """Give the machine we run on as an environment: every GPU, or four CPU ranks."""
    gpus = local_gpus()
    if gpus:
        name, memory_bytes = gpus[0]
        return Environment(
            name="this machine",
            device="cuda",
            accelerator=name,
            world_size=len(gpus),
            ranks_per_node=len(gpus),
            memory_bytes=memory_bytes,
        )
    return Environment(
        name="this machine",
        device="cpu",
        accelerator=_cpu_name(),
        world_size=DEFAULT_CPU_RANKS,
        ranks_per_node=DEFAULT_CPU_RANKS,
    )


def local_gpus() -> tuple[tuple[str, int], ...]:
    """Name and memory in bytes of each NVIDIA GPU, as its driver tells."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    asked = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True)
    except (subprocess.SubprocessError, OSError):
        return ()
    rows = (line.rsplit(",", 1) for line in told.stdout.splitlines() if "," in line)
    return tuple((name.strip(), int(mebibytes) << 20) for name, mebibytes in rows)


def check_local(environment: Environment) -> None:
    """Raise `EnvironmentFault` when this machine cannot hold the ranks that are asked for."""
    if environment.device == "cuda":
        held, what = len(local_gpus()), "GPUs"
    else:
        held, what = max(8, CPU_RANKS_PER_CORE * (os.cpu_count() or 1)), "CPU ranks"
    if environment.world_size > held:
        raise EnvironmentFault(
            f"[environment] world_size {environment.world_size}: this machine can hold {held} "
            f"{what}; set world_size to at most {held}"
            + (" or device to 'cpu'" if environment.device == "cuda" else "")
        )


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return f"{value.strip()}, {os.cpu_count()} cores"
    return platform.machine()
