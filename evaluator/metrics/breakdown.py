"""Where profiled time went: every instant of a step counted once, on each rank and over the job."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from evaluator.traces import Activity, RankTrace, StepWindows, TraceSet
from records.trial import Breakdown


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSplit:
    """The parts of one step, seconds: compute + exposed communication + other + idle = window.

    Hidden communication ran while something computed and is within compute. Other is copies and
    fills that ran beside neither compute nor communication.
    """

    window_s: float
    compute_s: float
    exposed_communication_s: float
    hidden_communication_s: float
    other_s: float
    idle_s: float

    @classmethod
    def of_ns(cls, parts_ns: NDArray[np.floating]) -> Self:
        """From the parts in nanoseconds, in the order of the columns of `parts_ns`."""
        window, compute, exposed, hidden, other, idle = (float(part) / 1e9 for part in parts_ns)
        return cls(
            window_s=window,
            compute_s=compute,
            exposed_communication_s=exposed,
            hidden_communication_s=hidden,
            other_s=other,
            idle_s=idle,
        )

    @property
    def communication_s(self) -> float:
        """All communication, hidden or not."""
        return self.exposed_communication_s + self.hidden_communication_s


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSplit:
    """The mean step of a job: over its steps on each rank, and over its traced ranks.

    Every rank has the same steps, so a ratio of two parts of `mean` is the ratio of their sums
    over all ranks and steps.
    """

    step_numbers: tuple[int, ...]
    mean: StepSplit
    by_rank: tuple[tuple[int, StepSplit], ...]


def parts_ns(trace: RankTrace, steps: StepWindows) -> NDArray[np.int64]:
    """Parts of each step of one rank, int64 ns, shape (steps, 6).

    Columns: window, compute, exposed communication, hidden communication, other, idle.
    """
    compute = trace.computing()
    communication = trace.communicating()
    copies = trace.covered(Activity.COPY, Activity.FILL)
    sets = (
        compute,
        communication.subtract(compute),
        communication.intersect(compute),
        copies.subtract(compute.unite(communication)),
    )
    parts = np.empty((steps.number.size, 6), np.int64)
    for row, start_ns, end_ns in zip(parts, steps.start_ns, steps.end_ns, strict=True):
        busy, exposed, hidden, other = (part.clip(start_ns, end_ns).total_ns for part in sets)
        window = end_ns - start_ns
        row[:] = window, busy, exposed, hidden, other, window - busy - exposed - other
    return parts


def job_split(traces: TraceSet) -> JobSplit | None:
    """The mean step over the steps that every traced rank profiled; None when there is none."""
    numbers = traces.common_steps
    if not numbers.size:
        return None
    means = [parts_ns(trace, trace.steps.among(numbers)).mean(axis=0) for trace in traces.ranks]
    return JobSplit(
        step_numbers=tuple(int(number) for number in numbers),
        mean=StepSplit.of_ns(np.mean(means, axis=0)),
        by_rank=_by_rank(traces.ranks, means),
    )


def breakdown(split: JobSplit) -> Breakdown:
    """The mean step as it is recorded with a trial."""
    return Breakdown(
        compute_s=split.mean.compute_s,
        exposed_communication_s=split.mean.exposed_communication_s,
        hidden_communication_s=split.mean.hidden_communication_s,
        other_s=split.mean.other_s,
        idle_s=split.mean.idle_s,
    )


def _by_rank(
    ranks: Sequence[RankTrace], means_ns: Sequence[NDArray[np.floating]]
) -> tuple[tuple[int, StepSplit], ...]:
    return tuple(
        (trace.rank, StepSplit.of_ns(mean)) for trace, mean in zip(ranks, means_ns, strict=True)
    )
