"""How fast a job steps and on how many ranks, from the timed steps."""

from statistics import median

from evaluator.metrics.base import Evidence, Formula


def _step_time_s(evidence: Evidence) -> float | None:
    return median(evidence.step_times_s) if evidence.step_times_s else None


def _tokens_per_s(evidence: Evidence) -> float | None:
    step_s = _step_time_s(evidence)
    return evidence.tokens_per_step / step_s if step_s else None


def _rank_count(evidence: Evidence) -> float:
    return float(evidence.rank_count)


step_time = Formula(
    name="step_time",
    unit="s",
    better="lower",
    version=1,
    description="Median over the timed steps of the time of the slowest rank.",
    formula=_step_time_s,
)

tokens_per_s = Formula(
    name="tokens_per_s",
    unit="tokens/s",
    better="higher",
    version=1,
    description="Tokens that a step processes, those of answers too, over the median step time.",
    formula=_tokens_per_s,
)

rank_count = Formula(
    name="rank_count",
    unit="ranks",
    better="lower",
    version=1,
    description="Ranks that the job ran on, one accelerator each where there are any.",
    formula=_rank_count,
)
