"""The pages about no single study: leaderboard, sign-in and health."""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from search.doctor import api_key, store_folder
from search.leaderboard.view import RULE, about_sections, group_section
from search.service.access import Reader, TheService, begin_session, end_session, local_place
from search.service.api.health import service_status
from search.service.api.studies import Offset
from search.service.auth import address_of, find_token
from search.service.pages.base import form_of, page

router = APIRouter(include_in_schema=False)

ON_A_PAGE = 20
MOST_COLUMNS = 3
"""Of metrics in a group; the page that `cclsearch leaderboard -o` writes has all."""


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
    kept = {name: value for name, value in (("by", by), ("workload", workload)) if value}
    return page(
        request,
        "leaderboard.html",
        sections=[
            group_section(offset + place, group, board.columns, "/studies/", MOST_COLUMNS)
            for place, group in enumerate(board.groups[offset : offset + ON_A_PAGE])
        ],
        about=[*about_sections(board)],
        total=len(board.groups),
        offset=offset,
        limit=ON_A_PAGE,
        by=by,
        workload=workload,
        metrics=[column.name for column in board.columns],
        rule=RULE,
        address=f"/leaderboard?{urlencode(kept)}&" if kept else "/leaderboard?",
    )


WRONG = "That token is not known here. Copy the whole token again, or ask for a new one."
TOO_MANY = "Too many wrong tokens came from your address. Wait a minute, then try again."

Place = Annotated[str, Query(alias="next", max_length=2000)]


@router.get("/login")
def login(request: Request, place: Place = "/", failed: bool = False) -> Response:
    """The page on which a token is entered."""
    return page(request, "login.html", place=local_place(place), problem=WRONG if failed else None)


@router.post("/login")
async def sign_in(request: Request, service: TheService) -> Response:
    """Check the token that was entered, and go where its holder wanted to go."""
    fields = await form_of(request)
    place = local_place(fields.get("next", ("/",))[0])
    token = find_token(fields.get("token", ("",))[0].strip(), service.tokens)
    if token is not None:
        return begin_session(service, token, place)
    allowed = service.wrong_tokens.allow(address_of(request.scope))
    status, problem = (401, WRONG) if allowed else (429, TOO_MANY)
    return page(request, "login.html", status=status, place=place, problem=problem)


@router.post("/logout")
def sign_out(service: TheService) -> Response:
    """Forget the browser."""
    return end_session(service)


SHOWN = 50


@router.get("/health")
def health_page(request: Request, service: TheService, _caller: Reader) -> Response:
    """Queue, devices, disk, memory, versions; and what is wrong."""
    found = service_status(service)
    under_way = () if found.queued is None else service.table.under_way()
    return page(
        request,
        "health.html",
        found=found,
        under_way=under_way[:SHOWN],
        more=max(0, len(under_way) - SHOWN),
        checks=(store_folder(service.store), api_key()),
    )
