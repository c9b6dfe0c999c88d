"""Routes of studies: submit, cancel, resume, follow, and read them and their charts."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from functools import partial
from hashlib import sha256
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from records.codec import to_json
from records.store.queries import StudyColumn, StudyQuery
from records.store.rows import TAG_CHARS, StudyRow
from records.store.store import Store
from search.loop.running import most_steps, running_launches
from search.loop.study_result import best_result, final_result, leader_of
from search.report.data import undecided_words
from search.report.explored import StudyFront, StudyHistory, StudyKnobs
from search.service.access import HeldResponse, Reader, Submitter, TheService
from search.service.events import stream_events
from search.service.models import (
    Environment,
    LaunchProgress,
    Page,
    QueuedStudy,
    Remaining,
    StudyFull,
    StudyLabels,
    StudyProgress,
    StudyShort,
    disturbance_of,
    result_of,
)
from search.service.queue import State, Submitted
from search.service.service import LabelChanges, NewStudy, Service, status_from
from search.settings import scrubber
from search.views.console import plain
from search.views.study import launch_words, left_basis, left_words

router = APIRouter(tags=["queue"])

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        description="The same key with the same request makes one study, however often it is sent.",
    ),
]


TrialNumber = Annotated[int, Field(ge=0, le=1_000_000_000)]


class Race(BaseModel):
    """Which two trials race."""

    model_config = ConfigDict(extra="forbid")

    trials: tuple[TrialNumber, TrialNumber]


class MoreTrials(BaseModel):
    """How a study goes on."""

    model_config = ConfigDict(extra="forbid")

    more_trials: Annotated[int, Field(ge=1, le=1_000_000)] | None = None


@router.get("/environments")
def environments(service: TheService, _caller: Reader) -> list[Environment]:
    """Environments that studies may be submitted for."""
    offered = sorted(service.config.environment.items())
    return [Environment(name=name, **asdict(one)) for name, one in offered]


@router.post("/studies", status_code=201)
def create(
    asked: NewStudy,
    service: TheService,
    caller: Submitter,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> QueuedStudy:
    """Submit a study; it is searched as soon as its environment is free."""
    digest = sha256(asked.model_dump_json().encode()).hexdigest()
    key = None if idempotency_key is None else (idempotency_key, digest)
    study_id = service.submit(asked, caller, key)
    response.headers["location"] = f"/api/v1/studies/{study_id}"
    return QueuedStudy(id=study_id, status=service.status(service.study(study_id)))


@router.post("/studies/{study_id}/cancel", status_code=202)
def cancel(study_id: str, service: TheService, caller: Submitter) -> QueuedStudy:
    """End a study; what it measured stays, and it can be resumed."""
    return QueuedStudy(id=study_id, status=service.cancel(study_id, caller).state.value)


@router.post("/studies/{study_id}/resume", status_code=202)
def resume(
    study_id: str, service: TheService, caller: Submitter, how: MoreTrials | None = None
) -> QueuedStudy:
    """Go on with a study that ended, with more trials if they are given."""
    more = None if how is None else how.more_trials
    return QueuedStudy(id=study_id, status=service.resume(study_id, more, caller).state.value)


@router.post("/studies/{study_id}/race", status_code=201)
def race(
    study_id: str, asked: Race, service: TheService, caller: Submitter, response: Response
) -> QueuedStudy:
    """Submit a new study that launches two trials of this one again, interleaved."""
    new_id = service.race(study_id, asked.trials, caller)
    response.headers["location"] = f"/api/v1/studies/{new_id}"
    return QueuedStudy(id=new_id, status=service.status(service.study(new_id)))


@router.post("/studies/{study_id}/labels")
def label(
    study_id: str, changes: LabelChanges, service: TheService, caller: Submitter
) -> StudyLabels:
    """Change the tags, the notes or the archive mark of a study; lists leave out archived ones."""
    found = service.label(study_id, changes, caller)
    return StudyLabels(tags=[*found.tags], notes=found.notes, archived=found.archived)


progress_router = APIRouter(tags=["progress"])

OFFSET = re.compile(r"[0-9]{1,15}")


@progress_router.get(
    "/studies/{study_id}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
def events(
    study_id: str,
    service: TheService,
    caller: Reader,
    since: Annotated[
        int,
        Query(
            ge=-(1 << 20),
            le=1 << 50,
            description="Byte offset to begin at; a negative one is counted from the end.",
        ),
    ] = 0,
    last_event_id: Annotated[str | None, Header(max_length=20)] = None,
) -> StreamingResponse:
    """Follow a study: every event so far, then each as it happens, until the study ends.

    The names and fields are those of `cclsearch run --json`; `noise` is what else a search printed.
    A browser that comes back sends the id of the last event that it had, and goes on there. The
    event `end` says that no more will come. While something runs, the event `progress` says every
    second how far it is, as `/progress` does; it has no id and is not sent again.
    """
    service.study(study_id)
    start = int(last_event_id) if last_event_id and OFFSET.fullmatch(last_event_id) else since

    async def stream() -> AsyncIterator[str]:
        path, over = service.events(study_id), partial(service.is_over, study_id)
        with service.feeds.follow(path, over, partial(_progress_text, study_id, service)) as feed:
            async for text in stream_events(feed, start):
                yield text

    service.streams.take(caller.name)
    response = HeldResponse(stream(), media_type="text/event-stream")
    return response.holding(service.streams, caller.name)


@progress_router.get("/studies/{study_id}/progress")
def progress(study_id: str, service: TheService, _caller: Reader) -> StudyProgress:
    """The launches that run now, the end of their logs, and how long the search still takes."""
    return study_progress(service.study(study_id), service)


def study_progress(row: StudyRow, service: Service) -> StudyProgress:
    """Return what runs of a study now; nothing where nothing searches it."""
    if service.status(row) not in {State.RUNNING, State.CANCELLING}:
        return StudyProgress(launches=[], left=None)
    records, study = service.records, row.study
    launches = running_launches(records.workdir(row.id), scrubber().text)
    pending = [intent.ordinal for intent in records.pending(row.id)]
    alone = pending[0] if len(pending) == len(launches) == 1 else None
    left = service.time_left(row, records)
    return StudyProgress(
        launches=[
            LaunchProgress(
                trial=alone if each.ordinal is None else each.ordinal,
                phase=each.phase,
                step=each.step,
                most_steps=most_steps(study),
                elapsed_s=each.elapsed_s,
                words=launch_words(each, study),
                log_name=each.log_name,
                log=plain("\n".join(each.log)),
            )
            for each in launches
        ],
        left=None
        if left is None
        else Remaining(
            trials=left.trials,
            most_repeats=left.most_repeats,
            launch_s=left.launch_s,
            launches=left.launch_count,
            least_s=left.least_s,
            most_s=left.most_s,
            words=left_words(left),
            basis=left_basis(left),
        ),
    )


def _progress_text(study_id: str, service: Service) -> str:
    return study_progress(service.study(study_id), service).model_dump_json()


def study_short(row: StudyRow, service: Service) -> StudyShort:
    """Return a study as it is in a list, computed again where it has changed."""
    submitted = service.table.find(row.id)
    status = service.status(row)
    version = service.records.stamp(row.id), submitted, status
    return service.shorts.get(row.id, version, lambda: _short(row, submitted, status, service))


def study_full(row: StudyRow, service: Service) -> StudyFull:
    """A study with what was asked and what it found."""
    records, finding = service.records, final_result(row)
    pending: list[dict[str, JsonValue]] = [
        {
            "ordinal": intent.ordinal,
            "author": intent.policy.author,
            "rationale": intent.policy.rationale,
            "policy": intent.policy.digest,
            "started_at": intent.started_at,
        }
        for intent in records.pending(row.id)
    ]
    return StudyFull(
        **study_short(row, service).model_dump(),
        study=json.loads(to_json(row.study)),
        finding=None if finding is None else json.loads(to_json(finding)),
        launches=records.counts(row.id).launches,
        failures={kind.value: count for kind, count in records.failures(row.id).items()},
        pending=pending,
        disturbed=disturbance_of(service.disturbed(row, records)),
        undecided=None if finding is None else undecided_words(finding),
    )


def study_page(service: Service, query: StudyQuery) -> Page[StudyShort]:
    """Return a page of the studies.

    The status of one that was submitted here, or whose process is gone, is not what is recorded.
    """
    if query.status is not None:
        among, except_for = _standing(query.status, service)
        query = replace(query, among=among, except_for=except_for)
    rows, total = service.records.study_page(query)
    return Page(items=[study_short(row, service) for row in rows], total=total, offset=query.offset)


def _standing(status: str, service: Service) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Studies that have this status, of all whose record alone does not tell, and all of those."""
    records, states = service.records, service.table.states()
    begun = dict.fromkeys(records.begun_studies(), "interrupted")
    begun |= {study_id: "running" for study_id in begun if records.holder(study_id) is not None}
    recorded = records.statuses((*states, *begun)) | begun
    told = {one: status_from(states.get(one), word) for one, word in recorded.items()}
    return tuple(one for one, its in told.items() if its == status), tuple(told)


