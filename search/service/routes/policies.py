"""Policies: their texts, what changed from one to the next, and what the model was told."""

import difflib
import json
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Query

from records.codec import to_json
from search.service.answers import Page, PolicyFull, PolicyShort, Transcript
from search.service.edge.access import Reader, TheService
from search.service.lookups import exchange_of, policy_of
from search.service.routes.files import Ordinal
from search.service.routes.studies import Limit, Offset
from search.service.state import Service

router = APIRouter(tags=["policies"])

MOST_TRIALS = 100
"""Ordinals that are listed of a policy."""
SHA256 = "^[0-9a-f]{64}$"
Digest = Annotated[str, Path(pattern=SHA256, description="SHA-256 of the policy's text.")]


@router.get("/studies/{study_id}/policies")
def policies(
    study_id: str, service: TheService, _caller: Reader, limit: Limit = 100, offset: Offset = 0
) -> Page[PolicyShort]:
    """Policies that a study tried, in the order of their first trials."""
    row = service.study(study_id)
    found, total = service.records.policy_outlines(row.id, limit, offset)
    trials = _trials(row.id, [each.digest for each in found], service)
    items = [
        PolicyShort(
            digest=each.digest,
            author=each.author,
            parent=each.parent,
            rationale=each.rationale,
            trials=trials[each.digest],
            trial_count=each.trial_count,
        )
        for each in found
    ]
    return Page(items=items, total=total, offset=offset)


@router.get("/studies/{study_id}/policies/{digest}")
def policy(
    study_id: str,
    digest: Digest,
    service: TheService,
    _caller: Reader,
    against: Annotated[
        str | None, Query(pattern=SHA256, description="Another policy of the study.")
    ] = None,
) -> PolicyFull:
    """A policy, and what changed against its parent or the one given."""
    row = service.study(study_id)
    found = policy_of(service, row.id, digest)
    before = None
    if against is not None:
        before = policy_of(service, row.id, against)
    elif found.parent is not None:
        before = service.records.policy(row.id, found.parent)
    diff = difflib.unified_diff(
        [] if before is None else before.source.splitlines(),
        found.source.splitlines(),
        "before",
        "after",
        lineterm="",
    )
    return PolicyFull(
        digest=digest,
        author=found.author,
        parent=found.parent,
        rationale=found.rationale,
        trials=_trials(row.id, [digest], service)[digest],
        trial_count=service.records.policy_trial_count(row.id, digest),
        source=found.source,
        against=None if before is None else before.digest,
        diff=[*diff],
    )


@router.get("/studies/{study_id}/trials/{ordinal}/transcript")
def transcript(study_id: str, ordinal: Ordinal, service: TheService, _caller: Reader) -> Transcript:
    """The conversation with the model that proposed a trial."""
    exchange = exchange_of(service, study_id, ordinal)
    return Transcript(ordinal=ordinal, exchange=json.loads(to_json(exchange)))


def _trials(study_id: str, digests: Sequence[str], service: Service) -> dict[str, list[int]]:
    """The first trials that these policies decided."""
    found = service.records.policy_results(study_id, digests, MOST_TRIALS)
    return {digest: [each.ordinal for each in results] for digest, results in found.items()}
