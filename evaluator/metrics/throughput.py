"""How fast a job steps, and on how many ranks: from the timed steps, else from its traces."""

from statistics import median
from typing import TYPE_CHECKING, Final

from evaluator.metrics.base import Absent, Evidence, Formula, Source

if TYPE_CHECKING:
    from evaluator.intervals import Nanoseconds
    from evaluator.traces.rank import RankTrace
    from evaluator.traces.steps import StepWindows

TRACES: Final[frozenset[Source]] = frozenset({"kineto", "xla", "nsys"})
ANY: Final[frozenset[Source]] = TRACES | {"samples"}
UNTIMED = Absent("no step was timed")
UNPROFILED = Absent("nothing was profiled")
LEAST_TO_TRIM = 3


def told_step_s(evidence: Evidence) -> float | Absent:
    """Seconds of one step of the workload: of the timed ones, else the period of traced ones.

    The host may run ahead of its device, so its own steps count only where no period is told.
    """
    if evidence.step_times_s:
        return median(evidence.step_times_s)
    if evidence.traces is None:
        return UNTIMED
    if any(trace.steps.of_a_server for trace in evidence.traces.ranks):
        return Absent("the profiled steps are those of a server, not of the workload")
    period = _step_period_s(evidence)
    return _average_step_s(evidence) if isinstance(period, Absent) else period


def told_ranks(evidence: Evidence) -> int | Absent:
    """Ranks of the job, as far as its launch, its traces or else the card tell."""
    if evidence.rank_count is not None:
        return evidence.rank_count
    if evidence.traces is not None and evidence.traces.world_size is not None:
        return evidence.traces.world_size
    if evidence.environment is not None:
        return evidence.environment.world_size
    return Absent("nothing tells how many ranks the job had")


def told_tokens(evidence: Evidence) -> int | Absent:
    """Tokens that all ranks together process in one step, at least one."""
    tokens = evidence.tokens_per_step
    if tokens is None and evidence.workload is not None:
        tokens = evidence.workload.tokens_per_step
    if tokens is None:
        return Absent("nothing tells how many tokens a step processes")
    return tokens or Absent("a step processes no tokens")


def _step_time_s(evidence: Evidence) -> float | Absent:
    return median(evidence.step_times_s) if evidence.step_times_s else UNTIMED


def _average_step_s(evidence: Evidence) -> float | Absent:
    if evidence.traces is None:
        return UNPROFILED
    windows = [host_steps(trace) for trace in evidence.traces.ranks]
    means_ns = [float(inner(steps).duration_ns.mean()) for steps in windows if steps.count]
    return max(means_ns) / 1e9 if means_ns else Absent("no step was profiled")


def _step_period_s(evidence: Evidence) -> float | Absent:
    if evidence.traces is None:
        return UNPROFILED
    periods_ns = [_periods_ns(trace.steps) for trace in evidence.traces.ranks]
    means_ns = [float(periods.mean()) for periods in periods_ns if periods.size]
    return max(means_ns) / 1e9 if means_ns else Absent("no two steps in a row were profiled")


def host_steps(trace: "RankTrace") -> "StepWindows":
    """The steps as the host saw them; those on the device where the host's are not told."""
    return trace.host_steps if trace.host_steps.count else trace.steps


def inner(steps: "StepWindows") -> "StepWindows":
    """Without the first and the last, which a profiler distorts, where there are more than two."""
    return steps.among(steps.number[1:-1]) if steps.count >= LEAST_TO_TRIM else steps


def _periods_ns(steps: "StepWindows") -> "Nanoseconds":
    """From each step's start to that of the next; the first is distorted where there are more."""
    import numpy as np

    in_a_row = np.flatnonzero(np.diff(steps.number) == 1)
    if steps.count >= LEAST_TO_TRIM:
        in_a_row = in_a_row[in_a_row > 0]
    return steps.start_ns[in_a_row + 1] - steps.start_ns[in_a_row]


def _tokens_per_s(evidence: Evidence) -> float | Absent:
    step, tokens = told_step_s(evidence), told_tokens(evidence)
    if isinstance(step, Absent):
        return step
    return tokens if isinstance(tokens, Absent) else per_s(tokens, step)


def per_s(amount: float, seconds: float) -> float | Absent:
    """A rate; none where no time passed."""
    return amount / seconds if seconds else Absent("a step took no time")


def _rank_count(evidence: Evidence) -> float | Absent:
    count = told_ranks(evidence)
    return count if isinstance(count, Absent) else float(count)


step_time = Formula(
    name="step_time",
    label="Step time",
    unit="s",
    better="lower",
    sources=frozenset({"samples"}),
    description="Median over the timed steps, which no profiler slows down, of the time of the "
    "slowest rank.",
    formula=_step_time_s,
)

avg_step_time = Formula(
    name="avg_step_time",
    label="Profiled step time",
    unit="s",
    better="lower",
    sources=TRACES,
    description="Mean duration of the profiled steps as the host saw them, without the first and "
    "the last where there are more than two; that of the rank with the highest.",
    differs="The published one averages over ranks, where a job is as slow as its slowest rank, "
    "and from TPU traces it looks at the first file only.",
    formula=_average_step_s,
)

step_period = Formula(
    name="step_period",
    label="Step period",
    unit="s",
    better="lower",
    sources=TRACES,
    description="Mean time from the start of a profiled step on the device to that of the next, "
    "gaps between them included, without the first where there are more than two; that of the "
    "rank with the highest.",
    formula=_step_period_s,
)

tokens_per_s = Formula(
    name="tokens_per_s",
    label="Throughput",
    unit="tokens/s",
    better="higher",
    sources=ANY | {"card"},
    description="Tokens that a step processes, those of answers too, over the median time of the "
    "timed steps; of traces alone over step_period, with the tokens of the workload.",
    formula=_tokens_per_s,
    version=2,
)

rank_count = Formula(
    name="rank_count",
    label="Ranks",
    unit="ranks",
    better="lower",
    sources=ANY,
    description="Ranks that the job ran on, one accelerator each where there are any.",
    formula=_rank_count,
)
