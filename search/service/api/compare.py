"""/compare, /leaderboard, /exports.

Two trials or two studies against each other.

The best of all studies, ranked within the same work.

What metrics there are and what they mean.

Whole studies to take away: for other programs, for another machine, and as a report.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, BinaryIO

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from evaluator.metrics.registry import loaded_metrics
from search.compare.compare import Comparisons
from search.compare.sides import TrialSide
from search.compare.view import comparisons_facts
from search.leaderboard.ranking import Leaderboard
from search.leaderboard.view import group_facts, legend_facts
from search.service.access import Reader, TheService
from search.service.api.studies import Limit, Offset
from search.service.api.trials import SIDE, attachment, side_of
from search.service.data import ComparedStudy, Form, compared_studies, compared_trials
from search.service.limits import HeldResponse
from search.service.models import (
    Board,
    Comparison,
    MetricDefinition,
    Page,
    StudiesCompared,
    StudySide,
    TrialsCompared,
)
from search.service.service import MissingError, Service, TooManyError
from search.transfer.bundle import SUFFIX
from search.transfer.tables import Omissions
from search.views.study import definition_facts

router = APIRouter(tags=["comparisons"])

Side = Annotated[
    str,
    Query(
        pattern=f"^{SIDE}$",
        description="STUDY:N, or STUDY for its best trial.",
    ),
]
OneStudy = Annotated[str, Query(min_length=1, max_length=100, description="The id of a study.")]


@router.get("/compare/trials")
def compare_trials(service: TheService, _caller: Reader, a: Side, b: Side) -> TrialsCompared:
    """Whether trial B is faster than trial A, and how sure that is: as `cclsearch compare`."""
    found = compared_trials(_side(a, service), _side(b, service))
    return TrialsCompared(comparison=_comparison(found.found), settings=[*found.settings])


@router.get("/compare/studies")
def compare_studies(
    service: TheService, _caller: Reader, a: OneStudy, b: OneStudy
) -> StudiesCompared:
    """Whether the best of study B is faster than that of study A, and how both searches went."""
    rows = service.study(a), service.study(b)
    found = compared_studies(*rows, service.records, service.explored.history)
    return StudiesCompared(
        comparison=None if found.found is None else _comparison(found.found),
        why=found.why,
        a=_study(rows[0].id, found.a),
        b=_study(rows[1].id, found.b),
        settings=[*found.settings],
    )


def _side(text: str, service: Service) -> TrialSide:
    row, side = side_of(service, text)
    if side is None:
        raise MissingError(f"study {row.id} has no trial that may lead")
    return side


def _comparison(found: Comparisons) -> Comparison:
    return Comparison.model_validate(comparisons_facts(found))


def _study(study_id: str, side: ComparedStudy) -> StudySide:
    return StudySide(
        study=study_id,
        best=side.best,
        value=side.value,
        unit=side.unit,
        caveats=[*side.caveats],
        history=side.history,
    )


leaderboard_router = APIRouter(tags=["leaderboard"])

Name = Annotated[str, Query(min_length=1, max_length=200)]


@leaderboard_router.get("/leaderboard")
def leaderboard(
    service: TheService,
    _caller: Reader,
    by: Annotated[
        str | None, Query(max_length=200, description="The metric to rank by; the usual without.")
    ] = None,
    workload: Annotated[str | None, Query(max_length=200, description="Only this work.")] = None,
    metric: Annotated[
        list[Name] | None, Query(max_length=50, description="Only these metrics as columns.")
    ] = None,
    top: Annotated[int, Query(ge=1, le=500, description="Most submissions of a group.")] = 100,
    limit: Limit = 50,
    offset: Offset = 0,
) -> Board:
    """The best of each study, in groups that did the same work, as `cclsearch leaderboard`."""
    board = service.boards.board(service.records, by=by, workload=workload, metrics=metric or ())
    return _page(board, limit, offset, top)


def _page(board: Leaderboard, limit: int, offset: int, top: int) -> Board:
    items = [
        {
            **group_facts(replace(group, ranked=group.ranked[:top]), board),
            "total": len(group.ranked),
        }
        for group in board.groups[offset : offset + limit]
    ]
    facts = {"items": items, "total": len(board.groups), "offset": offset, **legend_facts(board)}
    return Board.model_validate(facts)


definitions_router = APIRouter(tags=["metrics"])


@definitions_router.get("/metric-definitions")
def metric_definitions(
    _caller: Reader, limit: Limit = 500, offset: Offset = 0
) -> Page[MetricDefinition]:
    """Every metric, by rising name: its unit, which way is better, and how it is computed."""
    known, _ = loaded_metrics()
    facts = [definition_facts(each) for each in known.values()]
    items = [MetricDefinition.model_validate(each) for each in facts[offset : offset + limit]]
    return Page(items=items, total=len(facts), offset=offset)


exports_router = APIRouter(tags=["exports"])

PIECE_BYTES = 1 << 18
BINARY = "application/octet-stream"
MANY = "too many exports are being made or taken away; wait for one to end"
KINDS = {
    "jsonl": "application/jsonl",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
    "bundle": BINARY,
}


@exports_router.get(
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
    leaving = Omissions(traces=not traces, all_but_metrics=metrics_only)
    suffix = SUFFIX if form == "bundle" else f".{form}"
    headers = {"content-disposition": attachment(f"{row.id}{suffix}")}
    if not service.exports.take(caller.name):
        raise TooManyError(MANY)
    try:
        file = service.writing.exported(service.store, row, form, leaving)
        headers["content-length"] = str(os.fstat(file.fileno()).st_size)
    except BaseException:
        service.exports.release(caller.name)
        raise
    return HeldResponse(
        _pieces(file), service.exports, caller.name, media_type=KINDS[form], headers=headers
    )


@exports_router.get(
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
