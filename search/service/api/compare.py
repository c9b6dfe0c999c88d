"""Routes that compare studies, rank them, define metrics, and export whole studies."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated, BinaryIO

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from evaluator.metrics.registry import loaded_metrics
from records.store.rows import StudyRow
from records.trial import Trial
from search.compare.sides import TrialSide, trial_side
from search.compare.view import comparisons_facts
from search.leaderboard.ranking import Leaderboard
from search.leaderboard.view import group_facts, legend_facts
from search.loop.study_result import leader_of
from search.report.explored import Interval
from search.service.access import HeldResponse, Reader, TheService
from search.service.api.studies import Limit, Offset
from search.service.api.trials import SIDE, Ordinal, attachment, side_of, trial_of
from search.service.auth import Caller
from search.service.data import Form, compare_recorded
from search.service.models import (
    Board,
    Comparison,
    MetricDefinition,
    Page,
    StudiesCompared,
    StudySide,
    TrialsCompared,
    knob_pairs,
)
from search.service.service import MissingError, Service
from search.transfer.export import Omissions, suffix_of
from search.views.format import remarks
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
    one, other = _side(a, service), _side(b, service)
    return TrialsCompared(
        comparison=_comparison(one, other),
        settings=knob_pairs(one.trial.config, other.trial.config),
    )


@router.get("/compare/studies")
def compare_studies(
    service: TheService, _caller: Reader, a: OneStudy, b: OneStudy
) -> StudiesCompared:
    """Whether the best of study B is faster than that of study A, and how both searches went."""
    rows = [service.study(a), service.study(b)]
    best = [leader_of(row, service.records) for row in rows]
    comparison, why = None, None
    if rows[0].id == rows[1].id:
        why = "both sides are one study; give two"
    elif best[0] is None or best[1] is None:
        why = f"study {rows[best.index(None)].id} has no trial that may lead"
    else:
        one, other = best[0].ordinal, best[1].ordinal
        comparison = _comparison(
            trial_side(rows[0], one, service.records), trial_side(rows[1], other, service.records)
        )
    return StudiesCompared(
        comparison=comparison,
        why=why,
        a=_study(rows[0], best[0], service),
        b=_study(rows[1], best[1], service),
        settings=knob_pairs(*(None if each is None else each.config for each in best)),
    )


def _side(text: str, service: Service) -> TrialSide:
    row, side = side_of(service, text)
    if side is None:
        raise MissingError(f"study {row.id} has no trial that may lead")
    return side


def _comparison(a: TrialSide, b: TrialSide) -> Comparison:
    return Comparison.model_validate(comparisons_facts(compare_recorded(a, b)))


def _study(row: StudyRow, best: Trial | None, service: Service) -> StudySide:
    """Return a study as one side; without repeats the value is that of a single launch."""
    history = service.explored.history(row, service.records)
    score = None if best is None else best.score
    once = None if score is None else Interval(centre=score.value, low=None, high=None)
    return StudySide(
        study=row.id,
        best=None if best is None else best.ordinal,
        value=history.best_again or once,
        unit=history.axis.unit if score is None else score.unit,
        caveats=[] if best is None else [*remarks(best)],
        history=history,
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
    return _download(
        f"{row.id}{suffix_of(form)}",
        KINDS[form],
        lambda: service.writing.exported(service.store, row, form, leaving),
        service,
        caller,
    )


@exports_router.get(
    "/studies/{study_id}/trials/{ordinal}/trace",
    response_class=StreamingResponse,
    responses={200: {"content": {BINARY: {}}}},
)
def merged_trace(study_id: str, ordinal: Ordinal, service: TheService, caller: Reader) -> Response:
    """The traces of all ranks of a trial as one, as `cclsearch trace merge` writes it (gzip)."""
    row = service.study(study_id)
    ordinal = trial_of(service, study_id, ordinal).ordinal
    name = f"{row.id}-trial{ordinal}.json.gz"
    return _download(
        name, BINARY, lambda: service.writing.merged(service.store, row, ordinal), service, caller
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


def _download(
    name: str, kind: str, made: Callable[[], BinaryIO], service: Service, caller: Caller
) -> Response:
    """Send a file of this name and media type, while the caller has a slot for it."""
    headers = {"content-disposition": attachment(name)}
    service.exports.take(caller.name)
    try:
        file = made()
        headers["content-length"] = str(os.fstat(file.fileno()).st_size)
    except BaseException:
        service.exports.release(caller.name)
        raise
    response = HeldResponse(_pieces(file), media_type=kind, headers=headers)
    return response.holding(service.exports, caller.name)


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while piece := file.read(PIECE_BYTES):
            yield piece
