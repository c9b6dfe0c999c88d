"""Studies on record: what they ask, how far they are, what they found, and what charts need."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from search.service.answers import Page, StudyFull, StudyShort
from search.service.edge.access import Reader, TheService
from search.service.facts.front import StudyFront
from search.service.facts.history import StudyHistory
from search.service.facts.knobs import StudyKnobs
from search.service.told import study_full, study_page

router = APIRouter(tags=["studies"])

Limit = Annotated[int, Query(ge=1, le=500, description="Most items of the page.")]
Offset = Annotated[int, Query(ge=0, le=10**9, description="Items before the page.")]
Status = Literal[
    "running", "queued", "finished", "failed", "cancelling", "cancelled", "interrupted"
]
Metric = Annotated[str | None, Query(min_length=1, max_length=100)]


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


@router.get("/studies/{study_id}")
def study(study_id: str, service: TheService, _caller: Reader) -> StudyFull:
    """One study with what was asked and what it found."""
    return study_full(service.study(study_id), service)


@router.get("/studies/{study_id}/history")
def history(study_id: str, service: TheService, _caller: Reader) -> StudyHistory:
    """What every trial reached, in order; of many trials only those that keep the shape of all."""
    return service.explored.history(service.study(study_id), service.records)


@router.get("/studies/{study_id}/front")
def front(
    study_id: str, service: TheService, _caller: Reader, against: Metric = None
) -> StudyFront:
    """Trials by several numbers, and which of them no other beats.

    They are the objectives, or, of a study with one, the objective and what trials take of the
    metric `against`.
    """
    return service.explored.front(service.study(study_id), service.records, against)


@router.get("/studies/{study_id}/knobs")
def knobs(study_id: str, service: TheService, _caller: Reader) -> StudyKnobs:
    """Configurations as lines over parallel axes, one for each knob of which several were tried."""
    return service.explored.knobs(service.study(study_id), service.records)
