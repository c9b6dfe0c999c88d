"""What a request must look like, who makes it, what they may do, and how they sign in."""

import re
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from ipaddress import ip_address
from typing import Annotated, Self
from urllib.parse import parse_qsl, quote, urlencode

from fastapi import Depends, HTTPException, Request, Security
from fastapi.responses import RedirectResponse, Response, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from search.service.auth import LIFE_S, Caller, KnownToken, Role, Slots, find_token
from search.service.config import ServiceConfig
from search.service.service import Service

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
API_PATHS = "/api/"
MOST_HEADERS = 100
MOST_HEADER_BYTES = 1 << 14
MOST_ADDRESS_BYTES = 8192
ONCE = ("authorization", "content-length", "content-type", "host", "origin", "sec-fetch-site")
BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/=-]{1,512}) *", re.IGNORECASE)
PORT = re.compile(r":[0-9]{1,5}")
FOREIGN = "another site made this request; open the service itself"
LOGIN = "/login"
NEEDED = (
    "a token is needed: open the link that `cclsearch serve` printed, or send "
    "`Authorization: Bearer TOKEN`"
)
LOCAL = re.compile(r"/(?!/)[!-\[\]-~]*")
"""An address within this service: browsers take `//` and backslashes for other hosts."""
MOST_PLACE_CHARS = 2000
MOST_FIELDS = 200


def refusal_of(scope: Scope, config: ServiceConfig) -> HTTPException | None:
    """Return what is wrong with the head of a request, for any caller; None where nothing is."""
    return next(_problems(scope, Headers(scope=scope), config), None)


def _problems(scope: Scope, headers: Headers, config: ServiceConfig) -> Iterator[HTTPException]:
    """Yield the problems; only the first one counts."""
    if len(scope["raw_path"]) + len(scope["query_string"]) > MOST_ADDRESS_BYTES:
        yield HTTPException(414, f"the address is longer than {MOST_ADDRESS_BYTES} bytes")
    sizes = [len(name) + len(value) for name, value in scope["headers"]]
    if len(sizes) > MOST_HEADERS or sum(sizes) > MOST_HEADER_BYTES:
        words = f"there are more than {MOST_HEADERS} headers or {MOST_HEADER_BYTES} bytes of them"
        yield HTTPException(431, words)
    for name in ONCE:
        if len(headers.getlist(name)) > 1:
            yield HTTPException(400, f"the header {name} is given twice; send it once")
    if not is_known_host(headers.get("host", ""), config):
        yield HTTPException(
            421,
            "this service does not have that name; open it by its address, or add the "
            "host under [listen] hosts",
        )
    if is_foreign(scope, headers, config):
        yield HTTPException(403, FOREIGN)
    length = headers.get("content-length", "0")
    if not (length.isdecimal() and len(length) < 20 and int(length) <= config.limits.body_bytes):
        yield HTTPException(413, f"the body is larger than {config.limits.body_bytes} bytes")


def is_known_host(host: str, config: ServiceConfig) -> bool:
    """Return whether the Host header names this service.

    Another site can make its own name resolve to this machine, but not an IP address.
    """
    port = PORT.search(host.rpartition("]")[2])
    name = host[: -len(port[0])] if port and host.endswith(port[0]) else host
    if name.lower() in config.listen.known_hosts:
        return True
    return not config.listen.is_loopback and _is_address(name)


def is_foreign(scope: Scope, headers: Headers, config: ServiceConfig) -> bool:
    """Return whether a page of another site, or of another port of this host, makes the request.

    Other sites may only link to our pages. A request that changes something without a token in a
    header must say that it comes from here, because browsers add cookies by themselves.
    """
    changes = scope["method"] not in SAFE_METHODS
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    own = f"{config.listen.scheme}://{headers.get('host', '')}".lower()
    if origin is not None and origin.lower() != own:
        return True
    if site is not None and site not in {"same-origin", "none"}:
        linked = headers.get("sec-fetch-mode") == "navigate" and is_page(scope["path"])
        return changes or not linked
    is_ours = origin is not None or site == "same-origin"
    by_browser = "cookie" in headers or is_page(scope["path"])
    return changes and by_browser and "authorization" not in headers and not is_ours


def is_page(path: str) -> bool:
    """Return whether an address is that of a page, not of the API."""
    return not path.startswith(API_PATHS)


def token_in(headers: Headers) -> str | None:
    """Return the token in the header; empty for a malformed header, None without one."""
    header = headers.get("authorization")
    if header is None:
        return None
    match = BEARER.fullmatch(header)
    return "" if match is None else match[1]


