"""The front of several objectives: the trials that no other trial beats in all of them."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from evaluator.objective import Scoring
from evaluator.timing.spread import Spread, spread
from records.history import History
from records.trial import Measured, Repeat, Score, Trial
from search.rounds import supported_values

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What a trial reached in one objective, over all its launches."""

    objective: str
    unit: str
    value: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A trial on the front, by ordinal, and what it reached, the main objective first."""

    ordinal: int
    reached: tuple[Reached, ...]


def front_of(history: History, repeats: Sequence[Repeat], scoring: Scoring) -> tuple[Member, ...]:
    """The front of a study, best in its main objective first; empty where it has but one.

    A trial speaks by its launches that were made again, or else by the one that it had. One that
    breaks a limit, or lacks an objective, is not on it.
    """
    if not scoring.more:
        return ()
    own = {trial.ordinal: own_values(trial, scoring) for trial in history.admissible}
    reached = {ordinal: values for ordinal, values in own.items() if values is not None}
    return front_over(reached, repeats, scoring)


def front_over(
    own: Mapping[int, tuple[float, ...]], repeats: Sequence[Repeat], scoring: Scoring
) -> tuple[Member, ...]:
    """The front of what trials reached in each objective by their own launches."""
    again = [supported_values(repeats, one) for one in scoring.objectives]
    launches = {
        ordinal: tuple(
            values.get(ordinal) or [value] for values, value in zip(again, reached, strict=True)
        )
        for ordinal, reached in own.items()
    }
    costs = {
        ordinal: tuple(
            one.sign * median(values) for one, values in zip(scoring.objectives, each, strict=True)
        )
        for ordinal, each in launches.items()
    }
    return tuple(
        Member(
            ordinal=ordinal,
            reached=tuple(
                Reached(objective=one.expression.text, unit=one.unit, value=spread(values))
                for one, values in zip(scoring.objectives, launches[ordinal], strict=True)
            ),
        )
        for ordinal in unbeaten(costs)
    )


def own_values(trial: Trial, scoring: Scoring) -> tuple[float, ...] | None:
    """What a trial's own launch reached in each objective; None where it lacks one."""
    outcome = trial.outcome
    if not isinstance(outcome, Measured):
        return None
    scores = [one.score(outcome.metrics, outcome.absent) for one in scoring.objectives]
    values = tuple(score.value for score in scores if isinstance(score, Score))
    return values if len(values) == len(scores) else None


def unbeaten(costs: Mapping[Key, tuple[float, ...]]) -> tuple[Key, ...]:
    """Those that no other beats, lowest first cost first; equal ones are all in.

    One is beaten by another that is nowhere worse and somewhere better. Two costs are looked at in
    the time that sorting takes: among those with a lower first cost the last kept has the lowest
    second one.
    """
    kept: list[Key] = []
    for key, cost in sorted(costs.items(), key=lambda item: item[1]):
        rivals = kept[-1:] if len(cost) == 2 else kept
        if not any(_beats(costs[rival], cost) for rival in rivals):
            kept.append(key)
    return tuple(kept)


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))
