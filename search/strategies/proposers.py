"""Offline, replay and Pareto proposers.

An offline strategy as a proposer: what it chooses is written as a policy.

The policies of another study once more, in their order, whatever comes of them.

Searches along a front: each turn weighs the objectives anew and asks another proposer.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from evaluator.objective import Scoring
from records.errors import StudyError
from records.store.rows import StudyRow
from records.store.store import Store
from records.study import Study
from records.trial import Config, History, Policy
from search.loop.leader import own_values
from search.loop.ports import Proposal, Proposer
from search.strategies.base import Chooser
from search.study.spaces import own_part


class OfflineProposer:
    """Proposes what a chooser chooses."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser

    @property
    def name(self) -> str:
        """That of the chooser."""
        return self._chooser.name

    def propose(self, study: Study, history: History) -> Proposal | None:
        """Give the chosen configuration as a policy, or None when everything was tried."""
        choice = self._chooser.choose(study, history)
        if choice is None:
            return None
        config = own_part(choice.config) if study.contexts else choice.config
        policy = as_policy(config, self.name, choice.why)
        best = history.best if choice.changes_best else None
        if best is not None and best.policy.digest != policy.digest:
            policy = replace(policy, parent=best.policy.digest)
        return Proposal(policy=policy)


def as_policy(config: Config, author: str, rationale: str) -> Policy:
    """A policy that returns one configuration, so that all records look alike."""
    settings = "\n".join(f"        {knob!r}: {value!r}," for knob, value in config.values.items())
    source = (
        f"{json.dumps(rationale)}\n\n\n"
        "def generate_config(workload, environment):\n"
        f"    return {{\n{settings}\n    }}\n"
    )
    return Policy(source=source, author=author, rationale=rationale)


class ReplayProposer:
    """Proposes recorded policies as they are: who wrote them stays on record with them."""

    name = "replay"

    def __init__(self, policies: Sequence[Policy]) -> None:
        self._policies = tuple(policies)

    def propose(self, study: Study, history: History) -> Proposal | None:  # noqa: ARG002 - the port
        """Give the next policy, or None when all were proposed again."""
        begun = len(history) + len(history.pending)
        return Proposal(policy=self._policies[begun]) if begun < len(self._policies) else None


def study_again(row: StudyRow, store: Store) -> Study:
    """A new study that launches the policies of one on record, with a budget that lasts for all."""
    study = replace(row.study, strategy=ReplayProposer.name, replay_of=row.id)
    count = len(policies_again(study, store))
    budget = replace(
        row.study.budget,
        trials=count,
        patience=count,
        max_failures=count,
        launches=None,
        max_wall_s=None,
    )
    return replace(study, budget=budget)


def policies_again(study: Study, store: Store) -> tuple[Policy, ...]:
    """Policies of the study that this one replays; raises `StudyError` when it names none."""
    if study.replay_of is None:
        raise StudyError("strategy 'replay' launches a study again; name it with --from STUDY")
    policies = tuple(trial.policy for trial in store.history(study.replay_of))
    if not policies:
        raise StudyError(
            f"study {study.replay_of} has no finished trial in {store.root}, "
            "so there is nothing to launch again; choose another with `cclsearch list`"
        )
    return policies


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
