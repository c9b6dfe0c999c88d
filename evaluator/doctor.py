"""Checks that this machine can run searches: hardware, software, launches and their noise."""

import math
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from evaluator.evaluate import TrialEvaluator
from evaluator.job_python import (
    LEAST_TORCH,
    ask_python,
    release_of,
    torch_release,
    torch_version,
)
from evaluator.launchers.limits import free_memory_bytes
from evaluator.machine import (
    CPU_RANKS_PER_CORE,
    DEFAULT_CPU_RANKS,
    cpu_governor,
    file_text,
    local_gpus,
    mpi_library,
    network_interfaces,
    nvidia_smi,
)
from evaluator.timing.decision import DecisionRule, detectable, pooled
from records.errors import EnvironmentFault
from records.machine import Conditions
from records.study import Study
from records.trial import Config, Failed


class State(StrEnum):
    """How good a result is: `warn` works, but worse than it could."""

    OK = "ok"
    WARN = "warn"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What was found, and what to do where something is missing.

    `needed` is whether a search on this machine cannot run without it.
    """

    subject: str
    state: State
    detail: str
    remedy: str | None = None
    needed: bool = False


def ok(subject: str, detail: str, *, needed: bool = False) -> CheckResult:
    """Report what works as it should."""
    return CheckResult(subject=subject, state=State.OK, detail=detail, needed=needed)


def warn(subject: str, detail: str, remedy: str, *, needed: bool = False) -> CheckResult:
    """Report what works, and how it would work better."""
    return CheckResult(
        subject=subject, state=State.WARN, detail=detail, remedy=remedy, needed=needed
    )


def missing(subject: str, detail: str, remedy: str, *, needed: bool = False) -> CheckResult:
    """Report what is not there or does not work, and what to do about it."""
    return CheckResult(
        subject=subject, state=State.MISSING, detail=detail, remedy=remedy, needed=needed
    )


LEAST_FREE_BYTES = 2 << 30
_STEADY_GOVERNOR = "performance"


def gpus() -> CheckResult:
    """GPUs that this process may use."""
    found = local_gpus()
    if not found:
        return warn(
            "GPUs",
            "none that the driver and CUDA_VISIBLE_DEVICES show; ranks run on the CPU",
            "on a machine with GPUs: install the NVIDIA driver, unset CUDA_VISIBLE_DEVICES",
        )
    names = ", ".join(sorted({gpu.name for gpu in found}))
    return ok("GPUs", f"{len(found)}: {names}")


def gpu_links() -> CheckResult:
    """How GPUs are connected, from the driver's matrix."""
    links = sorted(set(_links(nvidia_smi("topo", "-m"))))
    if not links:
        return ok("GPU links", "no two GPUs to connect")
    if any(link.startswith("NV") for link in links):
        return ok("GPU links", ", ".join(links))
    remedy = "without NVLink, prefer fewer tensor-parallel ranks"
    return warn("GPU links", ", ".join(links), remedy)


def interfaces() -> CheckResult:
    """Network interfaces that are up; ranks on one machine meet over loopback."""
    up = network_interfaces()
    if "lo" not in up:
        detail = f"loopback is down; up: {', '.join(up) or 'none'}"
        return missing("interfaces", detail, "ip link set lo up", needed=True)
    return ok("interfaces", ", ".join(up))


def cores(root: Path = Path("/")) -> CheckResult:
    """CPU cores that affinity and control group leave us."""
    allowed, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    quota = _cpu_quota(root)
    detail = f"{allowed} of {present}" + (f", quota of {quota:g}" if quota is not None else "")
    usable = min(allowed, quota) if quota is not None else allowed
    if usable * CPU_RANKS_PER_CORE < DEFAULT_CPU_RANKS:
        remedy = f"{DEFAULT_CPU_RANKS} ranks will wait for each other; allow more cores"
        return warn("cores", detail, remedy)
    return ok("cores", detail)


def memory() -> CheckResult:
    """Memory that can be taken without swapping, also by our control groups."""
    free_bytes = free_memory_bytes()
    detail = f"{free_bytes / 2**30:.1f} GiB free"
    if free_bytes >= LEAST_FREE_BYTES:
        return ok("memory", detail)
    return warn("memory", detail, "end other programs, or raise the control group's limit")


def clocks(root: Path = Path("/")) -> CheckResult:
    """Whether the cores keep one frequency; a varying one is noise in every step time."""
    governor = cpu_governor(root)
    if governor is None:
        return ok("clocks", "not visible here, as in most virtual machines")
    detail = f"governor {governor}{_turbo(root / 'sys/devices/system/cpu')}"
    if governor == _STEADY_GOVERNOR:
        return ok("clocks", detail)
    remedy = f"for steadier times: cpupower frequency-set -g {_STEADY_GOVERNOR}"
    return warn("clocks", detail, remedy)


