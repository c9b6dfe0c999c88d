"""What is on record, scored by other objectives or limits than it was searched by."""

from dataclasses import dataclass, replace
from statistics import median

from evaluator.objective import scoring_of
from records.codec import to_json
from records.history import History
from records.rows import StudyRow
from records.store import Store
from records.study import Study
from search.disturbed import counted
from search.finding import Finding, find
from search.front import front_of
from search.rounds import objective_values
from search.standing import Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """A study as it would be if it had been asked this; nothing was launched for it."""

    row: StudyRow
    """With `finding` as its summary."""
    history: History
    finding: Finding


def rescored(row: StudyRow, store: Store, asked: Study) -> Rescored:
    """Score what is on record of a study by the objectives and limits of `asked`.

    Who leads is who has the lowest cost over all launches: nobody was raced for it. A trial that
    lacks a metric is a failure that says which. Raises `StudyError` where `asked` is unclear.
    """
    stored, repeats = store.history(row.id), counted(store.repeats(row.id))
    scoring = scoring_of(asked).over(stored)
    values = objective_values(repeats, scoring)
    scored = History(
        trials=tuple(map(scoring.scored, stored)),
        costs={ordinal: scoring.sign * median(found) for ordinal, found in values.items()},
    )
    front = front_of(scored, repeats, scoring)
    history = replace(scored, front=tuple(member.ordinal for member in front))
    led = Standing(history=history, races=(), noise=None, front=front)
    reason = "scored again by what is on record; nothing was launched, and nobody raced for it"
    finding = find(led, repeats, scoring, asked.measure, reason)
    return Rescored(
        row=replace(row, study=asked, summary=to_json(finding)), history=history, finding=finding
    )
