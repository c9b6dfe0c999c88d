"""Say where traces are of another job than the card that describes it."""

from collections.abc import Iterator

from evaluator.accelerators import accelerator
from evaluator.traces.model import TraceSet
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
    found = list(_of_environment(traces, environment)) if environment else []
    serves = any(trace.steps.of_a_server for trace in traces.ranks)
    if workload is not None and workload.phase == "training" and serves:
        found.append("the traces show a server's prefill and decode steps, the card is of training")
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
        traced, stated = device.memory_bytes, environment.memory_bytes
        if ran is not None and expected is not None and ran is not expected:
            yield f"the traces are of {shown(device.name)}, the card of {environment.accelerator}"
        elif (
            traced is not None
            and stated is not None
            and abs(traced - stated) > (MEMORY_TOLERANCE * stated)
        ):
            yield (
                f"the traced device has {traced / 1e9:.0f} GB of memory, that of the card "
                f"{stated / 1e9:.0f} GB"
            )
