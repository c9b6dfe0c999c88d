"""Studies on record: what they ask, how far they are, what they found, and what charts need."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import TypeAdapter

from search.service.access import Reader, TheService
from search.service.answers import Page, StudyFull, StudyShort
from search.service.explored import StudyHistory
from search.service.explored_front import StudyFront
from search.service.explored_knobs import StudyKnobs
from search.service.told import study_full, study_page, version_of

router = APIRouter(tags=["studies"])

Limit = Annotated[int, Query(ge=1, le=500, description="Most items of the page.")]
Offset = Annotated[int, Query(ge=0, le=10**9, description="Items before the page.")]
Status = Literal[
    "queued", "running", "cancelling", "cancelled", "interrupted", "failed", "finished"
]
Metric = Annotated[str | None, Query(min_length=1, max_length=100)]

HISTORY = TypeAdapter(StudyHistory)
FRONT = TypeAdapter(StudyFront)
KNOBS = TypeAdapter(StudyKnobs)


@router.get("/studies")
def studies(
    service: TheService,
    _caller: Reader,
    limit: Limit = 50,
    offset: Offset = 0,
    text: Annotated[
        str | None, Query(max_length=200, description="In the id, the name or the objective.")
    ] = None,
    status: Status | None = None,
) -> Page[StudyShort]:
    """Studies, newest first."""
    return study_page(service, limit=limit, offset=offset, text=text, status=status)


@router.get("/studies/{study_id}", response_model=StudyFull)
def study(request: Request, study_id: str, service: TheService, _caller: Reader) -> Response:
    """One study with what was asked and what it found."""
    row = service.study(study_id)
    return service.answers.answer(
        request,
        version_of(row, service),
        lambda: study_full(row, service).model_dump_json().encode(),
    )


@router.get("/studies/{study_id}/history", response_model=StudyHistory)
def history(request: Request, study_id: str, service: TheService, _caller: Reader) -> Response:
    """What every trial reached, in order; of many trials only those that keep the shape of all."""
    row = service.study(study_id)
    return service.answers.answer(
        request,
        (service.records.stamp(row.id),),
        lambda: HISTORY.dump_json(service.explored.history(row, service.records)),
    )


@router.get("/studies/{study_id}/front", response_model=StudyFront)
def front(
    request: Request,
    study_id: str,
    service: TheService,
    _caller: Reader,
    against: Metric = None,
) -> Response:
    """Trials by several numbers, and which of them no other beats.

    They are the objectives, or, of a study with one, the objective and what trials take of the
    metric `against`.
    """
    row = service.study(study_id)
    return service.answers.answer(
        request,
        (service.records.stamp(row.id),),
        lambda: FRONT.dump_json(service.explored.front(row, service.records, against)),
    )


@router.get("/studies/{study_id}/knobs", response_model=StudyKnobs)
def knobs(request: Request, study_id: str, service: TheService, _caller: Reader) -> Response:
    """Configurations as lines over parallel axes, one for each knob of which several were tried."""
    row = service.study(study_id)
    return service.answers.answer(
        request,
        (service.records.stamp(row.id),),
        lambda: KNOBS.dump_json(service.explored.knobs(row, service.records)),
    )
