"""Files of trials: logs, traces, job files, by their own names, whole or in part."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Header, HTTPException, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from records.errors import shown
from records.trial import Artifact, Trial
from search.service.access import Reader, TheService
from search.service.state import MissingError, Service

router = APIRouter(tags=["files"])

PIECE_BYTES = 1 << 18
BINARY = "application/octet-stream"
ONE_RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})")


class File(BaseModel):
    """A file that was kept for a trial."""

    name: str
    size_bytes: int
    sha256: str
    url: str


@router.get("/studies/{study_id}/trials/{ordinal}/files")
def files(study_id: str, ordinal: int, service: TheService, _caller: Reader) -> list[File]:
    """Files of a trial."""
    trial = trial_of(service, study_id, ordinal)
    base = f"/api/v1/studies/{study_id}/trials/{ordinal}/files"
    return [
        File(
            name=artifact.name,
            size_bytes=artifact.size_bytes,
            sha256=artifact.digest,
            url=f"{base}/{quote(artifact.name)}",
        )
        for artifact in trial.outcome.artifacts
    ]


@router.get(
    "/studies/{study_id}/trials/{ordinal}/files/{name:path}",
    response_class=StreamingResponse,
    responses={200: {"content": {BINARY: {}}}, 206: {"content": {BINARY: {}}}, 416: {}},
)
def file(
    study_id: str,
    ordinal: int,
    name: str,
    service: TheService,
    _caller: Reader,
    range_: Annotated[str | None, Header(alias="range", max_length=100)] = None,
) -> Response:
    """One file of a trial; a header `Range: bytes=A-B` asks for a part of it.

    It is always a download: a browser never runs what a job has written.
    """
    trial = trial_of(service, study_id, ordinal)
    artifact = next((a for a in trial.outcome.artifacts if a.name == name), None)
    if artifact is None:
        raise MissingError(f"trial {ordinal} of study {study_id} has no file {shown(name)}")
    part = _part(range_, artifact.size_bytes)
    plain = name.rpartition("/")[2]
    headers = {
        "accept-ranges": "bytes",
        "content-length": str(part.end - part.start),
        "content-disposition": f"attachment; filename*=UTF-8''{quote(plain, safe='')}",
        "etag": f'"{artifact.digest}"',
    }
    if part.is_whole:
        return StreamingResponse(
            _pieces(service, artifact, part), media_type=BINARY, headers=headers
        )
    headers["content-range"] = f"bytes {part.start}-{part.end - 1}/{artifact.size_bytes}"
    return StreamingResponse(
        _pieces(service, artifact, part), status_code=206, media_type=BINARY, headers=headers
    )


def trial_of(service: Service, study_id: str, ordinal: int) -> Trial:
    """A trial that ended; raises `MissingError`."""
    service.study(study_id)
    trial = service.records.trial(study_id, ordinal)
    if trial is None:
        raise MissingError(f"study {study_id} has no trial {ordinal}")
    return trial


@dataclass(frozen=True, slots=True)
class _Part:
    start: int
    end: int
    is_whole: bool


def _part(asked: str | None, size: int) -> _Part:
    """The bytes asked for; all of them for a range that is not understood, as HTTP has it."""
    match = None if asked is None else ONE_RANGE.fullmatch(asked.strip())
    if match is None or match.groups() == ("", ""):
        return _Part(0, size, is_whole=True)
    first, last = match.groups()
    if first:
        start, end = int(first), min(size, int(last) + 1 if last else size)
    else:
        start, end = max(0, size - int(last)), size
    if start >= end:
        raise HTTPException(
            416, "that part is not in the file", headers={"Content-Range": f"bytes */{size}"}
        )
    return _Part(start, end, is_whole=False)


def _pieces(service: Service, artifact: Artifact, part: _Part) -> Iterator[bytes]:
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
