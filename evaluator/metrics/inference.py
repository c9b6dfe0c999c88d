"""How long requests wait for their tokens, from the timed steps of an inference job.

In training none of these has an answer.
"""

from collections.abc import Sequence
from statistics import median

from evaluator.metrics.base import Evidence, Formula


def _first_token_s(evidence: Evidence) -> float | None:
    return _slowest_s(evidence.serving.first_token_times_s) if evidence.serving else None


def _next_token_s(evidence: Evidence) -> float | None:
    if evidence.serving is None or evidence.serving.next_token_times_s is None:
        return None
    return _slowest_s(evidence.serving.next_token_times_s)


def _slowest_s(times_s: Sequence[Sequence[float]]) -> float:
    """Median over the steps of the time of the slowest rank, from (ranks, steps)."""
    slowest: list[float] = [max(step) for step in zip(*times_s, strict=True)]
    return median(slowest)


def _output_tokens_per_s(evidence: Evidence) -> float | None:
    if evidence.serving is None or not evidence.step_times_s:
        return None
    return evidence.serving.output_tokens_per_step / median(evidence.step_times_s)


ttft = Formula(
    name="ttft",
    unit="s",
    better="lower",
    version=1,
    description="Time to first token: from the start of a step, when all requests are there, to "
    "the end of a request's prefill; mean over the slowest rank's requests, median over steps.",
    formula=_first_token_s,
)

tpot = Formula(
    name="tpot",
    unit="s",
    better="lower",
    version=1,
    description="Time per output token after the first: decoding time over the tokens decoded, "
    "mean over the slowest rank's requests, median over steps; none for answers of one token.",
    formula=_next_token_s,
)

output_tokens_per_s = Formula(
    name="output_tokens_per_s",
    unit="tokens/s",
    better="higher",
    version=1,
    description="Tokens of all answers per step, over the median step time.",
    formula=_output_tokens_per_s,
)