def hardware_threads(root: Path = Path("/")) -> CheckResult:
    """Whether two hardware threads share a core: what runs on one slows the other."""
    subject, control = "hardware threads", "sys/devices/system/cpu/smt"
    active = file_text(root / control / "active")
    if active not in ("0", "1"):
        return ok(subject, "not visible here")
    if active == "0":
        return ok(subject, "one for each core")
    remedy = f"for steadier times of CPU ranks: echo off > /{control}/control, as root"
    return warn(subject, "two share each core", remedy)


def _turbo(cpu: Path) -> str:
    boost, no_turbo = file_text(cpu / "cpufreq/boost"), file_text(cpu / "intel_pstate/no_turbo")
    if not boost and not no_turbo:
        return ""
    return ", turbo on" if boost == "1" or no_turbo == "0" else ", turbo off"


def _cpu_quota(root: Path) -> float | None:
    """Cores that the control group gives us, of either version; None without a limit."""
    quota, _, period = file_text(root / "sys/fs/cgroup/cpu.max").partition(" ")
    if not period:
        group = root / "sys/fs/cgroup/cpu"
        quota = file_text(group / "cpu.cfs_quota_us")
        period = file_text(group / "cpu.cfs_period_us")
    if not quota.isdecimal() or not period.isdecimal():
        return None  # "max", -1, or no such group
    return int(quota) / int(period)


def _links(matrix: Sequence[str]) -> Iterator[str]:
    """Kinds of link between two GPUs: NV18, PIX, SYS and their like."""
    header, *rows = [line.split() for line in matrix if line.strip()] or [[]]
    count = sum(name.startswith("GPU") and name[3:].isdecimal() for name in header)
    for row in rows:
        if row[0].startswith("GPU") and row[0][3:].isdecimal():
            yield from (cell for cell in row[1 : count + 1] if cell != "X")


DETAIL_CHARS = 300
NOISY = 0.05
ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLaunch:
    """One launch that was measured: the whole of it, and its steps on their slowest ranks."""

    wall_s: float
    step_times_s: tuple[float, ...]
    conditions: Conditions | None


def launch_repeatedly(
    evaluator: TrialEvaluator, study: Study, config: Config, folder: Path, count: int
) -> tuple[MeasuredLaunch, ...] | str:
    """Launch the same job several times in folders below this one; the cause when one fails."""
    launches: list[MeasuredLaunch] = []
    for number in range(count):
        workdir = folder / str(number)
        workdir.mkdir()
        started_s = time.perf_counter()
        try:
            outcome = evaluator.evaluate(study, config, workdir)
        except EnvironmentFault as fault:
            return str(fault)
        if isinstance(outcome, Failed):
            return str(outcome)
        launches.append(
            MeasuredLaunch(
                wall_s=time.perf_counter() - started_s,
                step_times_s=outcome.measurement.slowest_rank_s,
                conditions=outcome.measurement.conditions,
            )
        )
    return tuple(launches)


def check_launches(
    subject: str, launches: Sequence[MeasuredLaunch] | str, *, needed: bool
) -> CheckResult:
    """Whether a launch works; the first of several also started the warm process."""
    if isinstance(launches, str):
        remedy = "a search cannot measure anything here until this works"
        return missing(subject, launches[:DETAIL_CHARS], remedy, needed=needed)
    again_s = statistics.median(launch.wall_s for launch in launches[1:])
    return ok(
        subject,
        f"ranks join and train; {launches[0].wall_s - again_s:.1f} s to start the warm process, "
        f"{again_s:.2f} s for each launch",
        needed=needed,
    )


def check_noise(launches: Sequence[MeasuredLaunch], *, can_isolate: bool = False) -> CheckResult:
    """Report how much equal launches differ, and what difference a search could still resolve."""
    quartiles = [np.quantile(launch.step_times_s, (0.25, 0.5, 0.75)) for launch in launches]
    within = statistics.median(float((high - low) / centre) for low, centre, high in quartiles)
    medians = [statistics.median(launch.step_times_s) for launch in launches]
    resolved = smallest_difference(medians, ROUNDS)
    detail = (
        f"steps of one launch differ by {within:.0%} (quartiles), {len(launches)} "
        f"launches by {max(medians) / min(medians) - 1:.0%} (slowest to fastest); with {ROUNDS} "
        f"rounds a search resolves {resolved:.0%}"
    )
    if resolved <= NOISY:
        return ok("noise", detail)
    watched = [launch.conditions for launch in launches if launch.conditions]
    causes = sorted({cause for each in watched for cause in each.disturbances})
    remedy = causes[0] if causes else "end other programs; take more rounds"
    if can_isolate and any(each.disturbing_share for each in watched):
        remedy += "; cclsearch run --isolate gives jobs priority over them"
    return warn("noise", detail, remedy)


