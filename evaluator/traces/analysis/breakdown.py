"""Where profiled time went: every instant of a step counted once, on each rank and over the job.

Each instant of a step belongs to the first of compute, communication, copies and fills that was
under way, else it is idle: the parts add up to the window to the nanosecond. The definitions
follow the temporal breakdown of Holistic Trace Analysis (Meta) and the GPU timeline of TraceLens
(AMD), clipped to the window of the step on the device.

Means are sums over ranks and steps, divided once. A share of a job is a ratio of such sums, never
a mean of ratios: every nanosecond counts the same, and a step that communicates for a moment only
does not weigh as much as one that does little else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evaluator.traces.intervals import Intervals, Nanoseconds
from evaluator.traces.model import (
    Activity,
    CollectiveKind,
    RankTrace,
    StepWindows,
    TraceSet,
)
from records.trial import Breakdown

WORK: Final = (Activity.COMPUTE, Activity.COMMUNICATION, Activity.COPY, Activity.FILL)
PARTS: Final = (
    *("window", "compute", "exposed_communication", "exposed_copy", "fill", "idle"),
    "hidden_communication",
)
"""Of `StepSplit`, in this order: the whole, what it consists of, and what lies within."""
UNMARKED: Final = "no step is marked: the whole of each rank's work counts as one window"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSplit:
    """The parts of a step, seconds.

    Compute + exposed communication + exposed copies + fills + idle = window. Hidden communication
    ran while something computed and is within compute. The pipeline bubble is within exposed
    communication: time with a transfer under way and neither compute nor any collective, that is
    waiting for a neighbour in a pipeline (or ring) and receiving from it; None where nothing was
    sent or received.
    """

    window_s: float
    compute_s: float
    exposed_communication_s: float
    hidden_communication_s: float
    exposed_copy_s: float
    fill_s: float
    idle_s: float
    pipeline_bubble_s: float | None

    @property
    def communication_s(self) -> float:
        """All communication, hidden or not."""
        return self.exposed_communication_s + self.hidden_communication_s

    @property
    def other_s(self) -> float:
        """Copies and fills that ran in parallel with neither compute nor communication."""
        return self.exposed_copy_s + self.fill_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepParts:
    """The parts of every step of one rank: columns of int64 ns, shape (steps,), as in `StepSplit`.

    `pipeline_bubble_ns` is None where the rank sends and receives nothing.
    """

    rank: int
    number: NDArray[np.int64]
    window_ns: Nanoseconds
    compute_ns: Nanoseconds
    exposed_communication_ns: Nanoseconds
    hidden_communication_ns: Nanoseconds
    exposed_copy_ns: Nanoseconds
    fill_ns: Nanoseconds
    idle_ns: Nanoseconds
    pipeline_bubble_ns: Nanoseconds | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobSplit:
    """Where the time of a job went, over the steps that every traced rank profiled.

    Without marked steps, `step_numbers` is empty and the window of a rank is all of its work.
    `mean` is over ranks and steps, those of `by_rank` over the steps of one rank; `parts` has
    their columns. `caveats` say in words what the numbers leave out.
    """

    step_numbers: tuple[int, ...]
    mean: StepSplit
    by_rank: tuple[tuple[int, StepSplit], ...]
    parts: tuple[StepParts, ...]
    caveats: tuple[str, ...]


def step_parts(trace: RankTrace, windows: StepWindows) -> StepParts:
    """The parts of each window of one rank."""
    within = (windows.start_ns, windows.end_ns)
    compute, communication = trace.computing(), trace.communicating()
    talking = compute.unite(communication)
    copying = talking.unite(trace.covered(Activity.COPY))
    working = copying.unite(trace.covered(Activity.FILL))
    compute_ns, talking_ns, copying_ns, working_ns = (
        covered.covered_ns(*within) for covered in (compute, talking, copying, working)
    )
    exposed_ns = talking_ns - compute_ns
    return StepParts(
        rank=trace.rank,
        number=windows.number,
        window_ns=windows.duration_ns,
        compute_ns=compute_ns,
        exposed_communication_ns=exposed_ns,
        hidden_communication_ns=communication.covered_ns(*within) - exposed_ns,
        exposed_copy_ns=copying_ns - talking_ns,
        fill_ns=working_ns - copying_ns,
        idle_ns=windows.duration_ns - working_ns,
        pipeline_bubble_ns=_bubble_ns(trace, compute, talking_ns, windows),
    )


def busy(trace: RankTrace) -> Intervals:
    """Time in which the rank did any work."""
    return trace.computing().unite(trace.covered(*WORK[1:]))


def job_windows(traces: TraceSet) -> tuple[StepWindows, ...] | None:
    """What is looked at of each rank; None when ranks have no step in common, or did nothing.

    The steps that every rank profiled; where no rank marked any, all of a rank's work.
    """
    numbers = traces.common_steps
    if numbers.size:
        return tuple(trace.steps.among(numbers) for trace in traces.ranks)
    if any(trace.steps.count for trace in traces.ranks):
        return None
    wholes = tuple(_whole(trace) for trace in traces.ranks)
    return wholes if any(window.duration_ns.any() for window in wholes) else None


def job_split(traces: TraceSet) -> JobSplit | None:
    """Where the time of the job went; None when ranks have no step in common, or did nothing."""
    windows = job_windows(traces)
    if windows is None:
        return None
    parts = tuple(
        step_parts(trace, window) for trace, window in zip(traces.ranks, windows, strict=True)
    )
    numbers = traces.common_steps
    return JobSplit(
        step_numbers=tuple(int(number) for number in numbers),
        mean=_mean(parts),
        by_rank=tuple((part.rank, _mean((part,))) for part in parts),
        parts=parts,
        caveats=_caveats(traces, numbers.size),
    )


def breakdown(split: JobSplit) -> Breakdown | None:
    """The mean step as it is recorded with a trial; None where no step is marked."""
    if not split.step_numbers:
        return None
    names = (field.name for field in fields(Breakdown))
    return Breakdown(**{name: getattr(split.mean, name) for name in names})


def _bubble_ns(
    trace: RankTrace, compute: Intervals, talking_ns: Nanoseconds, windows: StepWindows
) -> Nanoseconds | None:
    """Time in which transfers alone keep the rank: what is left when they are taken away."""
    # NCCL gives the kernels of transfers and of all-to-alls one name: where nothing but the name
    # is recorded, not even a size, it is unknown which it is.
    kind, table = trace.collectives.kind, trace.collectives
    directed = np.isin(kind, (CollectiveKind.SEND, CollectiveKind.RECV, CollectiveKind.PUT))
    transfers = table.span[directed | ((kind == CollectiveKind.SEND_RECV) & (table.bytes > 0))]
    if not transfers.size:
        return None
    others = trace.spans.doing(Activity.COMMUNICATION)
    others[transfers] = False
    without = compute.unite(trace.spans.union(others))
    return talking_ns - without.covered_ns(windows.start_ns, windows.end_ns)


def _whole(trace: RankTrace) -> StepWindows:
    """From the first work to the end of the last, as one window."""
    work = trace.spans.doing(*WORK)
    start_ns, end_ns = trace.spans.start_ns[work], trace.spans.end_ns[work]
    zero = np.zeros(1, np.int64)
    if not start_ns.size:
        return StepWindows.plain(zero, zero, zero)
    return StepWindows.plain(zero, start_ns[:1], end_ns.max(keepdims=True))


def _mean(parts: Sequence[StepParts]) -> StepSplit:
    count = sum(part.number.size for part in parts)

    def mean_s(columns: Iterable[Nanoseconds]) -> float:
        # In whole numbers without end: absurd windows must not overflow.
        return sum(sum(column.tolist()) for column in columns) / (count * 10**9)

    bubbles = [part.pipeline_bubble_ns for part in parts if part.pipeline_bubble_ns is not None]
    times_s = {f"{name}_s": mean_s(getattr(part, f"{name}_ns") for part in parts) for name in PARTS}
    return StepSplit(**times_s, pipeline_bubble_s=mean_s(bubbles) if bubbles else None)


def _caveats(traces: TraceSet, common_count: int) -> tuple[str, ...]:
    if not common_count:
        return (UNMARKED,)
    return tuple(
        f"rank {trace.rank}: {trace.steps.count - common_count} of {trace.steps.count} steps are "
        "left out, which not every rank profiled"
        for trace in traces.ranks
        if trace.steps.count > common_count
    )
