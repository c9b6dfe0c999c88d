"""How well the host keeps its device supplied: delays and counts of launches, idling for the host.

Origin: launch statistics and idle breakdown of Holistic Trace Analysis (Meta), redefined in
`evaluator.analysis.launches` and `evaluator.analysis.idle`.
"""

from collections.abc import Callable
from typing import Final

from evaluator.analysis.launches import LaunchStatistics
from evaluator.metrics.base import Absent, Evidence, Formula, Source
from evaluator.metrics.communication import UNPROFILED, UNTRACED

LAUNCHES: Final[frozenset[Source]] = frozenset({"kineto", "nsys"})
NO_LAUNCH: Final = Absent("no trace tells which call launched what")


def _from_launches(
    part: Callable[[LaunchStatistics], float | None], missing: str
) -> Callable[[Evidence], float | Absent]:
    def formula(evidence: Evidence) -> float | Absent:
        if evidence.traces is None:
            return UNTRACED
        if evidence.launches is None:
            return NO_LAUNCH
        value = part(evidence.launches.job)
        return Absent(missing) if value is None else value

    return formula


def _host_wait(evidence: Evidence) -> float | Absent:
    if evidence.traces is None:
        return UNTRACED
    if evidence.split is None:
        return UNPROFILED
    if evidence.idle is None:
        return NO_LAUNCH
    window_ns = sum(sum(parts.window_ns.tolist()) for parts in evidence.split.parts)
    waits_ns = (column for rank in evidence.idle for column in (rank.host_wait_ns, rank.sync_ns))
    waited_ns = sum(sum(column.tolist()) for column in waits_ns)
    return waited_ns / window_ns if window_ns else Absent("profiled steps take no time")


kernel_launch_delay = Formula(
    name="kernel_launch_delay",
    label="Launch delay",
    unit="s",
    better="lower",
    sources=LAUNCHES,
    description="Median time from the start of a launch call to the start of the first work that "
    "it started, over all ranks. Long where the host is far ahead of the device, short where the "
    "device waits for the host; launches that seem to start late by their clocks are left out.",
    formula=_from_launches(
        lambda job: job.delay_median_s, "all work starts before its launch, so clocks differ"
    ),
)

launches_per_step = Formula(
    name="launches_per_step",
    label="Launches per step",
    unit="launches",
    better="lower",
    sources=LAUNCHES,
    description="Calls with which the host hands work to its device, per step of the host and "
    "rank; a graph is one.",
    formula=_from_launches(lambda job: job.launches_per_step, "the host marks no step"),
)

short_kernel_fraction = Formula(
    name="short_kernel_fraction",
    label="Short kernels",
    unit="fraction",
    better="lower",
    sources=LAUNCHES,
    description="Share of kernels that last less than 10 us in the number of all kernels.",
    formula=_from_launches(lambda job: job.short_kernel_share, "no kernel ran"),
)

host_wait_fraction = Formula(
    name="host_wait_fraction",
    label="Waiting for the host",
    unit="fraction",
    better="lower",
    sources=LAUNCHES,
    description="Time in which a device is idle because nothing was handed to it, be it that the "
    "host was slow or that it had stopped to wait for the device, over step time.",
    formula=_host_wait,
)
