"""Trials of a study: tables of them, and each in full."""

import json
from typing import Annotated, Literal

from fastapi import APIRouter, Query

from records.codec import to_json
from records.trial import FailureKind
from records.trial_pages import TrialQuery
from search.service.access import Reader, TheService
from search.service.answers import Page, TrialFull, TrialShort, trial_full, trial_short
from search.service.routes.files import trial_of
from search.service.routes.studies import Limit, Offset

router = APIRouter(tags=["trials"])


@router.get("/studies/{study_id}/trials")
def trials(
    study_id: str,
    service: TheService,
    _caller: Reader,
    limit: Limit = 100,
    offset: Offset = 0,
    sort: Annotated[
        str, Query(max_length=120, description="ordinal, score, author, config.KNOB or metric.NAME")
    ] = "ordinal",
    order: Literal["up", "down"] = "up",
    status: Literal["measured", "failed"] | None = None,
    kind: FailureKind | None = None,
    author: Annotated[str | None, Query(max_length=100)] = None,
    text: Annotated[
        str | None, Query(max_length=200, description="In the configuration or the message.")
    ] = None,
) -> Page[TrialShort]:
    """Trials of a study; those without the value that they are sorted by come last."""
    row = service.study(study_id)
    query = TrialQuery(
        sort=sort,
        descending=order == "down",
        status=status,
        kind=kind,
        author=author,
        text=text,
        limit=limit,
        offset=offset,
    )
    found, total = service.records.trial_page(row.id, query)
    return Page(items=[trial_short(trial) for trial in found], total=total, offset=offset)


@router.get("/studies/{study_id}/trials/{ordinal}")
def trial(study_id: str, ordinal: int, service: TheService, _caller: Reader) -> TrialFull:
    """One trial in full: samples, metrics, launch, files."""
    found = trial_of(service, study_id, ordinal)
    values = service.records.metric_values(study_id, ordinal).get(ordinal, ())
    return trial_full(found, values, json.loads(to_json(found.outcome)))
