"""What a step costs: time of ranks, whether they work or wait."""

from typing import Final

from evaluator.metrics.base import Absent, Evidence, Formula
from evaluator.metrics.throughput import ANY, per_s, told_ranks, told_step_s, told_tokens

UNPRICED: Final = Absent(
    "no price of an accelerator is given (accelerator_usd_per_hour under [environment])"
)


def _rank_seconds(evidence: Evidence) -> float | Absent:
    seconds, ranks = told_step_s(evidence), told_ranks(evidence)
    if isinstance(seconds, Absent):
        return seconds
    return ranks if isinstance(ranks, Absent) else seconds * ranks


def _rank_seconds_per_token(evidence: Evidence) -> float | Absent:
    cost, tokens = _rank_seconds(evidence), told_tokens(evidence)
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
    cost, tokens = _usd_per_step(evidence), told_tokens(evidence)
    if isinstance(cost, Absent):
        return cost
    return tokens if isinstance(tokens, Absent) else cost / tokens * 1e6


def _tokens_per_s_per_rank(evidence: Evidence) -> float | Absent:
    cost, tokens = _rank_seconds(evidence), told_tokens(evidence)
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
