"""Who makes a request, what they may do, and how they sign in."""

import re
from collections.abc import Awaitable, Callable
from typing import Annotated
from urllib.parse import parse_qsl, quote, urlencode

from fastapi import Depends, HTTPException, Request, Security
from fastapi.responses import RedirectResponse, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import Headers
from starlette.types import Scope

from search.service.callers.roles import Caller, KnownToken, Role, known_as
from search.service.callers.sessions import LIFE_S
from search.service.edge.checks import cookie_in, token_in
from search.service.state import Service

LOGIN = "/login"
NEEDED = (
    "a token is needed: open the link that `cclsearch serve` printed, or send "
    "`Authorization: Bearer TOKEN`"
)
LOCAL = re.compile(r"/(?!/)[!-\[\]-~]*")
"""A place of ours: browsers take `//` and backslashes for other hosts."""
MOST_PLACE_CHARS = 2000
MOST_FIELDS = 200


Shown = Annotated[
    HTTPAuthorizationCredentials | None,
    Security(HTTPBearer(auto_error=False, description="A token of the service.")),
]
"""Only for the description: the guard has looked at the token already."""


def service_of(request: Request) -> Service:
    """The service that a request is for."""
    found: Service = request.app.state.service
    return found


def token_of(headers: Headers, service: Service) -> KnownToken | None:
    """The token that a request shows, in a header or by a cookie; None for none that is known."""
    shown = token_in(headers)
    if shown is not None:
        return known_as(shown, service.tokens)
    cookie = cookie_in(headers, service.config.listen.cookie_name)
    return None if cookie is None else service.sessions.holder(cookie, service.tokens)


def caller_in(request: Request) -> Caller | None:
    """Who makes a request, as the guard found; None without a token that is known."""
    found: Caller | None = request.scope.get("state", {}).get("caller")
    return found


def allows(role: Role) -> Callable[[Request], Awaitable[Caller]]:
    """A check that a caller has at least this role."""

    async def check(request: Request, _shown: Shown = None) -> Caller:
        caller = caller_in(request)
        if caller is None:
            raise HTTPException(401, NEEDED, headers={"WWW-Authenticate": "Bearer"})
        if caller.role < role:
            raise HTTPException(403, too_low(caller, role))
        return caller

    return check


def too_low(caller: Caller, role: Role) -> str:
    """Why a caller may not do what takes this role."""
    return f"{caller.name} has the role {caller.role.word}; this takes the role {role.word}"


async def _service(request: Request) -> Service:
    # Asynchronous, as what follows: a thread for each dependency would take longer than the rest.
    return service_of(request)


TheService = Annotated[Service, Depends(_service)]
Reader = Annotated[Caller, Depends(allows(Role.READ))]
Submitter = Annotated[Caller, Depends(allows(Role.SUBMIT))]


def signed_in(service: Service, token: KnownToken, place: str) -> Response:
    """Go to a place of ours with a cookie that stands for this token."""
    answer = _gone_to(place)
    answer.headers["set-cookie"] = _cookie(service, service.sessions.begin(token), LIFE_S)
    return answer


def signed_out(service: Service) -> Response:
    """Go to the login page without the cookie."""
    answer = _gone_to(LOGIN)
    answer.headers["set-cookie"] = _cookie(service, "", 0)
    return answer


def sent_to_login(scope: Scope, *, failed: bool = False) -> Response:
    """Go to the login page, and from there back to where this request wanted to go."""
    place = place_without_token(scope) if scope["method"] in {"GET", "HEAD"} else "/"
    asked = {"next": place} if place != "/" else {}
    query = urlencode(asked | ({"failed": "1"} if failed else {}))
    return _gone_to(f"{LOGIN}?{query}" if query else LOGIN)


def token_in_link(scope: Scope) -> str | None:
    """The token in the address of a page, as in the link that the service prints."""
    return dict(_fields(scope["query_string"].decode("latin-1"))).get("token")


def place_without_token(scope: Scope) -> str:
    """The address of a request, as a place of ours, without the token."""
    kept = [
        (name, value)
        for name, value in _fields(scope["query_string"].decode("latin-1"))
        if name != "token"
    ]
    path = quote(scope["path"], safe="/-._~!$&'()*+,;=:@")
    return local_place(path + (f"?{urlencode(kept)}" if kept else ""))


def local_place(asked: str) -> str:
    """The address if it is a place of ours, else the first page: we send nobody elsewhere."""
    return asked if len(asked) <= MOST_PLACE_CHARS and LOCAL.fullmatch(asked) else "/"


def _fields(text: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise HTTPException(400, "there are too many fields") from error


def _gone_to(place: str) -> Response:
    """Where a browser goes on; it tells nobody where it comes from."""
    return RedirectResponse(place, status_code=303, headers={"referrer-policy": "no-referrer"})


def _cookie(service: Service, value: str, life_s: int) -> str:
    secure = "; Secure" if service.config.listen.https else ""
    return (
        f"{service.config.listen.cookie_name}={value}; Path=/; Max-Age={life_s}; HttpOnly; "
        f"SameSite=Strict{secure}"
    )
