"""What launches that were made again decided about trials, in words."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from evaluator.objective import scoring_of
from evaluator.timing.spread import Spread, spread
from records.errors import StudyError
from records.rows import StudyRow
from records.store import Store
from records.trial import Failed, Trial
from search.disturbed import counted
from search.finding import Finding, ended_with
from search.report import spread_words
from search.report_page.cells import spread_cell
from search.rounds import objective_values
from search.service.facts.repeats import are_too_many, repeats_of
from search.standing import standing_of
from search.words.repeat import race_words
from search.words.trial import number, one_line, score_words

CAUSE_CHARS = 500

Line: TypeAlias = tuple[str, str]
"""What it is about, and what it says."""


def launched_again(row: StudyRow, store: Store) -> Mapping[int, str]:
    """What each trial reached over the launches that were made again, as far as they are few."""
    again = _reached_again(row, store)
    if again is None:
        return {}
    return {ordinal: _with_unit(found, again.unit) for ordinal, found in again.spreads.items()}


def _with_unit(found: Spread, unit: str) -> str:
    """The same as a cell of a table: `0.52 s (0.51 to 0.53), 4 launches`."""
    centre, rest = number(found.centre), spread_cell(found).text
    return f"{centre} {unit}".rstrip() + rest.removeprefix(centre)


def result_words(row: StudyRow, trial: Trial, store: Store) -> str:
    """What a trial reached: over its launches that were made again, else in its own."""
    again = _reached_again(row, store)
    if again is not None and trial.ordinal in again.spreads:
        return spread_words(again.spreads[trial.ordinal], again.unit)
    if trial.score is None:
        return "failed"
    return f"{score_words(trial.score)} in one launch, so its spread is unknown"


def decision_lines(row: StudyRow, trial: Trial, store: Store) -> tuple[Line, ...]:
    """How a trial ended, what later launches said of it, and what was decided in the end."""
    return tuple(_lines(row, trial, store))


def _lines(row: StudyRow, trial: Trial, store: Store) -> Iterator[Line]:
    if isinstance(trial.outcome, Failed):
        yield "failed", f"{trial.outcome.kind} at {trial.outcome.stage}"
        yield "first cause", one_line(trial.outcome.message, CAUSE_CHARS)
    if trial.score is not None:
        yield "own launch", score_words(trial.score)
        yield from (("breaks a limit", words) for words in trial.score.broken)
    finding = ended_with(row)
    if store.counts(row.id).repeats:
        yield from _again(row, trial, store, finding)
    if finding is not None:
        yield from _in_the_end(finding, trial)


def _again(row: StudyRow, trial: Trial, store: Store, finding: Finding | None) -> Iterator[Line]:
    """What a trial reached when it was launched again, and how it did against others."""
    if are_too_many(row, store):
        words = f"too often in this study to be read here; see `cclsearch show {row.id}`"
        yield "launched again", words
        return
    again = _reached_again(row, store)
    if again is None:
        return
    if trial.ordinal in again.spreads:
        yield "launched again", spread_words(again.spreads[trial.ordinal], again.unit)
    for race in standing_of(row, store).races if finding is None else finding.races:
        if trial.ordinal in (race.challenger, race.incumbent):
            yield "raced", race_words(race)


def _in_the_end(finding: Finding, trial: Trial) -> Iterator[Line]:
    if finding.winner == trial.ordinal:
        yield "in the end", "the best of the study"
    elif trial.ordinal in finding.ties:
        yield "in the end", f"it could not be told apart from the best, trial {finding.winner}"
    elif finding.winner is not None:
        yield "in the end", f"trial {finding.winner} is the best of the study"
    if trial.ordinal in finding.unreliable:
        yield "unreliable", "it failed by its own doing when it was launched to confirm it"
    if any(member.ordinal == trial.ordinal for member in finding.front):
        yield "front", "no other trial beats it in all objectives"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReachedAgain:
    """What trials reached over launches that were made again, by their ordinals."""

    spreads: Mapping[int, Spread]
    unit: str


def _reached_again(row: StudyRow, store: Store) -> _ReachedAgain | None:
    """None where they are too many, or a record from elsewhere does not tell how to score them."""
    repeats, first = repeats_of(row, store), store.first_measured(row.id)
    if not repeats:
        return None
    try:
        scoring = scoring_of(row.study).against(() if first is None else (first.outcome,))
    except StudyError:
        return None
    values = objective_values(counted(repeats), scoring)
    spreads = {ordinal: spread(each) for ordinal, each in values.items()}
    return _ReachedAgain(spreads=spreads, unit=scoring.unit)
