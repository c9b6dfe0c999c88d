"""Proposers without a model: an offline strategy, recorded policies, several objectives."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar, Final

from evaluator.objective import Scoring
from records.codec import utc_now
from records.errors import StudyError
from records.store.journal import Entry, StudyCreated
from records.store.rows import PendingTrial, StudyRow
from records.store.store import Store
from records.study import Study
from records.trial import Config, History, Policy
from search.loop.leader import own_values
from search.loop.ports import Proposal, Proposer
from search.strategies.base import Chooser
from search.study.spaces import own_part


@dataclass(frozen=True, slots=True)
class OfflineProposer:
    """Proposes the choices of an offline strategy as policies."""

    chooser: Chooser

    @property
    def name(self) -> str:
        """The name of the strategy."""
        return self.chooser.name

    def propose(self, study: Study, history: History) -> Proposal | None:
        """Return the chosen configuration as a policy, or None when everything was tried."""
        choice = self.chooser.choose(study, history)
        if choice is None:
            return None
        config = own_part(choice.config) if study.contexts else choice.config
        policy = as_policy(config, self.name, choice.why)
        best = history.best if choice.changes_best else None
        if best is not None and best.policy.digest != policy.digest:
            policy = replace(policy, parent=best.policy.digest)
        return Proposal(policy=policy)


def as_policy(config: Config, author: str, rationale: str) -> Policy:
    """Return a policy that returns one configuration; every trial is recorded with a policy."""
    settings = "\n".join(f"        {knob!r}: {value!r}," for knob, value in config.values.items())
    source = (
        f"{json.dumps(rationale)}\n\n\n"
        "def generate_config(workload, environment):\n"
        f"    return {{\n{settings}\n    }}\n"
    )
    return Policy(source=source, author=author, rationale=rationale)


@dataclass(frozen=True, slots=True)
class ReplayProposer:
    """Proposes recorded policies unchanged, with their authors."""

    policies: Sequence[Policy]
    name: ClassVar[str] = "replay"

    def propose(self, study: Study, history: History) -> Proposal | None:  # noqa: ARG002 - the port
        """Return the next policy, or None after the last one."""
        begun = len(history) + len(history.pending)
        return Proposal(policy=self.policies[begun]) if begun < len(self.policies) else None


def study_again(row: StudyRow, store: Store) -> Study:
    """Return a new study that launches all policies of a recorded one, within its budget."""
    study = replace(row.study, strategy=ReplayProposer.name, replay_of=row.id)
    count = len(policies_again(study, store))
    budget = replace(
        row.study.budget,
        trials=count,
        patience=None,
        max_failures=count,
        launches=None,
        max_wall_s=None,
    )
    return replace(study, budget=budget)


LEAST_ROUNDS, MOST_ROUNDS = 3, 12
"""Of a race, where the study itself asks for fewer."""


def race_study(row: StudyRow, ordinals: tuple[int, int], store: Store) -> Study:
    """Return a new study that launches two measured trials of a recorded one, interleaved.

    Raise `StudyError` where they cannot race.
    """
    if ordinals[0] == ordinals[1]:
        raise StudyError(f"trial {ordinals[0]} cannot race itself; give two trials")
    for ordinal in ordinals:
        trial = store.trial(row.id, ordinal)
        if trial is None or trial.score is None:
            why = "was not measured" if trial is not None else "is not recorded"
            raise StudyError(
                f"trial {ordinal} of study {row.id} {why}; a race needs two measured trials"
            )
    # Where the noise is unknown the final launches the best two, so it launches both.
    measure = replace(
        row.study.measure,
        self_test_rounds=0,
        race_ratio=1.0,
        race_rounds=0,
        confirm_top=2,
        confirm_rounds=max(LEAST_ROUNDS, row.study.measure.confirm_rounds),
        max_confirm_rounds=max(MOST_ROUNDS, row.study.measure.max_confirm_rounds),
    )
    each = 1 + measure.infrastructure_retries + measure.self_test_rounds
    launches = 2 * (each + 2 * measure.max_confirm_rounds)
    budget = replace(
        row.study.budget,
        trials=2,
        patience=None,
        max_failures=2,
        launches=launches,
        max_wall_s=None,
    )
    return replace(
        row.study,
        name=f"trial {ordinals[0]} against {ordinals[1]} of {row.study.name}",
        strategy=ReplayProposer.name,
        replay_of=row.id,
        measure=measure,
        budget=budget,
    )


def record_race(
    study_id: str, study: Study, ordinals: tuple[int, int], version: str, status: str, store: Store
) -> None:
    """Record a race of two trials with both of them begun, all or nothing."""
    trials = [store.trial(study.replay_of or "", ordinal) for ordinal in ordinals]
    entries: list[Entry] = [
        StudyCreated(study=study, version=version, created_at=utc_now(), status=status)
    ]
    entries += [
        PendingTrial(ordinal=number, policy=trial.policy, started_at=utc_now())
        for number, trial in enumerate(filter(None, trials))
    ]
    store.restore(study_id, entries)


def policies_again(study: Study, store: Store) -> tuple[Policy, ...]:
    """Return the policies of the replayed study; raise `StudyError` where there are none."""
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
"""Weight of the sum of all objectives; without it, only the worst objective would count."""
COST_WITHOUT_OBJECTIVE: Final = 2.0
"""Cost of a trial that lacks an objective, above all others."""


@dataclass(frozen=True, slots=True)
class FrontProposer:
    """Gives `inner` a history with one cost for all objectives, with new weights each turn.

    The cost is the augmented Chebyshev distance to the best of each objective, relative to the
    range so far: its optimum is on the front for all weights, also where the front is concave.
    """

    inner: Proposer
    scoring: Scoring

    @property
    def name(self) -> str:
        """The name of the inner proposer."""
        return self.inner.name

    def propose(self, study: Study, history: History) -> Proposal | None:
        """Return the proposal of the inner proposer for the weights of this turn."""
        scoring = self.scoring.over(history)
        turn = len(history) + len(history.pending)
        random = Random(f"{study.random_seed}/front/{turn}")
        # Normalized exponential draws are uniform over all weights that sum to one.
        draws = [random.expovariate(1.0) for _ in scoring.objectives]
        weights = [draw / sum(draws) for draw in draws]
        costs = {trial.ordinal: COST_WITHOUT_OBJECTIVE for trial in history.measured}
        costs |= one_cost(_costs(history, scoring), weights)
        texts = (one.expression.text for one in scoring.objectives)
        by_text = tuple(zip(texts, weights, strict=True))
        return self.inner.propose(
            study, replace(history, costs=costs, incumbent=None, weights=by_text)
        )


def one_cost(
    costs: Mapping[int, tuple[float, ...]], weights: Sequence[float]
) -> Mapping[int, float]:
    """Return one cost for all objectives: 0 if best in each, at most 1 + `SUM_SHARE`."""
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
    """Return the cost of each trial in each objective; in the main one over all launches."""
    costs: dict[int, tuple[float, ...]] = {}
    for trial in history.measured:
        values = own_values(trial, scoring)
        if values is not None:
            pairs = zip(scoring.more, values[1:], strict=True)
            others = (one.sign * value for one, value in pairs)
            costs[trial.ordinal] = (history.cost(trial), *others)
    return costs
