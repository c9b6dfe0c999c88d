"""Searches along a front: each turn weighs the objectives anew and asks another proposer."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from evaluator.objective import Scoring
from records.history import History
from records.study import Study
from search.front import own_values
from search.ports import Proposal, Proposer

SUM_SHARE: Final = 0.05
"""How much the weighted sum counts beside the worst objective, so that no slack is given away."""
UNANSWERED: Final = 2.0
"""Cost of a trial that lacks an objective: all others are below."""


class FrontProposer:
    """Hands `inner` a history in which one cost stands for all objectives.

    The cost is the augmented Chebyshev distance to the best of each objective, over the ranges seen
    so far: whatever the weights, its optimum is on the front, in its dents too.
    """

    def __init__(self, inner: Proposer, scoring: Scoring) -> None:
        self._inner = inner
        self._scoring = scoring

    @property
    def name(self) -> str:
        """That of the proposer that is asked."""
        return self._inner.name

    def propose(self, study: Study, history: History) -> Proposal | None:
        """Give what the other proposes where this turn's weights say who leads."""
        scoring = self._scoring.over(history)
        turn = len(history) + len(history.pending)
        weights = weights_of(Random(f"{study.random_seed}/front/{turn}"), len(scoring.objectives))
        weighed = {trial.ordinal: UNANSWERED for trial in history.measured}
        weighed |= one_cost(_costs(history, scoring), weights)
        return self._inner.propose(
            study,
            replace(history, costs=weighed, incumbent=None, weights=_told(scoring, weights)),
        )


def weights_of(random: Random, count: int) -> tuple[float, ...]:
    """Weights that sum to one, all of them equally likely."""
    draws = [random.expovariate(1.0) for _ in range(count)]
    return tuple(draw / sum(draws) for draw in draws)


def one_cost(
    costs: Mapping[int, tuple[float, ...]], weights: Sequence[float]
) -> Mapping[int, float]:
    """One cost for all objectives, 0 for what is best in each and at most 1 + `SUM_SHARE`."""
    columns = list(zip(*costs.values(), strict=True))
    ranges = [(min(column), max(column) - min(column)) for column in columns]

    def scaled(cost: tuple[float, ...]) -> list[float]:
        parts = zip(cost, ranges, weights, strict=True)
        return [
            weight * (one - least) / extent if extent else 0.0
            for one, (least, extent), weight in parts
        ]

    parts = {ordinal: scaled(cost) for ordinal, cost in costs.items()}
    return {ordinal: max(part) + SUM_SHARE * sum(part) for ordinal, part in parts.items()}


def _costs(history: History, scoring: Scoring) -> Mapping[int, tuple[float, ...]]:
    """Cost of each trial in each objective; in the main one by all that is known."""
    costs: dict[int, tuple[float, ...]] = {}
    for trial in history.measured:
        values = own_values(trial, scoring)
        if values is not None:
            others = zip(scoring.more, values[1:], strict=True)
            told = (one.sign * value for one, value in others)
            costs[trial.ordinal] = (history.cost(trial), *told)
    return costs


def _told(scoring: Scoring, weights: Sequence[float]) -> tuple[tuple[str, float], ...]:
    texts = (one.expression.text for one in scoring.objectives)
    return tuple(zip(texts, weights, strict=True))
