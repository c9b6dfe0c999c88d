"""Trials of a study: tables of them, each in full, and their metrics."""

import json
from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Query

from records.codec import to_json
from records.trial import FailureKind
from records.trial_pages import TrialQuery
from search.service.answers import (
    MetricValue,
    Page,
    TrialFull,
    TrialMetrics,
    TrialShort,
    trial_full,
    trial_short,
)
from search.service.edge.access import Reader, TheService
from search.service.facts.repeats import costs_again, disturbed_trials, reached_again, reached_by
from search.service.lookups import trial_of
from search.service.routes.files import Ordinal
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
        str,
        Query(
            max_length=120,
            pattern=r"^(ordinal|score|author|status|kind|started_at|config\.[^\"]+|metric\..+)$",
            description="ordinal, score, author, status, kind, started_at, config.KNOB or "
            "metric.NAME",
        ),
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
        costs=costs_again(row, service.records) if sort == "score" else {},
    )
    found, total = service.records.trial_page(row.id, query)
    again = reached_again(row, service.records)
    disturbed = disturbed_trials(found, row, service.records)
    items = [
        trial_short(trial, reached_by(trial, again), disturbed.get(trial.ordinal))
        for trial in found
    ]
    return Page(items=items, total=total, offset=offset)


@router.get("/studies/{study_id}/trials/{ordinal}")
def trial(study_id: str, ordinal: Ordinal, service: TheService, _caller: Reader) -> TrialFull:
    """One trial in full: samples, metrics, launch, files."""
    found = trial_of(service, study_id, ordinal)
    values = service.records.metric_values(study_id, ordinal).get(ordinal, ())
    row = service.study(study_id)
    reached = reached_by(found, reached_again(row, service.records))
    disturbed = disturbed_trials((found,), row, service.records).get(ordinal)
    return trial_full(found, reached, disturbed, values, json.loads(to_json(found.outcome)))


@router.get("/studies/{study_id}/metrics")
def metrics(
    study_id: str,
    service: TheService,
    _caller: Reader,
    limit: Limit = 100,
    offset: Offset = 0,
    name: Annotated[list[str] | None, Query(max_length=20)] = None,
) -> Page[TrialMetrics]:
    """The newest values of the metrics of trials, in their order: all, or those of these names."""
    row, records = service.study(study_id), service.records
    wanted = set(name or ())

    def told(ordinal: int) -> TrialMetrics:
        values = records.metric_values(row.id, ordinal).get(ordinal, ())
        shown = [MetricValue(**asdict(v)) for v in values if not wanted or v.name in wanted]
        return TrialMetrics(ordinal=ordinal, metrics=shown)

    return Page(
        items=[told(ordinal) for ordinal in records.ordinals(row.id, limit, offset)],
        total=records.counts(row.id).trials,
        offset=offset,
    )
