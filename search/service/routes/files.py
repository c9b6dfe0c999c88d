"""Files of trials: logs, traces, job files, by their own names, whole or in part."""

import re
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Path, Response
from fastapi.responses import StreamingResponse

from search.service.answers import File, Page
from search.service.callers.slots import HeldResponse
from search.service.edge.access import Reader, TheService
from search.service.lookups import artifact_of, attachment, bytes_between, file_address, trial_of
from search.service.routes.studies import Limit, Offset
from search.service.state import TooManyError

router = APIRouter(tags=["files"])

Ordinal = Annotated[int, Path(ge=0, le=10**9, description="Number of the trial in its study.")]
BINARY = "application/octet-stream"
ONE_RANGE = re.compile(r"bytes=([0-9]{0,15})-([0-9]{0,15})")


@router.get("/studies/{study_id}/trials/{ordinal}/files")
def files(
    study_id: str,
    ordinal: Ordinal,
    service: TheService,
    _caller: Reader,
    limit: Limit = 500,
    offset: Offset = 0,
) -> Page[File]:
    """Files of a trial."""
    artifacts = trial_of(service, study_id, ordinal).outcome.artifacts
    return Page(
        items=[
            File(
                name=artifact.name,
                size_bytes=artifact.size_bytes,
                sha256=artifact.digest,
                url=file_address(study_id, ordinal, artifact),
            )
            for artifact in artifacts[offset : offset + limit]
        ],
        total=len(artifacts),
        offset=offset,
    )


@router.get(
    "/studies/{study_id}/trials/{ordinal}/files/{name:path}",
    response_class=StreamingResponse,
    responses={
        200: {"content": {BINARY: {}}},
        206: {"content": {BINARY: {}}, "description": "The part that was asked for."},
        304: {"description": "The reader has it already."},
    },
)
def file(
    study_id: str,
    ordinal: Ordinal,
    name: str,
    service: TheService,
    caller: Reader,
    range_: Annotated[str | None, Header(alias="range", max_length=100)] = None,
    if_range: Annotated[str | None, Header(max_length=200)] = None,
    if_none_match: Annotated[str | None, Header(max_length=1000)] = None,
) -> Response:
    """One file of a trial; a header `Range: bytes=A-B` asks for a part of it.

    It is always a download: a browser never runs what a job has written.
    """
    artifact = artifact_of(service, study_id, ordinal, name)
    etag = f'"{artifact.digest}"'
    headers = {
        "accept-ranges": "bytes",
        "cache-control": "private, no-cache",
        "content-disposition": attachment(name.rpartition("/")[2]),
        "etag": etag,
    }
    if if_none_match is not None and etag in if_none_match:
        return Response(status_code=304, headers=headers)
    part = part_of(range_ if if_range in {None, etag} else None, artifact.size_bytes)
    headers["content-length"] = str(part.end - part.start)
    if not part.is_whole:
        headers["content-range"] = f"bytes {part.start}-{part.end - 1}/{artifact.size_bytes}"
    pieces = bytes_between(artifact, service.records, part.start, part.end)
    if not service.downloads.take(caller.name):
        raise TooManyError("too many files are being taken away; wait for one to end")
    return HeldResponse(
        pieces,
        service.downloads,
        caller.name,
        status_code=200 if part.is_whole else 206,
        media_type=BINARY,
        headers=headers,
    )


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a file, from `start` up to and without `end`."""

    start: int
    end: int
    is_whole: bool


def part_of(asked: str | None, size: int) -> Part:
    """The bytes that a header asks for; all of them where it makes no sense, as HTTP has it.

    Raises `HTTPException` for a part beyond the end.
    """
    whole = Part(0, size, is_whole=True)
    match = None if asked is None else ONE_RANGE.fullmatch(asked.strip())
    if match is None or match.groups() == ("", ""):
        return whole
    first, last = match.groups()
    if first and last and int(last) < int(first):
        return whole
    if first:
        start, end = int(first), min(size, int(last) + 1 if last else size)
    else:
        start, end = max(0, size - int(last)), size
    if start >= end:
        raise HTTPException(
            416, "that part is not in the file", headers={"Content-Range": f"bytes */{size}"}
        )
    return Part(start, end, is_whole=False)
