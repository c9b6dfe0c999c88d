"""Routes of trials, their files, metrics and transcripts, and of policies."""

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Header, HTTPException, Path, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from records.codec import to_json
from records.errors import StudyError, shown
from records.llm_exchange import LlmExchange
from records.store.queries import TrialQuery
from records.store.rows import StudyRow
from records.store.store import Store
from records.trial import Artifact, FailureKind, Policy, Trial
from search.compare.sides import TrialSide, trial_side
from search.loop.study_result import leader_of
from search.report.explored import repeat_costs, repeat_spreads, spread_of_trial
from search.service.access import HeldResponse, Reader, TheService
from search.service.api.studies import Limit, Offset
from search.service.data import disturbed_trials
from search.service.models import (
    File,
    Page,
    PolicyFull,
    PolicyShort,
    Transcript,
    TrialFull,
    TrialMetrics,
    TrialShort,
    trial_full,
    trial_short,
)
from search.service.service import MissingError, Service
from search.storage import absence

router = APIRouter(tags=["files"])
trials_router = APIRouter(tags=["trials"])
policies_router = APIRouter(tags=["policies"])

PIECE_BYTES = 1 << 18
PLAIN = re.compile(r"[A-Za-z0-9._-]+")
"""File names that need no quoting in a header."""
SIDE = "([^:]{1,100})(?::([0-9]{1,9}))?"
"""A study, for its best trial, or one of its trials."""
Ordinal = Annotated[int, Path(ge=0, le=10**9, description="Number of the trial in its study.")]
BINARY = "application/octet-stream"
ONE_RANGE = re.compile(r"bytes=([0-9]{0,15})-([0-9]{0,15})")
MOST_TRIALS = 100
"""Ordinals that are listed of a policy."""
SHA256 = "^[0-9a-f]{64}$"
Digest = Annotated[str, Path(pattern=SHA256, description="SHA-256 of the policy's text.")]


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
        206: {"content": {BINARY: {}}, "description": "The requested part."},
        304: {"description": "The client has it already."},
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

    It is always a download: a browser must never run what a job has written.
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
    size = artifact.size_bytes
    part = part_of(range_, size) if if_range in {None, etag} else None
    start, end = part or (0, size)
    headers["content-length"] = str(end - start)
    if part is not None:
        headers["content-range"] = f"bytes {start}-{end - 1}/{size}"
    pieces = bytes_between(artifact, service.records, start, end)
    service.downloads.take(caller.name)
    response = HeldResponse(pieces, 200 if part is None else 206, headers, BINARY)
    return response.holding(service.downloads, caller.name)


class TrialListQuery(BaseModel):
    """Which trials of a study, in which order, and which page of them."""

    sort: Annotated[
        str,
        Field(
            max_length=120,
            pattern=r"^(ordinal|score|author|status|kind|started_at|config\.[^\"]+|metric\..+)$",
            description="ordinal, score, author, status, kind, started_at, config.KNOB or "
            "metric.NAME",
        ),
    ] = "ordinal"
    order: Literal["up", "down"] = "up"
    status: Literal["measured", "failed"] | None = None
    kind: FailureKind | None = None
    author: Annotated[str, Field(max_length=100)] | None = None
    text: Annotated[
        str | None, Field(max_length=200, description="In the configuration or the message.")
    ] = None
    limit: Annotated[int, Field(ge=1, le=500, description="Most items of the page.")] = 100
    offset: Annotated[int, Field(ge=0, le=10**9, description="Items before the page.")] = 0

    def to_store(self, row: StudyRow, records: Store) -> TrialQuery:
        """Return the query to the store; a sort by score uses the results over all launches."""
        return TrialQuery(
            sort=self.sort,
            descending=self.order == "down",
            status=self.status,
            kind=self.kind,
            author=self.author,
            text=self.text,
            limit=self.limit,
            offset=self.offset,
            costs=repeat_costs(row, records) if self.sort == "score" else {},
        )


