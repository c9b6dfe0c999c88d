"""Studies on record: what they ask, how far they are, what they found."""

import json
from typing import Annotated

from fastapi import APIRouter, Query

from records.codec import from_json, to_json
from records.rows import StudyRow
from search.finding import Finding
from search.service.access import Reader, TheService
from search.service.answers import Page, StudyFull, StudyShort, config_of, result_of
from search.service.state import Service

router = APIRouter(tags=["studies"])

Limit = Annotated[int, Query(ge=1, le=500, description="Most items of the page.")]
Offset = Annotated[int, Query(ge=0, le=10**9, description="Items before the page.")]


@router.get("/studies")
def studies(
    service: TheService, _caller: Reader, limit: Limit = 50, offset: Offset = 0
) -> Page[StudyShort]:
    """Studies, newest first."""
    rows = service.records.studies(limit=limit, offset=offset)
    return Page(
        items=[StudyShort.model_validate(short_facts(row, service)) for row in rows],
        total=service.records.study_count(),
        offset=offset,
    )


@router.get("/studies/{study_id}")
def study(study_id: str, service: TheService, _caller: Reader) -> StudyFull:
    """One study with what was asked and what it found."""
    row = service.study(study_id)
    records = service.records
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
    facts = {
        **short_facts(row, service),
        "study": json.loads(to_json(row.study)),
        "finding": json.loads(row.summary) if row.summary else None,
        "launches": records.counts(row.id).launches,
        "failures": {kind.value: count for kind, count in records.failures(row.id).items()},
        "pending": pending,
    }
    return StudyFull.model_validate(facts)


def short_facts(row: StudyRow, service: Service) -> dict[str, object]:
    """A study in short, by quick questions alone."""
    records, asked = service.records, row.study
    counts, submitted = records.counts(row.id), service.table.find(row.id)
    winner = None if row.summary is None else from_json(Finding, row.summary).winner
    best = records.best(row.id) if winner is None else records.trial(row.id, winner)
    return {
        "id": row.id,
        "name": asked.name,
        "status": service.status(row),
        "strategy": row.strategy,
        "objective": asked.objective.expression,
        "more_objectives": [more.expression for more in asked.more_objectives],
        "limits": list(asked.limits),
        "created_at": row.created_at,
        "trials": counts.trials,
        "failed": counts.failed,
        "most_trials": asked.budget.trials,
        "best_trial": best.ordinal if best else None,
        "best_config": config_of(best.config) if best else None,
        "best": result_of(best) if best else None,
        "environment": submitted.environment if submitted else None,
        "submitted_by": submitted.submitted_by if submitted else None,
        "message": submitted.message if submitted else None,
        "imported_from": asked.origin.kind if asked.origin else None,
    }
