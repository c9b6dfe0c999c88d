"""The page that says whether the service does what it should."""

from fastapi import APIRouter, Request, Response

from search.doctor import api_key, store_folder
from search.service.edge.access import Reader, TheService
from search.service.health import details_of
from search.service.pages.rendering import page

router = APIRouter(include_in_schema=False)

SHOWN = 50


@router.get("/health")
def health_page(request: Request, service: TheService, _caller: Reader) -> Response:
    """Queue, devices, disk, memory, versions; and what is wrong."""
    found = details_of(service)
    under_way = () if found.queued is None else service.table.under_way()
    return page(
        request,
        "health.html",
        found=found,
        under_way=under_way[:SHOWN],
        more=max(0, len(under_way) - SHOWN),
        looked_at=(store_folder(service.store), api_key()),
    )