@trials_router.get("/studies/{study_id}/trials")
def trials(
    study_id: str,
    service: TheService,
    _caller: Reader,
    asked: Annotated[TrialListQuery, Query()],
) -> Page[TrialShort]:
    """Trials of a study; those without the value that they are sorted by come last."""
    row = service.study(study_id)
    found, total = service.records.trial_page(row.id, asked.to_store(row, service.records))
    again = repeat_spreads(row, service.records)
    disturbed = disturbed_trials(found, row, service.records)
    items = [
        trial_short(trial, spread_of_trial(trial, again), disturbed.get(trial.ordinal))
        for trial in found
    ]
    return Page(items=items, total=total, offset=asked.offset)


@trials_router.get("/studies/{study_id}/trials/{ordinal}")
def trial(study_id: str, ordinal: Ordinal, service: TheService, _caller: Reader) -> TrialFull:
    """One trial in full: samples, metrics, launch, files."""
    found = trial_of(service, study_id, ordinal)
    values = service.records.metric_values(study_id, ordinal).get(ordinal, ())
    row = service.study(study_id)
    disturbed = disturbed_trials((found,), row, service.records).get(ordinal)
    reached = spread_of_trial(found, repeat_spreads(row, service.records))
    return trial_full(found, reached, disturbed, values)


@trials_router.get("/studies/{study_id}/metrics")
def metrics(
    study_id: str,
    service: TheService,
    _caller: Reader,
    limit: Limit = 100,
    offset: Offset = 0,
    name: Annotated[list[str] | None, Query(max_length=20)] = None,
) -> Page[TrialMetrics]:
    """The newest values of the metrics of trials, in their order: all, or those of these names."""
    row, records = service.study(study_id), service.records
    items = [
        TrialMetrics(
            ordinal=ordinal,
            metrics=tuple(
                value
                for value in records.metric_values(row.id, ordinal).get(ordinal, ())
                if not name or value.name in name
            ),
        )
        for ordinal in records.ordinals(row.id, limit, offset)
    ]
    return Page(items=items, total=records.counts(row.id).trials, offset=offset)


@policies_router.get("/studies/{study_id}/policies")
def policies(
    study_id: str, service: TheService, _caller: Reader, limit: Limit = 100, offset: Offset = 0
) -> Page[PolicyShort]:
    """Policies that a study tried, in the order of their first trials."""
    row = service.study(study_id)
    found, total = service.records.policy_outlines(row.id, limit, offset)
    trials = _trials(row.id, [each.digest for each in found], service)
    items = [PolicyShort(**asdict(each), trials=trials[each.digest]) for each in found]
    return Page(items=items, total=total, offset=offset)


@policies_router.get("/studies/{study_id}/policies/{digest}")
def policy(
    study_id: str,
    digest: Digest,
    service: TheService,
    _caller: Reader,
    against: Annotated[
        str | None, Query(pattern=SHA256, description="Another policy of the study.")
    ] = None,
) -> PolicyFull:
    """A policy, and what changed against its parent or the one given."""
    row = service.study(study_id)
    found = policy_of(service, row.id, digest)
    before = policy_before(service, row.id, found, against)
    diff = difflib.unified_diff(
        [] if before is None else before.source.splitlines(),
        found.source.splitlines(),
        "before",
        "after",
        lineterm="",
    )
    return PolicyFull(
        digest=digest,
        author=found.author,
        parent=found.parent,
        rationale=found.rationale,
        trials=_trials(row.id, [digest], service)[digest],
        trial_count=service.records.policy_trial_count(row.id, digest),
        source=found.source,
        against=None if before is None else before.digest,
        diff=[*diff],
    )


@policies_router.get("/studies/{study_id}/trials/{ordinal}/transcript")
def transcript(study_id: str, ordinal: Ordinal, service: TheService, _caller: Reader) -> Transcript:
    """The conversation with the model that proposed a trial."""
    exchange = exchange_of(service, study_id, ordinal)
    return Transcript(ordinal=ordinal, exchange=json.loads(to_json(exchange)))


def part_of(asked: str | None, size: int) -> tuple[int, int] | None:
    """Return where the bytes that a Range header asks for begin and end; None for all.

    An invalid one asks for all, as HTTP demands. Raise `HTTPException` for a part beyond the end.
    """
    match = None if asked is None else ONE_RANGE.fullmatch(asked.strip())
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if first and last and int(last) < int(first):
        return None
    if first:
        start, end = int(first), min(size, int(last) + 1 if last else size)
    else:
        start, end = max(0, size - int(last)), size
    if start >= end:
        raise HTTPException(
            416, "that part is not in the file", headers={"Content-Range": f"bytes */{size}"}
        )
    return start, end