def _short(row: StudyRow, submitted: Submitted | None, status: str, service: Service) -> StudyShort:
    records, study = service.records, row.study
    counts, best = records.counts(row.id), leader_of(row, records)
    return StudyShort(
        id=row.id,
        name=study.name,
        status=status,
        strategy=row.strategy,
        objective=study.objective.expression,
        more_objectives=[more.expression for more in study.more_objectives],
        limits=list(study.limits),
        created_at=row.created_at,
        started_at=_started_at(row, records),
        trials=counts.trials,
        failed=counts.failed,
        most_trials=study.budget.trials,
        best_trial=best.ordinal if best else None,
        best_config=dict(best.config.values) if best and best.config else None,
        best=result_of(best, best_result(row, best, records)) if best else None,
        environment=submitted.environment if submitted else None,
        submitted_by=submitted.submitted_by if submitted else None,
        message=submitted.message if submitted else None,
        imported_from=study.origin.kind if study.origin else None,
        tags=[*row.labels.tags],
        notes=row.labels.notes,
        archived=row.labels.archived,
    )


def _started_at(row: StudyRow, records: Store) -> str | None:
    if row.study.origin is None:
        return row.created_at
    first = records.trial(row.id, 0)
    return None if first is None else first.started_at or None


studies_router = APIRouter(tags=["studies"])

