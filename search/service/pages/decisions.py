"""What launches that were made again decided about trials, in words."""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from evaluator.objective import Scoring, scoring_of
from evaluator.timing.spread import Spread, spread
from records.errors import StudyError
from records.rows import StudyRow
from records.store import Store
from records.trial import Failed, Repeat, Trial
from search.disturbed import counted
from search.finding import Finding, ended_with
from search.report import spread_words
from search.report_page.cells import spread_cell
from search.rounds import objective_values
from search.standing import standing_of
from search.words.repeat import race_words
from search.words.trial import number, one_line, score_words

MOST_REPEATS = 5000
"""Launches beyond which a page does without them: each is read in full."""
CAUSE_CHARS = 500

Line: TypeAlias = tuple[str, str]
"""What it is about, and what it says."""


def repeats_of(row: StudyRow, store: Store) -> tuple[Repeat, ...]:
    """Launches of a study that were made again; none where they are too many to be read here."""
    few = 0 < store.counts(row.id).repeats <= MOST_REPEATS
    return store.repeats(row.id) if few else ()


def launched_again(row: StudyRow, store: Store) -> Mapping[int, str]:
    """What each trial reached over the launches that were made again, as far as they are few."""
    scoring = _scoring(row, store) if repeats_of(row, store) else None
    if scoring is None:
        return {}
    return {
        ordinal: _with_unit(found, scoring.unit)
        for ordinal, found in _spreads(row, store, scoring).items()
    }


def _with_unit(found: Spread, unit: str) -> str:
    """The same as a cell of a table: `0.52 s (0.51 to 0.53), 4 launches`."""
    centre, rest = number(found.centre), spread_cell(found).text
    return f"{centre} {unit}".rstrip() + rest.removeprefix(centre)


def result_words(row: StudyRow, trial: Trial, store: Store) -> str:
    """What a trial reached: over its launches that were made again, else in its own."""
    scoring = _scoring(row, store) if repeats_of(row, store) else None
    found = None if scoring is None else _spreads(row, store, scoring).get(trial.ordinal)
    if found is not None and scoring is not None:
        return spread_words(found, scoring.unit)
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
    if not repeats_of(row, store):
        words = f"too often in this study to be read here; see `cclsearch show {row.id}`"
        yield "launched again", words
        return
    scoring = _scoring(row, store)
    if scoring is None:
        return
    found = _spreads(row, store, scoring).get(trial.ordinal)
    if found is not None:
        yield "launched again", spread_words(found, scoring.unit)
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


def _spreads(row: StudyRow, store: Store, scoring: Scoring) -> Mapping[int, Spread]:
    values = objective_values(counted(repeats_of(row, store)), scoring)
    return {ordinal: spread(each) for ordinal, each in values.items()}


def _scoring(row: StudyRow, store: Store) -> Scoring | None:
    """What the study scores by; None where a record from elsewhere does not tell."""
    first = store.first_measured(row.id)
    try:
        return scoring_of(row.study).against(() if first is None else (first.outcome,))
    except StudyError:
        return None