def smallest_difference(values: Sequence[float], rounds: int) -> float:
    """The least relative difference that paired rounds of such launches show, four times of five.

    `values` are positive, one for each of at least two launches of the same job.
    """
    noise = pooled([[[value] for value in values]])
    if noise is None:
        raise ValueError(f"{len(values)} launches resolve no difference")
    ratio = detectable(noise, DecisionRule(min_rounds=rounds, max_rounds=rounds))
    return math.inf if ratio is None else ratio - 1


_SLURM = ("sbatch", "srun", "squeue", "scancel")


NEEDS_TORCH = "only the built-in trainer and the collective benchmark need it"


def python_with_torch() -> str | None:
    """The first other Python on PATH whose torch ranks can run."""
    own = Path(sys.executable).parent
    folders = (folder for folder in map(Path, os.get_exec_path()) if folder != own)
    there = (shutil.which("python3", path=str(folder)) for folder in folders)
    for python in dict.fromkeys(filter(None, there)):
        if (torch_release(python) or (0, 0)) >= LEAST_TORCH:
            return python
    return None


def _without_torch(python: str | None) -> str:
    """What to do where ranks have no torch."""
    other = python_with_torch() if python is None else None
    if other is not None:
        return f"{NEEDS_TORCH}; {other} has torch {torch_version(other)}: add --python {other}"
    return (
        f'{NEEDS_TORCH}: pip install "cclsearch[builtin]", or name a Python that has torch '
        "with --python"
    )


def torch_backends(python: str | None = None) -> CheckResult:
    """The torch that ranks run, in our Python or another, and its communication libraries."""
    try:
        found = ask_python(python or sys.executable, "torch")
    except EnvironmentFault as fault:
        return missing("torch", str(fault), "install it again there", needed=python is not None)
    version, of = found.packages.get("torch"), f"{found.python}{f' ({python})' if python else ''}"
    if version is None:
        return missing("torch", f"not in {of}", _without_torch(python), needed=python is not None)
    backends = found.backends or {}
    present = ", ".join(" ".join(filter(None, each)) for each in backends.items())
    detail = f"{version} with {present or 'no backend'}, {of}"
    if (release_of(version) or LEAST_TORCH) < LEAST_TORCH:
        least = ".".join(map(str, LEAST_TORCH))
        return missing("torch", detail, f"ranks need {least} or later", needed=True)
    if "gloo" in backends:
        return ok("torch", detail, needed=True)
    return missing("torch", detail, "install a build of torch with gloo", needed=True)


def compiler() -> CheckResult:
    """The C++ compiler that torch.compile needs on a CPU."""
    return _tool("compiler", ("g++", "clang++"), "torch.compile on CPUs needs it: install g++")


def stack_reader() -> CheckResult:
    """The tool that shows where a hanging rank is, native frames included."""
    return _tool(
        "py-spy", ("py-spy",), "stacks of hanging ranks come from Python alone: pip install py-spy"
    )


def mpi() -> CheckResult:
    """The MPI that ranks load, and the command that starts them with it."""
    library = mpi_library()
    remedy = 'only needed to measure and search MPI: pip install "cclsearch[mpi]"'
    if library is None:
        return missing("MPI", "mpi4py loads no MPI library", remedy)
    name = f"{library.kind} {library.version}"
    if library.mpirun is None:
        return missing("MPI", f"{name} without the mpirun of this version", remedy)
    return ok("MPI", f"{name}, {library.mpirun}")


def slurm() -> CheckResult:
    """Slurm's commands."""
    lacking = [command for command in _SLURM if shutil.which(command) is None]
    if not lacking:
        return ok("Slurm", "all commands found")
    remedy = "only needed to launch on a cluster: run on its login node"
    return missing("Slurm", f"no {', '.join(lacking)}", remedy)


def containers(root: Path = Path("/")) -> CheckResult:
    """Whether containers and control groups of our own can be made."""
    docker = shutil.which("docker") is not None
    found = f"docker {'found' if docker else 'not found'}"
    mounts = (root / "sys/fs/cgroup", root / "sys/fs/cgroup/memory")  # of either version
    if any(mount.is_dir() and os.access(mount, os.W_OK) for mount in mounts):
        return ok("containers", f"{found}, control groups writable")
    remedy = "limits on ranks come from rlimits; nothing needs to be done"
    return warn("containers", f"{found}, control groups read-only", remedy)


def _tool(subject: str, names: tuple[str, ...], remedy: str) -> CheckResult:
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return ok(subject, path)
    return missing(subject, f"no {' or '.join(names)}", remedy)
