"""What a search found: the re-measured winner, how sure that is, and who ties with it."""

from collections.abc import Sequence
from dataclasses import dataclass

from evaluator.objective import Scoring, scoring_of
from evaluator.timing.noise import Noise
from evaluator.timing.paired import Comparison
from evaluator.timing.spread import Spread, spread
from evaluator.timing.verdict import Verdict
from records.codec import from_json
from records.history import History
from records.rows import StudyRow
from records.store import Store
from records.study import Measure
from records.trial import Repeat, Trial
from search.final import compared, unreliable
from search.front import Member
from search.rounds import objective_values
from search.standing import Race, Standing, standing_of


@dataclass(frozen=True, slots=True, kw_only=True)
class InContextFinding:
    """The winner against the seed in one context, or on average over `context_count` of them.

    `against_seed` compares burdens, so a ratio below 1 is better; None where they share no round.
    """

    name: str
    held_out: bool
    against_seed: Comparison | None
    context_count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The closing summary of a study; `winner` is the ordinal of a trial, None when none ran.

    `result` is in the unit of the objective, from confirming launches only when there are any.
    `against_seed` compares burdens, so a ratio below 1 is better whatever the direction.
    `unreliable` finalists failed in a confirming launch by their own doing. `noise` is how much a
    round's ratio varies between equal sides. `front` is empty where the study has one objective.
    """

    stop_reason: str
    winner: int | None
    unit: str
    result: Spread | None
    against_seed: Comparison | None
    ties: tuple[int, ...]
    unreliable: tuple[int, ...]
    races: tuple[Race, ...] = ()
    noise: Noise | None = None
    contexts: tuple[InContextFinding, ...] = ()
    front: tuple[Member, ...] = ()


def find(
    led: Standing,
    launches: Sequence[Repeat],
    scoring: Scoring,
    measure: Measure,
    stop_reason: str,
) -> Finding:
    """Name the winner among the finalists by the launches that confirmed them."""
    history, values = led.history, objective_values(launches, scoring)
    admissible = {trial.ordinal for trial in history.admissible}
    winner = None if history.best is None else history.best.ordinal
    failed = unreliable(launches)
    against = {
        ordinal: compared(launches, winner, ordinal, scoring, measure)
        for ordinal in values
        if winner is not None and ordinal != winner
    }
    return Finding(
        stop_reason=stop_reason,
        winner=winner,
        unit=scoring.unit,
        result=None if winner is None else _result(history, winner, values),
        against_seed=against.get(0),
        ties=tuple(
            ordinal
            for ordinal, comparison in against.items()
            if comparison.verdict is not Verdict.FAST
            and ordinal in admissible
            and ordinal not in failed
        ),
        unreliable=failed,
        races=led.races,
        noise=led.noise,
        front=led.front,
    )


def ended_with(row: StudyRow) -> Finding | None:
    """What a study found; None before its end, and while it goes on and may find better."""
    if row.summary is None or row.status != "finished":
        return None
    return from_json(Finding, row.summary)


def leader_of(row: StudyRow, store: Store) -> Trial | None:
    """The trial of a study on record that won, or leads so far; None where none was measured."""
    finding = ended_with(row)
    if finding is not None and finding.winner is not None:
        return store.trial(row.id, finding.winner)
    if not store.counts(row.id).repeats and not scoring_of(row.study).needs_seed:
        return store.best(row.id)
    return standing_of(row, store).history.best


def best_result(row: StudyRow, leader: Trial | None) -> Spread | None:
    """How good the trial is that leads a study: over what confirmed it, or by its own launch."""
    finding = ended_with(row)
    if finding is not None and finding.result is not None:
        return finding.result
    return None if leader is None else _own(leader)


def _result(history: History, winner: int, values: dict[int, list[float]]) -> Spread | None:
    if winner in values:
        return spread(values[winner])
    trial = history.find(winner)
    return None if trial is None else _own(trial)


def _own(trial: Trial) -> Spread | None:
    return None if trial.score is None else spread([trial.score.value])
