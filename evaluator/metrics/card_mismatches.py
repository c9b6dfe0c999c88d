"""Say where traces are of another job than the card that describes it."""

from collections.abc import Iterator

import numpy as np

from evaluator.accelerators import accelerator
from evaluator.traces.model import StepKind, TraceSet
from records.errors import shown
from records.study import Environment
from records.workload import Workload

MEMORY_TOLERANCE = 0.15
"""A device shows less memory than is on it, and makers count in other units."""


def mismatches(
    traces: TraceSet, workload: Workload | None, environment: Environment | None
) -> tuple[str, ...]:
    """Each a clause such as `the traces are of 8 ranks, the card is of 4`; empty if all agrees.

    None of them is certain: a card may count the whole machine, and names have many spellings.
    """
    found: list[str] = []
    if environment is not None:
        found += _of_environment(traces, environment)
    if workload is not None:
        found += _of_workload(traces, workload)
    return tuple(found)


def _of_environment(traces: TraceSet, environment: Environment) -> Iterator[str]:
    size = traces.world_size
    if size is not None and size != environment.world_size:
        yield f"the traces are of {size} ranks, the card is of {environment.world_size}"
    on_device = {trace.on_device for trace in traces.ranks}
    if on_device == {True} and environment.device == "cpu":
        yield "the traces are of accelerators, the card is of CPUs"
    if on_device == {False} and environment.device != "cpu":
        yield f"the traces show no work of an accelerator, the card is of {environment.accelerator}"
    devices = dict.fromkeys(trace.device for trace in traces.ranks if trace.device is not None)
    expected = accelerator(environment.accelerator)
    for device in devices:
        ran = accelerator(device.name)
        if ran is not None and expected is not None and ran is not expected:
            yield f"the traces are of {shown(device.name)}, the card of {environment.accelerator}"
        elif _differ(device.memory_bytes, environment.memory_bytes):
            yield (
                f"the traced device has {_gb(device.memory_bytes)} GB of memory, that of the card "
                f"{_gb(environment.memory_bytes)} GB"
            )


def _of_workload(traces: TraceSet, workload: Workload) -> Iterator[str]:
    kinds = np.concatenate([trace.steps.kind for trace in traces.ranks])
    serves = bool(np.any(kinds != StepKind.PLAIN))
    if serves and workload.phase == "training":
        yield "the traces show a server's prefill and decode steps, the card is of training"


def _differ(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and abs(one - other) > MEMORY_TOLERANCE * other


def _gb(count: int | None) -> str:
    return f"{(count or 0) / 1e9:.0f}"
