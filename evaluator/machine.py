"""What the machine in front of us offers: GPUs if there are any, else CPU ranks."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from records.errors import EnvironmentFault
from records.machine import Gpu
from records.study import Environment

DEFAULT_CPU_RANKS = 4
CPU_RANKS_PER_CORE = 4

# A GPU that shares its memory with the host has no amount of its own.
_GPU = re.compile(
    r"(?P<name>.*\S)\s*,\s*(?:(?P<mebibytes>\d{1,12})|\[[^]]+\])\s*,\s*(?P<uuid>GPU-[-0-9a-f]+)\s*"
    r"(?:,\s*(?P<driver>[\w.]+)\s*,\s*(?:(?P<watts>\d{1,6}(?:\.\d+)?)|\[[^]]+\])\s*)?"
)
_IDENTITY = "name,memory.total,uuid"

# What `local_environment` tells of the processor of CPU ranks.
_CORES = re.compile(r", ([1-9]\d{0,5}) cores$")


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


def local_gpus() -> tuple[tuple[str, int | None], ...]:
    """Name of each NVIDIA GPU that CUDA_VISIBLE_DEVICES leaves us, in its order.

    With it goes its memory in bytes, where its driver tells that.
    """
    rows = _driver_rows(_IDENTITY)
    return tuple((row["name"], _memory_bytes(row)) for row in rows)


def described_gpus() -> tuple[Gpu, ...]:
    """The same GPUs, with what else their driver tells of them."""
    return tuple(
        Gpu(
            name=row["name"],
            memory_bytes=_memory_bytes(row),
            driver=row["driver"],
            power_limit_w=float(row["watts"]) if row["watts"] else None,
        )
        for row in _driver_rows(f"{_IDENTITY},driver_version,power.limit")
    )


def _driver_rows(query: str) -> Sequence[re.Match[str]]:
    """What the driver's tool answers for each GPU that is visible; none without one."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    asked = [tool, f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(asked, capture_output=True, timeout=30, check=True)
    except (subprocess.SubprocessError, OSError):
        return ()
    lines = told.stdout.decode(errors="replace").splitlines()
    rows = [row for line in lines if (row := _GPU.fullmatch(line))]
    return [rows[index] for index in _visible([row["uuid"] for row in rows])]


def _memory_bytes(row: re.Match[str]) -> int | None:
    return int(row["mebibytes"]) << 20 if row["mebibytes"] else None


def _visible(uuids: Sequence[str]) -> list[int]:
    """Which of these GPUs CUDA_VISIBLE_DEVICES leaves, by the rules of CUDA.

    The list ends at the first entry that names no GPU; one named twice leaves none. The driver's
    tool does not follow the variable. A slice of a GPU counts as no GPU: it cannot be asked for
    its memory.
    """
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")  # noqa: TID251 - it is a fact of the machine
    if asked is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for entry in asked.split(","):
        index = _index(entry.strip(), uuids)
        if index is None:
            break
        if index in chosen:
            return []
        chosen.append(index)
    return chosen


def _index(entry: str, uuids: Sequence[str]) -> int | None:
    if entry.isdecimal():
        return int(entry) if int(entry) < len(uuids) else None
    named = [
        i for i, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)
    ]
    return named[0] if len(named) == 1 else None


def check_local(environment: Environment) -> None:
    """Raise `EnvironmentFault` when this machine cannot hold the ranks that are asked for."""
    if environment.device == "cuda":
        held, what, instead = len(local_gpus()), "GPUs", "device to 'cpu'"
    else:
        held, what, instead = max(8, CPU_RANKS_PER_CORE * (os.cpu_count() or 1)), "CPU ranks", ""
    if environment.world_size > held:
        ways = (f"world_size to at most {held}" if held else "", instead)
        raise EnvironmentFault(
            f"[environment] world_size {environment.world_size}: this machine can hold {held} "
            f"{what}; set {' or '.join(filter(None, ways))}"
        )


def core_count(environment: Environment) -> int | None:
    """Cores of a node as the name of its processor tells them; None where ranks have devices."""
    told = _CORES.search(environment.accelerator)
    return int(told[1]) if environment.device == "cpu" and told else None


def _cpu_name() -> str:
    name = platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
            break
    return f"{name}, {os.cpu_count()} cores"
