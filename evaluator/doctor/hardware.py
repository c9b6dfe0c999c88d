"""What the machine is made of: devices, links between them, memory, clocks."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from evaluator.doctor.finding import Finding, State
from evaluator.launchers.limits import free_memory_bytes
from evaluator.machine import CPU_RANKS_PER_CORE, DEFAULT_CPU_RANKS, local_gpus

LEAST_FREE_BYTES = 2 << 30
_NVIDIA_LIMIT_S = 30.0
_STEADY_GOVERNOR = "performance"


def gpus() -> Finding:
    """GPUs that this process may use."""
    found = local_gpus()
    if not found:
        return Finding(
            subject="GPUs",
            state=State.WARN,
            told="none that the driver names and CUDA_VISIBLE_DEVICES shows; ranks run on the CPU",
            remedy="on a machine with GPUs: install the NVIDIA driver, unset CUDA_VISIBLE_DEVICES",
        )
    names = ", ".join(sorted({name for name, _ in found}))
    return Finding(subject="GPUs", state=State.OK, told=f"{len(found)}: {names}")


def gpu_links() -> Finding:
    """How GPUs are connected, from the driver's matrix."""
    matrix = _nvidia_matrix()
    links = sorted(set(_links(matrix)))
    if not links:
        return Finding(subject="GPU links", state=State.OK, told="no two GPUs to connect")
    slow = not any(link.startswith("NV") for link in links)
    return Finding(
        subject="GPU links",
        state=State.WARN if slow else State.OK,
        told=", ".join(links),
        remedy="without NVLink, prefer fewer tensor-parallel ranks" if slow else None,
    )


def interfaces(root: Path = Path("/")) -> Finding:
    """Network interfaces that are up; ranks on one machine meet over loopback."""
    up = [
        path.name
        for path in sorted((root / "sys/class/net").glob("*"))
        if (path / "operstate").is_file() and _up(path)
    ]
    if "lo" not in up:
        return Finding(
            subject="interfaces",
            state=State.MISSING,
            told=f"loopback is down; up: {', '.join(up) or 'none'}",
            remedy="ip link set lo up",
            needed=True,
        )
    return Finding(subject="interfaces", state=State.OK, told=", ".join(up))


def cores(root: Path = Path("/")) -> Finding:
    """CPU cores that affinity and control group leave us."""
    allowed, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    quota = _cpu_quota(root)
    told = f"{allowed} of {present}" + (f", quota of {quota:g}" if quota is not None else "")
    usable = min(allowed, quota) if quota is not None else allowed
    if usable * CPU_RANKS_PER_CORE < DEFAULT_CPU_RANKS:
        return Finding(
            subject="cores",
            state=State.WARN,
            told=told,
            remedy=f"{DEFAULT_CPU_RANKS} ranks will wait for each other; allow more cores",
        )
    return Finding(subject="cores", state=State.OK, told=told)


def memory() -> Finding:
    """Memory that can be taken without swapping, also by our control groups."""
    free_bytes = free_memory_bytes()
    enough = free_bytes >= LEAST_FREE_BYTES
    return Finding(
        subject="memory",
        state=State.OK if enough else State.WARN,
        told=f"{free_bytes / 2**30:.1f} GiB free",
        remedy=None if enough else "end other programs, or raise the control group's limit",
    )


def clocks(root: Path = Path("/")) -> Finding:
    """Whether the cores keep one frequency; a varying one is noise in every step time."""
    cpu = root / "sys/devices/system/cpu"
    governors = {_text(path) for path in cpu.glob("cpu[0-9]*/cpufreq/scaling_governor")}
    if not governors:
        return Finding(
            subject="clocks",
            state=State.OK,
            told="not visible here, as in most virtual machines",
        )
    turbo = _turbo(cpu)
    told = f"governor {', '.join(sorted(governors))}{turbo}"
    if governors == {_STEADY_GOVERNOR}:
        return Finding(subject="clocks", state=State.OK, told=told)
    return Finding(
        subject="clocks",
        state=State.WARN,
        told=told,
        remedy=f"for steadier times: cpupower frequency-set -g {_STEADY_GOVERNOR}",
    )


def _turbo(cpu: Path) -> str:
    boost, no_turbo = _text(cpu / "cpufreq/boost"), _text(cpu / "intel_pstate/no_turbo")
    if not boost and not no_turbo:
        return ""
    return ", turbo on" if boost == "1" or no_turbo == "0" else ", turbo off"


def _cpu_quota(root: Path) -> float | None:
    """Cores that the control group gives us, of either version; None without a limit."""
    quota, _, period = _text(root / "sys/fs/cgroup/cpu.max").partition(" ")
    if not period:
        group = root / "sys/fs/cgroup/cpu"
        quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
    if not quota.isdecimal() or not period.isdecimal():
        return None  # "max", -1, or no such group
    return int(quota) / int(period)


def _up(interface: Path) -> bool:
    # Loopback and tunnels report "unknown" while they are up.
    return _text(interface / "operstate") in ("up", "unknown")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _nvidia_matrix() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    try:
        told = subprocess.run(
            [tool, "topo", "-m"], capture_output=True, timeout=_NVIDIA_LIMIT_S, check=True
        )
    except (subprocess.SubprocessError, OSError):
        return ""
    return told.stdout.decode(errors="replace")


def _links(matrix: str) -> Iterator[str]:
    """Kinds of link between two GPUs: NV18, PIX, SYS and their like."""
    header, *rows = [line.split() for line in matrix.splitlines() if line.strip()] or [[]]
    count = sum(name.startswith("GPU") and name[3:].isdecimal() for name in header)
    for row in rows:
        if row[0].startswith("GPU") and row[0][3:].isdecimal():
            yield from (cell for cell in row[1 : count + 1] if cell != "X")
