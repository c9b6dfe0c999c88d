"""Submitting, cancelling and going on."""

from hashlib import sha256
from typing import Annotated

from fastapi import APIRouter, Header, Response
from pydantic import BaseModel, ConfigDict, Field

from search.service.answers import Entered, Environment
from search.service.edge.access import Reader, Submitter, TheService
from search.service.submission import NewStudy

router = APIRouter(tags=["queue"])

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        description="The same key with the same request makes one study, however often it is sent.",
    ),
]


class MoreTrials(BaseModel):
    """How a study goes on."""

    model_config = ConfigDict(extra="forbid")

    more_trials: Annotated[int, Field(ge=1, le=1_000_000)] | None = None


@router.get("/environments")
def environments(service: TheService, _caller: Reader) -> list[Environment]:
    """Environments that studies may be submitted for."""
    return [
        Environment(
            name=name, description=one.description, at_once=one.at_once, devices=one.devices
        )
        for name, one in sorted(service.config.environment.items())
    ]


@router.post("/studies", status_code=201)
def create(
    asked: NewStudy,
    service: TheService,
    caller: Submitter,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> Entered:
    """Submit a study; it is searched as soon as its environment is free."""
    digest = sha256(asked.model_dump_json().encode()).hexdigest()
    key = None if idempotency_key is None else (idempotency_key, digest)
    study_id = service.submit(asked, caller, key)
    response.headers["location"] = f"/api/v1/studies/{study_id}"
    return Entered(id=study_id, status=service.status(service.study(study_id)))


@router.post("/studies/{study_id}/cancel", status_code=202)
def cancel(study_id: str, service: TheService, caller: Submitter) -> Entered:
    """End a study; what it measured stays, and it can be resumed."""
    return Entered(id=study_id, status=service.cancel(study_id, caller).state.value)


@router.post("/studies/{study_id}/resume", status_code=202)
def resume(
    study_id: str, service: TheService, caller: Submitter, how: MoreTrials | None = None
) -> Entered:
    """Go on with a study that ended, with more trials if they are given."""
    more = None if how is None else how.more_trials
    return Entered(id=study_id, status=service.resume(study_id, more, caller).state.value)
