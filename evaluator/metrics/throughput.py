"""Metrics of a job's pace and needs: step time, tokens, latency of answers, cost, memory.

Values come from the timed steps where there are any, else from traces. Latencies of tokens exist in
inference only.
"""

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Final

from evaluator.metrics.base import Absent, Evidence, Formula, Source

if TYPE_CHECKING:
    from evaluator.traces.intervals import Nanoseconds
    from evaluator.traces.model import RankTrace, StepWindows


TRACES: Final[frozenset[Source]] = frozenset({"kineto", "xla", "nsys"})
ANY: Final[frozenset[Source]] = TRACES | {"samples"}
UNTIMED = Absent("no step was timed")
UNPROFILED = Absent("nothing was profiled")
LEAST_TO_TRIM = 3


def step_seconds(evidence: Evidence) -> float | Absent:
    """Seconds of one step of the workload: of the timed ones, else the period of traced ones.

    The host may run ahead of its device, so its own steps count only where no period is known.
    """
    if evidence.step_times_s:
        return median(evidence.step_times_s)
    if evidence.traces is None:
        return UNTIMED
    if any(trace.steps.of_a_server for trace in evidence.traces.ranks):
        return Absent("the profiled steps are those of a server, not of the workload")
    period = _step_period_s(evidence)
    return _average_step_s(evidence) if isinstance(period, Absent) else period


def job_rank_count(evidence: Evidence) -> int | Absent:
    """Ranks of the job, as far as its launch, its traces or else the card say."""
    if evidence.rank_count is not None:
        return evidence.rank_count
    if evidence.traces is not None and evidence.traces.world_size is not None:
        return evidence.traces.world_size
    if evidence.environment is not None:
        return evidence.environment.world_size
    return Absent("it is unknown how many ranks the job had")


def step_tokens(evidence: Evidence) -> int | Absent:
    """Tokens that all ranks together process in one step, at least one."""
    tokens = evidence.tokens_per_step
    if tokens is None and evidence.workload is not None:
        tokens = evidence.workload.tokens_per_step
    if tokens is None:
        return Absent("it is unknown how many tokens a step processes")
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
    """The steps as the host saw them; those on the device where the host's are unknown."""
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
    step, tokens = step_seconds(evidence), step_tokens(evidence)
    if isinstance(step, Absent):
        return step
    return tokens if isinstance(tokens, Absent) else per_s(tokens, step)


def per_s(amount: float, seconds: float) -> float | Absent:
    """A rate; none where no time passed."""
    return amount / seconds if seconds else Absent("a step took no time")


def _rank_count(evidence: Evidence) -> float | Absent:
    count = job_rank_count(evidence)
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


UNSERVED = Absent("nothing was served")


def _first_token_s(evidence: Evidence) -> float | Absent:
    from evaluator.traces.model import StepKind

    if evidence.serving is not None:
        return _slowest_s(evidence.serving.first_token_times_s)
    if evidence.traces is None:
        return UNSERVED
    prefills = [_server_steps(trace).of_kind(StepKind.PREFILL) for trace in evidence.traces.ranks]
    first_ns = [int(steps.duration_ns[0]) for steps in prefills if steps.count]
    return max(first_ns) / 1e9 if first_ns else Absent("no prefill was profiled")


def _next_token_s(evidence: Evidence) -> float | Absent:
    if evidence.serving is None:
        return _decode_period_s(evidence)
    if evidence.serving.next_token_times_s is None:
        return Absent("answers have one token")
    return _slowest_s(evidence.serving.next_token_times_s)


def _decode_period_s(evidence: Evidence) -> float | Absent:
    if evidence.traces is None:
        return UNSERVED
    periods_ns = [_decode_periods_ns(_server_steps(trace)) for trace in evidence.traces.ranks]
    means_ns = [float(periods.mean()) for periods in periods_ns if periods.size]
    if not means_ns:
        return Absent("no two decode steps in a row were profiled")
    return max(means_ns) / 1e9


def _decode_periods_ns(steps: "StepWindows") -> "Nanoseconds":
    """From the start of a decode step to that of the next, where no prefill is between them."""
    import numpy as np

    from evaluator.traces.model import StepKind

    decodes = steps.kind == StepKind.DECODE
    in_a_row = np.flatnonzero(decodes[1:] & decodes[:-1] & (np.diff(steps.number) == 1))
    return steps.start_ns[in_a_row + 1] - steps.start_ns[in_a_row]


def _server_steps(trace: "RankTrace") -> "StepWindows":
    """On the device, where the tokens come to be; as the host saw them where that is unknown."""
    told = trace.steps.of_a_server
    return trace.steps if told else trace.host_steps


def _slowest_s(times_s: Sequence[Sequence[float]]) -> float:
    """Median over the steps of the time of the slowest rank, from (ranks, steps)."""
    slowest: list[float] = [max(step) for step in zip(*times_s, strict=True)]
    return median(slowest)


def _output_tokens_per_s(evidence: Evidence) -> float | Absent:
    if evidence.serving is None or not evidence.step_times_s:
        return UNSERVED
    return evidence.serving.output_tokens_per_step / median(evidence.step_times_s)


