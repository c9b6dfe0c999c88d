"""Studies as the service tells them, to programs and on its pages."""

import json
from collections.abc import Hashable

from records.codec import to_json
from records.rows import StudyRow
from records.store import Store
from records.study_pages import StudyQuery
from search.finding import best_result, ended_with, leader_of
from search.report import undecided_words
from search.service.answers import Page, StudyFull, StudyShort, config_of, disturbance_of, result_of
from search.service.facts.repeats import disturbed_study
from search.service.runs.table import Submitted
from search.service.state import Service, told_status
from search.words.condition import Disturbed


def version_of(row: StudyRow, service: Service) -> tuple[Hashable, ...]:
    """What changes with whatever is told of a study."""
    submitted = service.table.find(row.id)
    return service.records.stamp(row.id), submitted, service.status_of(submitted, row)


def study_short(row: StudyRow, service: Service) -> StudyShort:
    """A study in a list; made anew where it has changed."""
    return service.shorts.get(row.id, version_of(row, service), lambda: _short(row, service))


def study_full(row: StudyRow, service: Service) -> StudyFull:
    """A study with what was asked and what it found."""
    records, finding = service.records, ended_with(row)
    pending = [
        {
            "ordinal": intent.ordinal,
            "author": intent.policy.author,
            "rationale": intent.policy.rationale,
            "policy": intent.policy.digest,
            "started_at": intent.started_at,
        }
        for intent in records.pending(row.id)
    ]
    facts: dict[str, object] = {
        **study_short(row, service).model_dump(),
        "study": json.loads(to_json(row.study)),
        "finding": None if finding is None else json.loads(to_json(finding)),
        "launches": records.counts(row.id).launches,
        "failures": {kind.value: count for kind, count in records.failures(row.id).items()},
        "pending": pending,
        "disturbed": disturbance_of(disturbed_in(row, service)),
        "undecided": None if finding is None else undecided_words(finding),
    }
    return StudyFull.model_validate(facts)


def disturbed_in(row: StudyRow, service: Service) -> Disturbed | None:
    """How many launches of a study were disturbed, counted again where it has changed."""
    stamp = service.records.stamp(row.id)
    return service.disturbed.get(row.id, stamp, lambda: disturbed_study(row, service.records))


def study_page(
    service: Service, *, limit: int, offset: int, text: str | None, status: str | None
) -> Page[StudyShort]:
    """Some of the studies, newest first: those with this text and this status, if they are given.

    The status of one that was submitted here, or whose process is gone, is not what is on record.
    """
    among, except_for = ((), ()) if status is None else _standing(status, service)
    query = StudyQuery(
        text=text,
        status=status,
        among=among,
        except_for=except_for,
        limit=limit,
        offset=offset,
    )
    rows, total = service.records.study_page(query)
    return Page(items=[study_short(row, service) for row in rows], total=total, offset=offset)


def _standing(status: str, service: Service) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Studies that have this status, of all whose record alone does not tell, and all of those."""
    records, states = service.records, service.table.states()
    begun = dict.fromkeys(records.begun_studies(), "interrupted")
    begun |= {study_id: "running" for study_id in begun if records.holder(study_id) is not None}
    recorded = records.statuses((*states, *begun)) | begun
    told = {one: told_status(states.get(one), word) for one, word in recorded.items()}
    return tuple(one for one, its in told.items() if its == status), tuple(told)


def _short(row: StudyRow, service: Service) -> StudyShort:
    records, asked = service.records, row.study
    counts, submitted = records.counts(row.id), service.table.find(row.id)
    best = leader_of(row, records)
    facts = {
        "id": row.id,
        "name": asked.name,
        "status": service.status_of(submitted, row),
        "strategy": row.strategy,
        "objective": asked.objective.expression,
        "more_objectives": [more.expression for more in asked.more_objectives],
        "limits": list(asked.limits),
        "created_at": row.created_at,
        "started_at": _started_at(row, records),
        "trials": counts.trials,
        "failed": counts.failed,
        "most_trials": asked.budget.trials,
        "best_trial": best.ordinal if best else None,
        "best_config": config_of(best.config) if best else None,
        "best": None if best is None else result_of(best, best_result(row, best, records)),
        **_submission(submitted),
        "imported_from": asked.origin.kind if asked.origin else None,
    }
    return StudyShort.model_validate(facts)


def _started_at(row: StudyRow, records: Store) -> str | None:
    if row.study.origin is None:
        return row.created_at
    first = records.trial(row.id, 0)
    return None if first is None else first.started_at or None


def _submission(submitted: Submitted | None) -> dict[str, object]:
    return {
        "environment": submitted.environment if submitted else None,
        "submitted_by": submitted.submitted_by if submitted else None,
        "message": submitted.message if submitted else None,
    }
