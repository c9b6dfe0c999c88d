"""The best of all studies, ranked within the same work."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query

from search.leaderboard.facts import group_facts, legend_facts
from search.leaderboard.ranking import Leaderboard
from search.service.answers_compared import Board
from search.service.edge.access import Reader, TheService
from search.service.routes.studies import Limit, Offset

router = APIRouter(tags=["leaderboard"])

Name = Annotated[str, Query(min_length=1, max_length=200)]


@router.get("/leaderboard")
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
