"""The page that compares studies or trials."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from records.errors import StudyError
from search.service.edge.access import Reader, TheService
from search.service.pages.beside import (
    MOST_SIDES,
    knobs_beside,
    regret_chart,
    side_named,
    verdicts,
)
from search.service.pages.rendering import drawing, page

router = APIRouter(include_in_schema=False)

Name = Annotated[str, Query(max_length=120)]


@router.get("/compare")
def compare(
    request: Request,
    service: TheService,
    _caller: Reader,
    side: Annotated[list[Name] | None, Query(max_length=100)] = None,
) -> Response:
    """Studies or trials side by side; the first is what the others are compared with."""
    names = list(dict.fromkeys(name.strip() for name in side or () if name.strip()))
    if len(names) > MOST_SIDES:
        raise StudyError(f"{len(names)} sides are too many to compare; give at most {MOST_SIDES}")
    sides = [side_named(name, service) for name in names]
    studies = {each.row.id: each.row for each in sides}
    histories = [
        (f"{row.study.name} ({row.id})", service.explored.history(row, service.records))
        for row in studies.values()
    ]
    chart = regret_chart(histories)
    return page(
        request,
        "compare.html",
        sides=sides,
        most=MOST_SIDES,
        knobs=knobs_beside(sides),
        verdicts=verdicts(sides) if sides else (),
        chart=None if chart is None else drawing(chart),
        study_count=len(studies),
    )
