"""Whole studies to take away: for other programs, for another machine, and as a report."""

import os
from collections.abc import Iterator
from typing import Annotated, BinaryIO

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from search.exporting.asked import Leaving
from search.exporting.bundle_format import SUFFIX
from search.service.callers.slots import HeldResponse
from search.service.edge.access import Reader, TheService
from search.service.facts.written import Form
from search.service.lookups import attachment
from search.service.state import TooManyError

router = APIRouter(tags=["exports"])

PIECE_BYTES = 1 << 18
BINARY = "application/octet-stream"
MANY = "too many exports are being made or taken away; wait for one to end"
KINDS = {
    "jsonl": "application/jsonl",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
    "bundle": BINARY,
}


@router.get(
    "/studies/{study_id}/export",
    response_class=StreamingResponse,
    responses={200: {"content": {kind: {} for kind in KINDS.values()}}},
)
def export(
    study_id: str,
    service: TheService,
    caller: Reader,
    form: Annotated[
        Form,
        Query(
            alias="format",
            description="A trial per line or row, or the whole study in one file that "
            "`cclsearch import` takes.",
        ),
    ] = "jsonl",
    traces: Annotated[bool, Query(description="Whether a bundle holds traces.")] = True,
    metrics_only: Annotated[
        bool, Query(description="No files, policies or conversations.")
    ] = False,
) -> Response:
    """A study as one file, as `cclsearch export` writes it."""
    row = service.study(study_id)
    leaving = Leaving(traces=not traces, all_but_metrics=metrics_only)
    suffix = SUFFIX if form == "bundle" else f".{form}"
    headers = {"content-disposition": attachment(f"{row.id}{suffix}")}
    if not service.exports.take(caller.name):
        raise TooManyError(MANY)
    try:
        file = service.writing.exported(service.store, row, form, leaving)
        headers["content-length"] = str(os.fstat(file.fileno()).st_size)
    except BaseException:
        service.exports.give_back(caller.name)
        raise
    return HeldResponse(
        _pieces(file), service.exports, caller.name, media_type=KINDS[form], headers=headers
    )


@router.get(
    "/studies/{study_id}/report",
    response_class=Response,
    responses={200: {"content": {"text/html": {}}}},
)
def report(study_id: str, service: TheService, _caller: Reader) -> Response:
    """A study as one HTML page that needs nothing beside it, as `cclsearch report` writes it."""
    row = service.study(study_id)
    text = service.writing.reported(service.store, row)
    headers = {"content-disposition": attachment(f"{row.id}.html")}
    return Response(
        text.encode("utf-8", "replace"), media_type="text/html; charset=utf-8", headers=headers
    )


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while piece := file.read(PIECE_BYTES):
            yield piece
