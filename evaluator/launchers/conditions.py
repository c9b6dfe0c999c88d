"""What else the machine did while a job ran, measured around a launch.

A fact that the machine does not report is None. Linux only: it is read from /proc and /sys.
"""

import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from evaluator.launchers.limits import available_memory_bytes, descendants, stat_fields
from evaluator.machine import file_text, nvidia_smi
from records.machine import Conditions, GpuConditions

_PRESSURE = re.compile(r"some .*total=(\d+)")
_SENSORS = ("coretemp", "k10temp", "zenpower")
_NVIDIA_FIELDS = "clocks.sm,temperature.gpu,clocks_throttle_reasons.active"
_SLOWDOWNS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ticks:
    """CPU time of all cores since the machine started, in clock ticks."""

    busy: int
    steal: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Counters and gauges of the machine at one moment."""

    at_s: float
    ticks: _Ticks | None
    own_ticks: int
    pressure_us: tuple[int | None, int | None, int | None]
    load_average: float | None
    available_memory_bytes: int | None
    cpu_clock_hz: float | None
    cpu_temperature_celsius: float | None


def take_snapshot(root: Path = Path("/")) -> Snapshot:
    """Read all counters now; `root` is where /proc and /sys are mounted."""
    proc = root / "proc"
    return Snapshot(
        at_s=time.perf_counter(),
        ticks=_ticks(proc),
        own_ticks=sum(_process_ticks(pid) for pid in (os.getpid(), *descendants(os.getpid()))),
        pressure_us=(_stall_us(proc, "cpu"), _stall_us(proc, "memory"), _stall_us(proc, "io")),
        load_average=_load_average(proc),
        available_memory_bytes=available_memory_bytes(proc),
        cpu_clock_hz=_cpu_clock_hz(root),
        cpu_temperature_celsius=_cpu_temperature_celsius(root),
    )


def conditions_between(
    before: Snapshot, after: Snapshot, gpus: tuple[GpuConditions, ...] = ()
) -> Conditions:
    """Return what happened between two moments; processes below this one count as the job's."""
    others, steal = _cpu_shares(before, after)
    cpu, memory, io = (
        _stall_share(first, last, after.at_s - before.at_s)
        for first, last in zip(before.pressure_us, after.pressure_us, strict=True)
    )
    return Conditions(
        load_average=after.load_average,
        others_cpu_share=others,
        steal_share=steal,
        cpu_pressure_share=cpu,
        memory_pressure_share=memory,
        io_pressure_share=io,
        available_memory_bytes=_least(before.available_memory_bytes, after.available_memory_bytes),
        cpu_clock_hz=after.cpu_clock_hz,
        cpu_temperature_celsius=after.cpu_temperature_celsius,
        gpus=gpus,
    )


def gpu_conditions() -> tuple[GpuConditions, ...]:
    """Clock, temperature and slowdowns of each NVIDIA GPU now; none where no driver answers."""
    lines = nvidia_smi(f"--query-gpu={_NVIDIA_FIELDS}", "--format=csv,noheader,nounits")
    rows = [line.split(",") for line in lines]
    return tuple(_gpu([cell.strip() for cell in row]) for row in rows if len(row) == 3)


def _gpu(cells: Sequence[str]) -> GpuConditions:
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


def _cpu_shares(before: Snapshot, after: Snapshot) -> tuple[float | None, float | None]:
    """What others and the hypervisor took, as shares of the time of all cores."""
    if before.ticks is None or after.ticks is None:
        return None, None
    total = after.ticks.total - before.ticks.total
    if total <= 0:
        return None, None
    own = after.own_ticks - before.own_ticks
    others = after.ticks.busy - before.ticks.busy - own
    # Ticks are counted per process and per core at different moments: they may miss by a few.
    return max(0, others) / total, max(0, after.ticks.steal - before.ticks.steal) / total


def _stall_share(first_us: int | None, last_us: int | None, wall_s: float) -> float | None:
    if first_us is None or last_us is None or wall_s <= 0:
        return None
    return min(1.0, (last_us - first_us) / 1e6 / wall_s)


def _least(first: int | None, second: int | None) -> int | None:
    return min((value for value in (first, second) if value is not None), default=None)


def _ticks(proc: Path) -> _Ticks | None:
    name, *fields = file_text(proc / "stat").partition("\n")[0].split() or [""]
    if name != "cpu" or len(fields) < 8:
        return None
    user, nice, system, idle, iowait, irq, softirq, steal = (int(field) for field in fields[:8])
    busy = user + nice + system + irq + softirq
    return _Ticks(busy=busy, steal=steal, total=busy + steal + idle + iowait)


def _process_ticks(pid: int) -> int:
    """CPU time of a process and of those of its children that it has waited for; 0 if it ended."""
    return sum(map(int, stat_fields(pid)[11:15]))  # user and system time


def _stall_us(proc: Path, resource: str) -> int | None:
    """How long so far some task waited for the resource."""
    found = _PRESSURE.match(file_text(proc / "pressure" / resource))
    return int(found[1]) if found else None


def _load_average(proc: Path) -> float | None:
    fields = file_text(proc / "loadavg").split()
    return float(fields[0]) if fields else None


def _cpu_clock_hz(root: Path) -> float | None:
    """Mean over the cores."""
    cores = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq")
    clocks = [int(text) * 1000 for core in cores if (text := file_text(core)).isdecimal()]
    return sum(clocks) / len(clocks) if clocks else None


def _cpu_temperature_celsius(root: Path) -> float | None:
    """Of the hottest sensor in a processor."""
    sensors = (root / "sys/class/hwmon").glob("hwmon*")
    inputs = [
        text
        for sensor in sensors
        if file_text(sensor / "name") in _SENSORS
        for path in sensor.glob("temp*_input")
        if (text := file_text(path)).isdecimal()
    ]
    return max((int(text) / 1000 for text in inputs), default=None)