def trial_of(service: Service, study_id: str, ordinal: int) -> Trial:
    """Return a trial that ended; raise `MissingError`."""
    service.study(study_id)
    trial = service.records.trial(study_id, ordinal)
    if trial is None:
        raise MissingError(f"study {study_id} has no trial {ordinal}")
    return trial


def artifact_of(service: Service, study_id: str, ordinal: int, name: str) -> Artifact:
    """Return a stored file of a trial; raise `MissingError`.

    Names are compared, never looked up on the disk.
    """
    trial = trial_of(service, study_id, ordinal)
    artifact = next((a for a in trial.outcome.artifacts if a.name == name), None)
    if artifact is None:
        raise MissingError(f"trial {ordinal} of study {study_id} has no file {shown(name)}")
    _require(f"file {shown(name)} of trial {ordinal}", study_id, artifact.digest, service)
    return artifact


def exchange_of(service: Service, study_id: str, ordinal: int) -> LlmExchange:
    """Return the conversation with the model that proposed a trial; raise `MissingError`."""
    digest = trial_of(service, study_id, ordinal).exchange
    if digest is None:
        raise MissingError(f"no model was asked for trial {ordinal} of study {study_id}")
    _require(f"what was asked for trial {ordinal}", study_id, digest, service)
    return service.records.exchange(digest)


def policy_of(service: Service, study_id: str, digest: str) -> Policy:
    """Return a policy that a study tried; raise `MissingError`."""
    service.study(study_id)
    found = service.records.policy(study_id, digest)
    if found is None:
        raise MissingError(f"study {study_id} has no policy {shown(digest[:12])}")
    return found


def policy_before(
    service: Service, study_id: str, found: Policy, against: str | None
) -> Policy | None:
    """Return the policy to compare with: the one given, or the parent; raise `MissingError`."""
    if against:
        return policy_of(service, study_id, against)
    return None if found.parent is None else service.records.policy(study_id, found.parent)


def side_of(service: Service, text: str) -> tuple[StudyRow, TrialSide | None]:
    """Return the trial that `STUDY:N` or `STUDY` names; None where no trial of it may lead.

    Raise `StudyError` for other texts, `MissingError` for what is not recorded.
    """
    match = re.fullmatch(SIDE, text)
    if match is None:
        raise StudyError(f"{shown(text)} names no trial; write STUDY or STUDY:3")
    row, number = service.study(match[1]), match[2]
    if number is not None:
        ordinal = trial_of(service, row.id, int(number)).ordinal
        return row, trial_side(row, ordinal, service.records)
    best = leader_of(row, service.records)
    return row, None if best is None else trial_side(row, best.ordinal, service.records)


def file_address(study_id: str, ordinal: int, artifact: Artifact) -> str:
    """Return the address of a file of a trial."""
    return f"/api/v1/studies/{quote(study_id)}/trials/{ordinal}/files/{quote(artifact.name)}"


def attachment(name: str) -> str:
    """Return the header that makes a browser save a response under any name."""
    if PLAIN.fullmatch(name):
        return f'attachment; filename="{name}"'
    return f"attachment; filename*=UTF-8''{quote(name.encode('utf-8', 'replace'), safe='')}"


def bytes_between(artifact: Artifact, store: Store, start: int, end: int) -> Iterator[bytes]:
    """Yield a part of a stored file; what comes before it is unpacked and dropped."""
    with store.artifacts.open(artifact.digest, artifact.size_bytes) as content:
        at = 0
        while at < end:
            piece = content.read(min(PIECE_BYTES, end - at))
            if not piece:
                return
            wanted = piece[max(0, start - at) :]
            at += len(piece)
            if wanted:
                yield wanted


def _require(what: str, study_id: str, digest: str, service: Service) -> None:
    why = absence(study_id, digest, service.records)
    if why is not None:
        raise MissingError(f"{what} of study {study_id} {why}")


def _trials(study_id: str, digests: Sequence[str], service: Service) -> dict[str, list[int]]:
    """Return the first trials of these policies."""
    found = service.records.policy_results(study_id, digests, MOST_TRIALS)
    return {digest: [each.ordinal for each in results] for digest, results in found.items()}
