"""Clocks, power and heat of the GPUs while something runs, as their driver samples them."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from part import Findings

from evaluator.machine import gpu_condition
from search.views.format import format_percent

FIELDS = "clocks.sm,temperature.gpu,clocks_event_reasons.active,power.draw,utilization.gpu"
SAMPLE = ("nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits", "-lms", "500")
AT_WORK_PERCENT = 50
HARMFUL = ("hardware slowdown", "heat (software)", "heat (hardware)", "power brake")
"""What slows a GPU that is not well; the power cap slows every one that is busy enough."""


@contextmanager
def sampled(log: Path) -> Iterator[None]:
    """Let the driver write a line for each GPU twice a second, until the block ends."""
    with log.open("wb") as file:
        sampler = subprocess.Popen(SAMPLE, stdout=file, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            sampler.terminate()
            sampler.wait()


def add_clocks(found: Findings, log: str) -> None:
    """Say how fast and how hot the GPUs were at work, and what slowed them down."""
    rows = [[cell.strip() for cell in line.split(",")] for line in log.splitlines()]
    busy = [row for row in rows if len(row) == 5 and (_number(row[4]) or 0) >= AT_WORK_PERCENT]
    if not busy:
        found.lacks.append("clocks at work: the driver wrote no sample of a GPU that is busy")
        return
    states = [gpu_condition(row[:3]) for row in busy]
    clocks_mhz = [state.sm_clock_hz / 1e6 for state in states if state.sm_clock_hz]
    heat = max((state.temperature_celsius or 0 for state in states), default=0)
    power_w = [power for row in busy if (power := _number(row[3])) is not None]
    words = (
        f"SM clock {_spread(clocks_mhz)} MHz, power {_spread(power_w)} W, at most {heat:.0f} °C, "
        f"in {len(busy)} samples of busy GPUs"
    )
    found.facts.append(("GPUs at work", words))
    causes = [cause for state in states for cause in state.slowed_by or ()]
    for cause in dict.fromkeys(causes):
        share = format_percent(causes.count(cause) / len(busy))
        found.facts.append(("slowed by", f"{cause} in {share} of them"))
        if cause in HARMFUL:
            found.doubts.append(f"GPUs at work are slowed by {cause} in {share} of samples")


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "unknown"
    return f"{median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def _number(text: str) -> float | None:
    """A number that the driver prints; None where it prints [N/A]."""
    return float(text) if text.replace(".", "", 1).isdecimal() else None