ttft = Formula(
    name="ttft",
    label="Time to first token",
    unit="s",
    better="lower",
    sources=ANY,
    description="Time to first token: from the start of a step, when all requests are there, to "
    "the end of a request's prefill; mean over the slowest rank's requests, median over steps. Of "
    "a server's traces alone, the duration of the first prefill step.",
    differs="The published one takes the first step of the engine, be it a prefill or not, and "
    "averages over ranks.",
    formula=_first_token_s,
    version=2,
)

tpot = Formula(
    name="tpot",
    label="Time per output token",
    unit="s",
    better="lower",
    sources=ANY,
    description="Time per output token after the first: decoding time over the tokens decoded, "
    "mean over the slowest rank's requests, median over steps; none for answers of one token. Of "
    "a server's traces alone, the mean time from a decode step to the next one.",
    differs="The published one averages all steps of the engine but the first and last, later "
    "prefills included, and leaves out the time between steps.",
    formula=_next_token_s,
    version=2,
)

output_tokens_per_s = Formula(
    name="output_tokens_per_s",
    label="Output throughput",
    unit="tokens/s",
    better="higher",
    sources=frozenset({"samples"}),
    description="Tokens of all answers per step, over the median step time.",
    formula=_output_tokens_per_s,
)


UNPRICED: Final = Absent(
    "no price of an accelerator is given (accelerator_usd_per_hour under [environment])"
)


def _rank_seconds(evidence: Evidence) -> float | Absent:
    seconds, ranks = step_seconds(evidence), job_rank_count(evidence)
    if isinstance(seconds, Absent):
        return seconds
    return ranks if isinstance(ranks, Absent) else seconds * ranks


def _rank_seconds_per_token(evidence: Evidence) -> float | Absent:
    cost, tokens = _rank_seconds(evidence), step_tokens(evidence)
    if isinstance(cost, Absent):
        return cost
    return tokens if isinstance(tokens, Absent) else cost / tokens


def _usd_per_step(evidence: Evidence) -> float | Absent:
    cost, environment = _rank_seconds(evidence), evidence.environment
    if environment is None or environment.accelerator_usd_per_hour is None:
        return UNPRICED
    if isinstance(cost, Absent):
        return cost
    return cost * environment.accelerator_usd_per_hour / 3600


def _usd_per_million_tokens(evidence: Evidence) -> float | Absent:
    cost, tokens = _usd_per_step(evidence), step_tokens(evidence)
    if isinstance(cost, Absent):
        return cost
    return tokens if isinstance(tokens, Absent) else cost / tokens * 1e6


def _tokens_per_s_per_rank(evidence: Evidence) -> float | Absent:
    cost, tokens = _rank_seconds(evidence), step_tokens(evidence)
    if isinstance(cost, Absent):
        return cost
    return tokens if isinstance(tokens, Absent) else per_s(tokens, cost)


rank_seconds = Formula(
    name="rank_seconds",
    label="Cost of a step",
    unit="rank s",
    better="lower",
    sources=ANY,
    description="Step time times ranks: what a step costs where accelerators are paid by time.",
    formula=_rank_seconds,
)

rank_seconds_per_token = Formula(
    name="rank_seconds_per_token",
    label="Cost of a token",
    unit="rank s/token",
    better="lower",
    sources=ANY | {"card"},
    description="Step time times ranks over the tokens of a step.",
    formula=_rank_seconds_per_token,
)

tokens_per_s_per_rank = Formula(
    name="tokens_per_s_per_rank",
    label="Throughput per rank",
    unit="tokens/s",
    better="higher",
    sources=ANY | {"card"},
    description="Tokens of a step over step time and ranks.",
    formula=_tokens_per_s_per_rank,
)

cost_per_step = Formula(
    name="cost_per_step",
    label="Price of a step",
    unit="USD",
    better="lower",
    sources=ANY,
    description="Step time times ranks times the price of an accelerator, which the study's "
    "environment gives by the hour.",
    formula=_usd_per_step,
)

cost_per_million_tokens = Formula(
    name="cost_per_million_tokens",
    label="Price of a million tokens",
    unit="USD",
    better="lower",
    sources=ANY | {"card"},
    description="Price of a step over its tokens, times a million.",
    formula=_usd_per_million_tokens,
)


def _peak_bytes(evidence: Evidence) -> float | Absent:
    if evidence.peak_memory_bytes:
        return float(max(evidence.peak_memory_bytes))
    traced = evidence.traces.ranks if evidence.traces else ()
    told = [trace.memory.allocated_bytes for trace in traced if trace.memory is not None]
    peaks = [int(allocated.max()) for allocated in told if allocated.size]
    return float(max(peaks)) if peaks else Absent("it is unknown how much memory ranks took")


peak_memory = Formula(
    name="peak_memory",
    label="Peak memory",
    unit="bytes",
    better="lower",
    sources=frozenset({"samples", "kineto"}),
    description="Peak memory of the rank that needs most; of traces alone the most that its "
    "allocator had handed out in the profiled time.",
    formula=_peak_bytes,
    version=2,
)
