"""Signing in with a token, and out again."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from search.service.callers.rates import address_of
from search.service.callers.roles import known_as
from search.service.edge.access import TheService, local_place, signed_in, signed_out
from search.service.pages.forms import form_of
from search.service.pages.rendering import page

router = APIRouter(include_in_schema=False)

WRONG = "That token is not known here. Copy it again, whole, or ask for a new one."
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
    token = known_as(fields.get("token", ("",))[0].strip(), service.tokens)
    if token is not None:
        return signed_in(service, token, place)
    allowed = service.wrong_tokens.allow(address_of(request.scope))
    status, problem = (401, WRONG) if allowed else (429, TOO_MANY)
    return page(request, "login.html", status=status, place=place, problem=problem)


@router.post("/logout")
def sign_out(service: TheService) -> Response:
    """Forget the browser."""
    return signed_out(service)
