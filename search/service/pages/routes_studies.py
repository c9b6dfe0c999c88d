"""The page of studies: how far each is, what it found, and which two to compare."""

from typing import Annotated, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from search.service.edge.access import Reader, TheService
from search.service.pages.rendering import page
from search.service.pages.sparklines import spark_of
from search.service.routes.studies import Offset, Status
from search.service.told import study_page

router = APIRouter(include_in_schema=False)

ON_A_PAGE = 25
STATUSES = get_args(Status)


@router.get("/studies")
def studies_page(
    request: Request,
    service: TheService,
    _caller: Reader,
    offset: Offset = 0,
    text: Annotated[str, Query(max_length=200)] = "",
    status: Annotated[str, Query(max_length=20)] = "",
) -> Response:
    """Studies, newest first."""
    asked = status if status in STATUSES else ""
    found = study_page(
        service, limit=ON_A_PAGE, offset=offset, text=text or None, status=asked or None
    )
    kept = {name: value for name, value in (("text", text), ("status", asked)) if value}
    return page(
        request,
        "studies.html",
        found=found,
        sparks={each.id: spark_of(each.id, service) for each in found.items},
        limit=ON_A_PAGE,
        text=text,
        chosen=asked,
        statuses=STATUSES,
        address=f"/studies?{urlencode(kept)}&" if kept else "/studies?",
    )