Limit = Annotated[int, Query(ge=1, le=500, description="Most items of the page.")]
Offset = Annotated[int, Query(ge=0, le=10**9, description="Items before the page.")]
Status = Literal[
    "running", "queued", "finished", "failed", "cancelling", "cancelled", "interrupted"
]
Metric = Annotated[str | None, Query(min_length=1, max_length=100)]


@studies_router.get("/studies")
def studies(
    service: TheService,
    _caller: Reader,
    limit: Limit = 50,
    offset: Offset = 0,
    text: Annotated[
        str | None, Query(max_length=200, description="In the id, the name or the objective.")
    ] = None,
    status: Status | None = None,
    tag: Annotated[str | None, Query(max_length=TAG_CHARS)] = None,
    archived: Annotated[bool, Query(description="Those that are archived, instead.")] = False,
    sort: StudyColumn = "created_at",
    order: Literal["asc", "desc"] = "desc",
) -> Page[StudyShort]:
    """Studies, newest first, without archived ones."""
    query = StudyQuery(
        text=text,
        status=status,
        tag=tag,
        archived=archived,
        sort=sort,
        descending=order == "desc",
        limit=limit,
        offset=offset,
    )
    return study_page(service, query)


@studies_router.get("/studies/{study_id}")
def study(study_id: str, service: TheService, _caller: Reader) -> StudyFull:
    """One study with what was asked and what it found."""
    return study_full(service.study(study_id), service)


@studies_router.get("/studies/{study_id}/history")
def history(study_id: str, service: TheService, _caller: Reader) -> StudyHistory:
    """What every trial reached, in order; of many trials only those that keep the shape of all."""
    return service.explored.history(service.study(study_id), service.records)


@studies_router.get("/studies/{study_id}/front")
def front(
    study_id: str, service: TheService, _caller: Reader, against: Metric = None
) -> StudyFront:
    """Trials by several numbers, and which of them no other beats.

    They are the objectives, or, of a study with one, the objective and what trials take of the
    metric `against`.
    """
    return service.explored.front(service.study(study_id), service.records, against)


@studies_router.get("/studies/{study_id}/knobs")
def knobs(study_id: str, service: TheService, _caller: Reader) -> StudyKnobs:
    """Configurations as lines over parallel axes, one for each knob of which several were tried."""
    return service.explored.knobs(service.study(study_id), service.records)
