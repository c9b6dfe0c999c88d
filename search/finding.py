"""What a search found: the re-measured winner, how sure that is, and who ties with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evaluator.objective import Scoring
from evaluator.timing.compare import Comparison, Spread, Verdict, compare, spread
from records.trial import Confirmation, Failed, FailureKind, History, Measured, Score, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The closing summary of a study; `winner` is the ordinal of a trial, None when none ran.

    `result` is in the unit of the objective, from re-measuring launches only when there are any.
    `against_seed` compares costs, so a ratio below 1 is better whatever the direction.
    `unreliable` finalists failed in a re-measuring launch by their own doing; one of them wins
    only when no other finalist is left.
    """

    stop_reason: str
    winner: int | None
    unit: str
    result: Spread | None
    against_seed: Comparison | None
    ties: tuple[int, ...]
    unreliable: tuple[int, ...]


def find(
    history: History, confirmations: Sequence[Confirmation], scoring: Scoring, stop_reason: str
) -> Finding:
    """Name the winner among the finalists by their re-measured values."""
    values = _values(confirmations, scoring)
    finalists = [t for t in history.ranked if t.ordinal in values] or list(history.ranked[:1])
    if not finalists:
        return Finding(
            stop_reason=stop_reason,
            winner=None,
            unit=scoring.unit,
            result=None,
            against_seed=None,
            ties=(),
            unreliable=(),
        )
    unreliable = _unreliable(confirmations)
    sound = [trial for trial in finalists if trial.ordinal not in unreliable]
    winner = min(sound or finalists, key=lambda trial: _centre_cost(trial, values, scoring))
    against = {
        t.ordinal: _against(values, winner, t, scoring) for t in finalists if t is not winner
    }
    return Finding(
        stop_reason=stop_reason,
        winner=winner.ordinal,
        unit=scoring.unit,
        result=spread(_launches(winner, values)),
        against_seed=against.get(0),
        ties=tuple(
            n
            for n, outcome in against.items()
            if outcome.verdict is not Verdict.FAST and n not in unreliable
        ),
        unreliable=unreliable,
    )


def _unreliable(confirmations: Sequence[Confirmation]) -> tuple[int, ...]:
    return tuple(
        sorted(
            {
                c.ordinal
                for c in confirmations
                if isinstance(c.outcome, Failed)
                and c.outcome.kind is not FailureKind.INFRASTRUCTURE
            }
        )
    )


def remeasured_costs(confirmations: Sequence[Confirmation], scoring: Scoring) -> dict[int, float]:
    """Cost of each re-measured trial over all its re-measuring launches, lower is better."""
    sign = 1 if scoring.lower_is_better else -1
    values = _values(confirmations, scoring)
    return {n: sign * spread(list(rounds.values())).centre for n, rounds in values.items()}


def _values(confirmations: Sequence[Confirmation], scoring: Scoring) -> dict[int, dict[int, float]]:
    """Objective of each re-measuring launch: by trial, by round."""
    values: dict[int, dict[int, float]] = {}
    for confirmation in confirmations:
        if isinstance(confirmation.outcome, Measured):
            score = scoring.score(confirmation.outcome.metrics)
            if isinstance(score, Score):
                values.setdefault(confirmation.ordinal, {})[confirmation.round] = score.value
    return values


def _launches(trial: Trial, values: Mapping[int, Mapping[int, float]]) -> list[float]:
    if trial.ordinal in values:
        return list(values[trial.ordinal].values())
    return [trial.score.value] if trial.score else []


def _centre_cost(
    trial: Trial, values: Mapping[int, Mapping[int, float]], scoring: Scoring
) -> float:
    centre = spread(_launches(trial, values)).centre
    return centre if scoring.lower_is_better else -centre


def _against(
    values: Mapping[int, Mapping[int, float]], winner: Trial, other: Trial, scoring: Scoring
) -> Comparison:
    """Compare over the rounds that both have."""
    ours, theirs = values.get(winner.ordinal, {}), values.get(other.ordinal, {})
    rounds = sorted(ours.keys() & theirs.keys())
    pairs = ([ours[r] for r in rounds], [theirs[r] for r in rounds])
    candidate, anchor = pairs if scoring.lower_is_better else (pairs[1], pairs[0])
    return compare(candidate, anchor)
