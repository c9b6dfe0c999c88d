"""The leaderboard as a page: studies ranked within the same work."""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from evaluator.metrics.published import PREFIX
from search.leaderboard.ranking import Column, Group, Ranked
from search.leaderboard.words import (
    RULE,
    columns_in,
    interval_words,
    launches_words,
    legend,
    mark_names,
    ranked_words,
    value_words,
)
from search.service.edge.access import Reader, TheService
from search.service.pages.rendering import page
from search.service.routes.studies import Offset

router = APIRouter(include_in_schema=False)

ON_A_PAGE = 20
FEW_COLUMNS = 2


@router.get("/leaderboard")
def leaderboard_page(
    request: Request,
    service: TheService,
    _caller: Reader,
    by: Annotated[str, Query(max_length=200)] = "",
    workload: Annotated[str, Query(max_length=200)] = "",
    offset: Offset = 0,
) -> Response:
    """The best of each study, in groups that did the same work."""
    board = service.boards.board(service.records, by=by or None, workload=workload or None)
    columns = [column for column in board.columns if not column.name.startswith(PREFIX)]
    kept = {name: value for name, value in (("by", by), ("workload", workload)) if value}
    return page(
        request,
        "leaderboard.html",
        groups=[_group(group, columns) for group in board.groups[offset : offset + ON_A_PAGE]],
        total=len(board.groups),
        offset=offset,
        limit=ON_A_PAGE,
        by=by,
        workload=workload,
        metrics=[column.name for column in board.columns],
        rule=RULE,
        marks=tuple(legend(board).items()),
        notes=board.notes,
        address=f"/leaderboard?{urlencode(kept)}&" if kept else "/leaderboard?",
    )


def _group(group: Group, columns: list[Column]) -> dict[str, object]:
    shown = [each for each in columns_in(group, columns) if each != group.by][:FEW_COLUMNS]
    return {
        "title": group.work.title,
        "words": ranked_words(group),
        "by": None if group.by is None else group.by.heading,
        "columns": [column.heading for column in shown],
        "rows": [_row(each, group, shown) for each in group.ranked],
    }


def _row(each: Ranked, group: Group, shown: list[Column]) -> dict[str, object]:
    submission = each.submission
    reading = None if group.by is None else group.by.of(submission)
    return {
        "rank": each.rank,
        "study": submission.name,
        "name": submission.source,
        "value": value_words(reading),
        "interval": interval_words(reading),
        "launches": launches_words(submission),
        "marks": mark_names(submission),
        "about": [(mark.name, mark.words) for mark in submission.marks],
        "cells": [value_words(column.of(submission)) for column in shown],
        "machine": submission.machine,
        "settings": submission.settings,
    }
