"""Files of trials: logs, traces, job files, by their own names, whole or in part."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Header, HTTPException, Path, Response
from fastapi.responses import StreamingResponse

from records.errors import shown
from records.trial import Artifact, Trial
from search.kept.files import absence
from search.service.answers import File, Page
from search.service.edge.access import Reader, TheService
from search.service.routes.studies import Limit, Offset
from search.service.state import MissingError, Service

router = APIRouter(tags=["files"])

PIECE_BYTES = 1 << 18
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
    base = f"/api/v1/studies/{quote(study_id)}/trials/{ordinal}/files"
    return Page(
        items=[
            File(
                name=artifact.name,
                size_bytes=artifact.size_bytes,
                sha256=artifact.digest,
                url=f"{base}/{quote(artifact.name)}",
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
    _caller: Reader,
    range_: Annotated[str | None, Header(alias="range", max_length=100)] = None,
    if_range: Annotated[str | None, Header(max_length=200)] = None,
    if_none_match: Annotated[str | None, Header(max_length=1000)] = None,
) -> Response:
    """One file of a trial; a header `Range: bytes=A-B` asks for a part of it.

    It is always a download: a browser never runs what a job has written.
    """
    artifact = _artifact(study_id, ordinal, name, service)
    etag = f'"{artifact.digest}"'
    plain = name.rpartition("/")[2]
    headers = {
        "accept-ranges": "bytes",
        "cache-control": "private, no-cache",
        "content-disposition": f"attachment; filename*=UTF-8''{quote(plain, safe='')}",
        "etag": etag,
    }
    if if_none_match is not None and etag in if_none_match:
        return Response(status_code=304, headers=headers)
    part = part_of(range_ if if_range in {None, etag} else None, artifact.size_bytes)
    headers["content-length"] = str(part.end - part.start)
    if not part.is_whole:
        headers["content-range"] = f"bytes {part.start}-{part.end - 1}/{artifact.size_bytes}"
    return StreamingResponse(
        _pieces(service, artifact, part),
        status_code=200 if part.is_whole else 206,
        media_type=BINARY,
        headers=headers,
    )


def trial_of(service: Service, study_id: str, ordinal: int) -> Trial:
    """A trial that ended; raises `MissingError`."""
    service.study(study_id)
    trial = service.records.trial(study_id, ordinal)
    if trial is None:
        raise MissingError(f"study {study_id} has no trial {ordinal}")
    return trial


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


def _artifact(study_id: str, ordinal: int, name: str, service: Service) -> Artifact:
    """A kept file of a trial that is there; names are compared, never looked up on the disk."""
    trial = trial_of(service, study_id, ordinal)
    artifact = next((a for a in trial.outcome.artifacts if a.name == name), None)
    if artifact is None:
        raise MissingError(f"trial {ordinal} of study {study_id} has no file {shown(name)}")
    why = absence(study_id, artifact.digest, service.records)
    if why is not None:
        raise MissingError(f"file {shown(name)} of trial {ordinal} of study {study_id} {why}")
    return artifact


def _pieces(service: Service, artifact: Artifact, part: Part) -> Iterator[bytes]:
    """The part in pieces; what comes before it is unpacked and dropped."""
    with service.records.artifacts.open(artifact.digest) as content:
        at = 0
        while at < part.end:
            piece = content.read(min(PIECE_BYTES, part.end - at))
            if not piece:
                return
            wanted = piece[max(0, part.start - at) :]
            at += len(piece)
            if wanted:
                yield wanted
