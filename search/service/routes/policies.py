"""Policies: their texts, what changed from one to the next, and what the model was told."""

import difflib
import json
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, JsonValue

from records.codec import to_json
from search.service.access import Reader, TheService
from search.service.answers import PolicyFull, PolicyShort
from search.service.state import MissingError, Service

router = APIRouter(tags=["policies"])

Digest = Annotated[str | None, Query(min_length=64, max_length=64, pattern="[0-9a-f]+")]


class Transcript(BaseModel):
    """What was asked and answered about one trial, as it is on record, and what it took."""

    ordinal: int
    exchange: dict[str, JsonValue]


@router.get("/studies/{study_id}/policies")
def policies(study_id: str, service: TheService, _caller: Reader) -> list[PolicyShort]:
    """Every policy that a study tried, in the order of its first trial."""
    return [PolicyShort.model_validate(facts) for facts in _policies(service, study_id).values()]


@router.get("/studies/{study_id}/policies/{digest}")
def policy(
    study_id: str, digest: str, service: TheService, _caller: Reader, against: Digest = None
) -> PolicyFull:
    """A policy, and what changed against its parent or the one given."""
    known = _policies(service, study_id)
    if digest not in known:
        raise MissingError(f"study {study_id} has no such policy")
    facts = known[digest]
    other = against or facts["parent"]
    before = known.get(str(other), {}).get("source") if other else None
    if against is not None and before is None:
        raise MissingError(f"study {study_id} has no such policy to compare with")
    diff = difflib.unified_diff(
        str(before or "").splitlines(),
        str(facts["source"]).splitlines(),
        "before",
        "after",
        lineterm="",
    )
    return PolicyFull.model_validate(
        {**facts, "against": other if before is not None else None, "diff": list(diff)}
    )


@router.get("/studies/{study_id}/trials/{ordinal}/transcript")
def transcript(study_id: str, ordinal: int, service: TheService, _caller: Reader) -> Transcript:
    """The conversation with the model that proposed a trial."""
    service.study(study_id)
    trial = service.records.trial(study_id, ordinal)
    if trial is None or trial.exchange is None:
        raise MissingError(f"no model was asked for trial {ordinal} of study {study_id}")
    exchange = service.records.exchange(trial.exchange)
    return Transcript(ordinal=ordinal, exchange=json.loads(to_json(exchange)))


def _policies(service: Service, study_id: str) -> dict[str, dict[str, object]]:
    row = service.study(study_id)
    found: dict[str, dict[str, object]] = {}
    trials: dict[str, list[int]] = {}
    for ordinal, policy in service.records.policies(row.id):
        trials.setdefault(policy.digest, []).append(ordinal)
        found.setdefault(
            policy.digest,
            {
                "digest": policy.digest,
                "author": policy.author,
                "parent": policy.parent,
                "rationale": policy.rationale,
                "trials": trials[policy.digest],
                "lines": len(policy.source.splitlines()),
                "source": policy.source,
            },
        )
    return found
