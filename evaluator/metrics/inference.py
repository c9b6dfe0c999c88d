"""How long requests wait for their tokens: from the timed steps, else from a server's traces.

In training none of these has an answer.
"""

from collections.abc import Sequence
from statistics import median

import numpy as np

from evaluator.intervals import Nanoseconds
from evaluator.metrics.base import Absent, Evidence, Formula
from evaluator.metrics.throughput import ANY
from evaluator.traces.rank import RankTrace
from evaluator.traces.steps import StepKind, StepWindows

UNSERVED = Absent("nothing was served")


def _first_token_s(evidence: Evidence) -> float | Absent:
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


def _decode_periods_ns(steps: StepWindows) -> Nanoseconds:
    """From the start of a decode step to that of the next, where no prefill is between them."""
    decodes = steps.kind == StepKind.DECODE
    in_a_row = np.flatnonzero(decodes[1:] & decodes[:-1] & (np.diff(steps.number) == 1))
    return steps.start_ns[in_a_row + 1] - steps.start_ns[in_a_row]


def _server_steps(trace: RankTrace) -> StepWindows:
    """On the device, where the tokens come to be; as the host saw them where that is not told."""
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
