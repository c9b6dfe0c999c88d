"""What machine this is: `cclsearch doctor`, the GPUs with their clocks, peaks and libraries."""

import json
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from part import Findings, Grid, Place, cclsearch

from evaluator.accelerators import accelerator
from evaluator.machine import describe_machine, gpu_conditions, nvidia_smi
from records.codec import to_json
from records.expression import format_bytes
from records.machine import Gpu
from search.settings import container_image, trial_environment

NO_GPU = "no NVIDIA GPU answers, so every part ran small on the CPU and shows nothing of CUDA"
CANNOT_RUN = 4
MOST_CLOCK = ("--query-gpu=clocks.max.sm", "--format=csv,noheader,nounits")


def look(place: Place) -> Findings:
    """Ask the doctor, then the driver."""
    told = json.loads(
        cclsearch("doctor", "--json", "--store", place.store, statuses=(0, CANNOT_RUN))
    )
    machine = describe_machine(Path.cwd(), trial_environment(), container_image())
    found = Findings(
        lead="What cclsearch doctor says, and what the driver says of the GPUs.",
        data={"doctor": told, "machine": json.loads(to_json(machine))},
    )
    if not told["can_run"]:
        found.doubts.append("cclsearch doctor says that a search cannot run here")
    versions = [f"{name} {version}" for name, version in machine.software.items()]
    found.facts += [
        ("system", f"{machine.system}, kernel {machine.kernel}, {machine.python}"),
        ("processor", f"{machine.cpu_model}, {machine.usable_core_count} cores"),
        ("software", ", ".join(versions)),
        *((each["subject"], _words(each)) for each in told["findings"]),
    ]
    if place.has_gpu:
        add_gpus(found, machine.gpus)
    else:
        found.lacks.append(NO_GPU)
    return found


def _words(finding) -> str:
    """A result of the doctor, as on the terminal."""
    state = "" if finding["state"] == "ok" else f"{finding['state']}: "
    remedy = f" ({finding['remedy']})" if finding["remedy"] else ""
    return f"{state}{finding['detail']}{remedy}"


def add_gpus(found: Findings, gpus: Sequence[Gpu]) -> None:
    """Show the GPUs, their clocks now and at most, and the rates that MFU is measured against."""
    states, fastest = gpu_conditions(), nvidia_smi(*MOST_CLOCK)
    if len(states) < len(gpus):
        found.doubts.append(f"the driver shows the clocks of {len(states)} of {len(gpus)} GPUs")
    rows = []
    for number, (gpu, now) in enumerate(zip_longest(gpus, states[: len(gpus)])):
        known, most = accelerator(gpu.name), "".join(fastest[number : number + 1])
        if known is None:
            found.lacks.append(f"the peak of {gpu.name!r} is not known, so there is no MFU")
        if now and now.slowed_by:
            found.doubts.append(f"GPU {number} is slowed: {', '.join(now.slowed_by)}")
        clock_hz, heat = (now.sm_clock_hz, now.temperature_celsius) if now else (None, None)
        peaks = known.peak_tflops if known else {}
        rows.append(
            (
                *(str(number), gpu.name, format_bytes(gpu.memory_bytes or 0), gpu.driver or ""),
                "unknown" if clock_hz is None else f"{clock_hz / 1e6:.0f} of {most} MHz",
                "unknown" if heat is None else f"{heat:.0f} °C",
                "unknown" if gpu.power_limit_w is None else f"{gpu.power_limit_w:.0f} W",
                ", ".join(f"{name} {rate:g}" for name, rate in peaks.items() if rate),
            )
        )
    headings = (
        *("GPU", "name", "memory", "driver", "SM clock now", "temperature", "power limit"),
        "dense peak, TFLOP/s",
    )
    found.tables.append(Grid(about="GPUs as the driver shows them", headings=headings, rows=rows))