def cookie_in(headers: Headers, name: str) -> str | None:
    """Return the value of a cookie; None without it, and where there are several."""
    pairs = (pair.partition("=") for line in headers.getlist("cookie") for pair in line.split(";"))
    values = [value.strip() for key, _, value in pairs if key.strip() == name]
    return values[0] if len(values) == 1 else None


def _is_address(name: str) -> bool:
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


Shown = Annotated[
    HTTPAuthorizationCredentials | None,
    Security(HTTPBearer(auto_error=False, description="A token of the service.")),
]
"""Only for the API description: the guard has checked the token already."""


def service_of(request: Request) -> Service:
    """Return the service that a request is for."""
    found: Service = request.app.state.service
    return found


def token_of(headers: Headers, service: Service) -> KnownToken | None:
    """Return the known token that a request has in a header or by a cookie; None without one."""
    shown = token_in(headers)
    if shown is not None:
        return find_token(shown, service.tokens)
    cookie = cookie_in(headers, service.config.listen.cookie_name)
    return None if cookie is None else service.sessions.holder(cookie, service.tokens)


def caller_in(request: Request) -> Caller | None:
    """Return who makes a request, as the guard found; None without a known token."""
    found: Caller | None = request.scope.get("state", {}).get("caller")
    return found


def allows(role: Role) -> Callable[[Request], Awaitable[Caller]]:
    """Return a dependency that refuses callers below this role."""

    async def check(request: Request, _shown: Shown = None) -> Caller:
        return require_role(caller_in(request), role)

    return check


def require_role(caller: Caller | None, role: Role) -> Caller:
    """Return the caller; raise `HTTPException` for nobody, and below this role."""
    if caller is None:
        raise HTTPException(401, NEEDED, headers={"WWW-Authenticate": "Bearer"})
    if not caller.role.includes(role):
        words = f"{caller.name} has the role {caller.role}; this needs the role {role}"
        raise HTTPException(403, words)
    return caller


async def _service(request: Request) -> Service:
    # Asynchronous: a thread for each dependency would take longer than the rest.
    return service_of(request)


TheService = Annotated[Service, Depends(_service)]
Reader = Annotated[Caller, Depends(allows(Role.READ))]
Submitter = Annotated[Caller, Depends(allows(Role.SUBMIT))]


def begin_session(service: Service, token: KnownToken, place: str) -> Response:
    """Redirect within the service, with a cookie that stands for this token."""
    return _with_cookie(_redirect(place), service, service.sessions.begin(token), LIFE_S)


def end_session(service: Service) -> Response:
    """Redirect to the login page and remove the cookie."""
    return _with_cookie(_redirect(LOGIN), service, "", 0)


def redirect_to_login(scope: Scope, *, failed: bool = False) -> Response:
    """Redirect to the login page, and from there back to this request."""
    place = place_without_token(scope) if scope["method"] in {"GET", "HEAD"} else "/"
    target = {"next": place} if place != "/" else {}
    query = urlencode(target | ({"failed": "1"} if failed else {}))
    return _redirect(f"{LOGIN}?{query}" if query else LOGIN)


def token_in_link(scope: Scope) -> str | None:
    """Return the token in the address of a page, as in the link that the service prints."""
    return dict(_fields(scope)).get("token")


def place_without_token(scope: Scope) -> str:
    """Return the address of a request within the service, without the token."""
    kept = [(name, value) for name, value in _fields(scope) if name != "token"]
    path = quote(scope["path"], safe="/-._~!$&'()*+,;=:@")
    return local_place(path + (f"?{urlencode(kept)}" if kept else ""))


def local_place(asked: str) -> str:
    """Return the address if it is within the service, else the first page."""
    return asked if len(asked) <= MOST_PLACE_CHARS and LOCAL.fullmatch(asked) else "/"


def _fields(scope: Scope) -> list[tuple[str, str]]:
    query = scope["query_string"].decode("latin-1")
    try:
        return parse_qsl(query, keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise HTTPException(400, "there are too many fields") from error


def _redirect(place: str) -> Response:
    """Redirect without a Referer header."""
    return RedirectResponse(place, status_code=303, headers={"referrer-policy": "no-referrer"})


def _with_cookie(answer: Response, service: Service, value: str, life_s: int) -> Response:
    listen = service.config.listen
    answer.set_cookie(
        listen.cookie_name, value, life_s, secure=listen.https, httponly=True, samesite="strict"
    )
    return answer


class HeldResponse(StreamingResponse):
    """A streamed response that holds a slot until it ends."""

    def holding(self, slots: Slots, who: str) -> Self:
        """Return this response, which releases the slot of a caller."""
        self._release = partial(slots.release, who)
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it and release the slot."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()
