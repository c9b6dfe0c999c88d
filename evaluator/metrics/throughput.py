"""Metrics of a job's pace and needs: step time, tokens, latency of answers, cost, memory.

Values come from the timed steps where there are any, else from traces. Latencies of tokens exist in
inference only.
"""

from collections.abc import Iterable, Sequence
from operator import mul, truediv
from statistics import median
from typing import TYPE_CHECKING

from evaluator.metrics.base import (
    ANY,
    ANY_WITH_CARD,
    SAMPLES,
    TRACES,
    UNTRACED,
    Absent,
    Evidence,
    combine,
    metric_of,
)
from records.trial import Latency

if TYPE_CHECKING:
    from evaluator.traces.intervals import Nanoseconds
    from evaluator.traces.model import RankTrace, StepWindows


UNTIMED = Absent("no step was timed")
UNSERVED = Absent("nothing was served")
UNLOADED = Absent("no server was loaded with requests")
UNPRICED = Absent(
    "no price of an accelerator is given (accelerator_usd_per_hour under [environment])"
)
LEAST_TO_TRIM = 3


@metric_of("Step time", "s", "lower", SAMPLES)
def step_time(evidence: Evidence) -> float | Absent:
    """Median over the timed steps, which no profiler slows down, of the time of the slowest
    rank.
    """
    return median(evidence.step_times_s) if evidence.step_times_s else UNTIMED


@metric_of("Profiled step time", "s", "lower", TRACES)
def avg_step_time(evidence: Evidence) -> float | Absent:
    """Mean duration of the profiled steps as the host saw them, without the first and the last
    where there are more than two; that of the rank with the highest.

    The published one averages over ranks, where a job is as slow as its slowest rank, and from TPU
    traces it looks at the first file only.
    """
    if evidence.traces is None:
        return UNTRACED
    ranks = evidence.traces.ranks
    # Those on the device where the host's are unknown.
    steps = [trace.host_steps if trace.host_steps.count else trace.steps for trace in ranks]
    return _slowest_mean_s((inner(own).duration_ns for own in steps), "no step was profiled")


@metric_of("Step period", "s", "lower", TRACES)
def step_period(evidence: Evidence) -> float | Absent:
    """Mean time from the start of a profiled step on the device to that of the next, gaps between
    them included, without the first where there are more than two; that of the rank with the
    highest.
    """
    if evidence.traces is None:
        return UNTRACED
    steps = [trace.steps for trace in evidence.traces.ranks]
    trimmed = [each.among(each.number[int(each.count >= LEAST_TO_TRIM) :]) for each in steps]
    return _slowest_mean_s(map(_periods_ns, trimmed), "no two steps in a row were profiled")


@metric_of("Throughput", "tokens/s", "higher", ANY_WITH_CARD, version=2)
def tokens_per_s(evidence: Evidence) -> float | Absent:
    """Tokens that a step processes, those of answers too, over the median time of the timed steps;
    of traces alone over step_period, with the tokens of the workload.
    """
    return combine(_tokens_per_s, step_seconds(evidence), step_tokens(evidence))


@metric_of("Ranks", "ranks", "lower", ANY)
def rank_count(evidence: Evidence) -> float | Absent:
    """Ranks that the job ran on, one accelerator each where there are any."""
    return combine(float, job_rank_count(evidence))


@metric_of("Time to first token", "s", "lower", ANY, version=2)
def ttft(evidence: Evidence) -> float | Absent:
    """Time to first token: from the start of a step, when all requests are there, to the end of a
    request's prefill; mean over the slowest rank's requests, median over steps. Of a server's
    traces alone, the duration of the first prefill step.

    The published one takes the first step of the engine, be it a prefill or not, and averages over
    ranks.
    """
    from evaluator.traces.model import StepKind

    if evidence.serving is not None:
        return _slowest_s(evidence.serving.first_token_times_s)
    if evidence.traces is None:
        return UNSERVED
    prefills = [_server_steps(trace).of_kind(StepKind.PREFILL) for trace in evidence.traces.ranks]
    return _slowest_mean_s((steps.duration_ns[:1] for steps in prefills), "no prefill was profiled")


