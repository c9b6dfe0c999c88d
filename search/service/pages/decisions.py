"""What launches that were made again decided about trials, in words."""

from collections.abc import Iterator
from typing import TypeAlias

from records.rows import StudyRow
from records.store import Store
from records.trial import Failed, Trial
from search.finding import Finding, ended_with
from search.report import spread_words
from search.service.facts.repeats import are_too_many, reached_again, reached_by
from search.standing import standing_of
from search.words.repeat import race_words
from search.words.trial import one_line, score_words

CAUSE_CHARS = 500

Line: TypeAlias = tuple[str, str]
"""What it is about, and what it says."""


def result_words(row: StudyRow, trial: Trial, store: Store) -> str:
    """What a trial reached over the launches that count, with its unit."""
    found = reached_by(trial, reached_again(row, store))
    if found is None or trial.score is None:
        return "failed"
    return spread_words(found, trial.score.unit)


def decision_lines(row: StudyRow, trial: Trial, store: Store) -> tuple[Line, ...]:
    """How a trial ended, what later launches said of it, and what was decided in the end."""
    return tuple(_lines(row, trial, store))


def _lines(row: StudyRow, trial: Trial, store: Store) -> Iterator[Line]:
    if isinstance(trial.outcome, Failed):
        yield "failed", f"{trial.outcome.kind} at {trial.outcome.stage}"
        yield "first cause", one_line(trial.outcome.message, CAUSE_CHARS)
    if trial.score is not None:
        yield "result", result_words(row, trial, store)
        yield "first launch alone", score_words(trial.score)
        yield from (("breaks a limit", words) for words in trial.score.broken)
    finding = ended_with(row)
    if store.counts(row.id).repeats:
        yield from _again(row, trial, store, finding)
    if finding is not None:
        yield from _in_the_end(finding, trial)


def _again(row: StudyRow, trial: Trial, store: Store, finding: Finding | None) -> Iterator[Line]:
    """How a trial did against others."""
    if are_too_many(row, store):
        words = f"too often in this study to be read here; see `cclsearch show {row.id}`"
        yield "launched again", words
        return
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