@metric_of("Time per output token", "s", "lower", ANY, version=2)
def tpot(evidence: Evidence) -> float | Absent:
    """Time per output token after the first: decoding time over the tokens decoded, mean over the
    slowest rank's requests, median over steps; none for answers of one token. Of a server's traces
    alone, the mean time from a decode step to the next one.

    The published one averages all steps of the engine but the first and last, later prefills
    included, and leaves out the time between steps.
    """
    from evaluator.traces.model import StepKind

    if evidence.serving is not None:
        times_s = evidence.serving.next_token_times_s
        return Absent("answers have one token") if times_s is None else _slowest_s(times_s)
    if evidence.traces is None:
        return UNSERVED
    # Numbers in a row: a prefill between two decode steps takes one of them.
    decodes = [_server_steps(trace).of_kind(StepKind.DECODE) for trace in evidence.traces.ranks]
    return _slowest_mean_s(map(_periods_ns, decodes), "no two decode steps in a row were profiled")


@metric_of("Output throughput", "tokens/s", "higher", SAMPLES)
def output_tokens_per_s(evidence: Evidence) -> float | Absent:
    """Tokens of all answers per step, over the median step time; of a batch whose answers were not
    timed one by one, those that the workload asks for.
    """
    if evidence.serving is not None:
        tokens: float = evidence.serving.output_tokens_per_step
    else:
        work = evidence.workload
        if work is None or work.phase != "inference" or not work.output_length:
            return UNSERVED
        share = work.output_length / (work.sequence_length + work.output_length)
        processed = evidence.tokens_per_step
        tokens = (work.tokens_per_step if processed is None else processed) * share
    return per_s(tokens, median(evidence.step_times_s)) if evidence.step_times_s else UNTIMED


@metric_of("Median time to first token", "s", "lower", SAMPLES)
def ttft_p50(evidence: Evidence) -> float | Absent:
    """Time to first token that half of the requests took at most, at the main traffic point."""
    return evidence.traffic[0].ttft.p50_s if evidence.traffic else UNLOADED


@metric_of("Time to first token, 99 %", "s", "lower", SAMPLES)
def ttft_p99(evidence: Evidence) -> float | Absent:
    """Time to first token that 99 % of the requests took at most, at the main traffic point."""
    return evidence.traffic[0].ttft.p99_s if evidence.traffic else UNLOADED


@metric_of("Median time per output token", "s", "lower", SAMPLES)
def tpot_p50(evidence: Evidence) -> float | Absent:
    """Mean time per token after the first that half of the requests took at most, at the main
    traffic point.
    """
    found = _tpot(evidence)
    return found if isinstance(found, Absent) else found.p50_s


@metric_of("Time per output token, 99 %", "s", "lower", SAMPLES)
def tpot_p99(evidence: Evidence) -> float | Absent:
    """Mean time per token after the first that 99 % of the requests took at most, at the main
    traffic point.
    """
    found = _tpot(evidence)
    return found if isinstance(found, Absent) else found.p99_s


@metric_of("Goodput", "requests/s", "higher", SAMPLES)
def goodput(evidence: Evidence) -> float | Absent:
    """Requests per second that were served within the workload's objective (slo_ttft_s and
    slo_tpot_s), at the main traffic point.
    """
    if not evidence.traffic:
        return UNLOADED
    found = evidence.traffic[0].goodput
    return Absent("the workload has no slo_ttft_s or slo_tpot_s") if found is None else found


@metric_of("Cost of a step", "rank s", "lower", ANY)
def rank_seconds(evidence: Evidence) -> float | Absent:
    """Step time times ranks: what a step costs where accelerators are paid by time."""
    return combine(mul, step_seconds(evidence), job_rank_count(evidence))


@metric_of("Cost of a token", "rank s/token", "lower", ANY_WITH_CARD)
def rank_seconds_per_token(evidence: Evidence) -> float | Absent:
    """Step time times ranks over the tokens of a step."""
    return combine(truediv, rank_seconds.measure(evidence), step_tokens(evidence))


@metric_of("Throughput per rank", "tokens/s", "higher", ANY_WITH_CARD)
def tokens_per_s_per_rank(evidence: Evidence) -> float | Absent:
    """Tokens of a step over step time and ranks."""
    return combine(_tokens_per_s, rank_seconds.measure(evidence), step_tokens(evidence))


@metric_of("Price of a step", "USD", "lower", ANY)
def cost_per_step(evidence: Evidence) -> float | Absent:
    """Step time times ranks times the price of an accelerator, which the study's environment gives
    by the hour.
    """
    environment = evidence.environment
    if environment is None or environment.accelerator_usd_per_hour is None:
        return UNPRICED
    price = environment.accelerator_usd_per_hour
    return combine(lambda cost: cost * price / 3600, rank_seconds.measure(evidence))


@metric_of("Price of a million tokens", "USD", "lower", ANY_WITH_CARD)
def cost_per_million_tokens(evidence: Evidence) -> float | Absent:
    """Price of a step over its tokens, times a million."""
    cost, tokens = cost_per_step.measure(evidence), step_tokens(evidence)
    return combine(lambda cost, tokens: cost / tokens * 1e6, cost, tokens)


@metric_of("Peak memory", "bytes", "lower", frozenset({"samples", "kineto"}), version=2)
def peak_memory(evidence: Evidence) -> float | Absent:
    """Peak memory of the rank that needs most; of traces alone the most that its allocator had
    handed out in the profiled time.
    """
    if evidence.peak_memory_bytes:
        return float(max(evidence.peak_memory_bytes))
    traced = evidence.traces.ranks if evidence.traces else ()
    reported = [trace.memory.allocated_bytes for trace in traced if trace.memory is not None]
    peaks = [int(allocated.max()) for allocated in reported if allocated.size]
    return float(max(peaks)) if peaks else Absent("it is unknown how much memory ranks took")


def step_seconds(evidence: Evidence) -> float | Absent:
    """Seconds of one step of the workload: of the timed ones, else the period of traced ones.

    The host may run ahead of its device, so its own steps count only where no period is known.
    """
    if evidence.step_times_s or evidence.traces is None:
        return step_time.measure(evidence)
    if any(trace.steps.of_a_server for trace in evidence.traces.ranks):
        return Absent("the profiled steps are those of a server, not of the workload")
    period = step_period.measure(evidence)
    return avg_step_time.measure(evidence) if isinstance(period, Absent) else period


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


def per_s(amount: float, seconds: float) -> float | Absent:
    """A rate; none where no time passed."""
    return amount / seconds if seconds else Absent("a step took no time")


def inner(steps: "StepWindows") -> "StepWindows":
    """Without the first and the last, which a profiler distorts, where there are more than two."""
    return steps.among(steps.number[1:-1]) if steps.count >= LEAST_TO_TRIM else steps


def _tpot(evidence: Evidence) -> Latency | Absent:
    if not evidence.traffic:
        return UNLOADED
    return evidence.traffic[0].tpot or Absent("answers have one token")


def _tokens_per_s(seconds: float, tokens: float) -> float | Absent:
    return per_s(tokens, seconds)


def _server_steps(trace: "RankTrace") -> "StepWindows":
    """On the device, where the tokens come to be; as the host saw them where that is unknown."""
    return trace.steps if trace.steps.of_a_server else trace.host_steps


def _periods_ns(steps: "StepWindows") -> "Nanoseconds":
    """From each step's start to that of the next number."""
    in_a_row = steps.number[1:] - steps.number[:-1] == 1
    periods_ns: Nanoseconds = (steps.start_ns[1:] - steps.start_ns[:-1])[in_a_row]
    return periods_ns


def _slowest_mean_s(by_rank: Iterable["Nanoseconds"], missing: str) -> float | Absent:
    """Mean on the rank where it is highest; absent where no rank has any."""
    means_ns = [float(times_ns.mean()) for times_ns in by_rank if times_ns.size]
    return max(means_ns) / 1e9 if means_ns else Absent(missing)


def _slowest_s(times_s: Sequence[Sequence[float]]) -> float:
    """Median over the steps of the time of the slowest rank, from (ranks, steps)."""
    slowest: list[float] = [max(step) for step in zip(*times_s, strict=True)]
    return median(slowest)
