"""Which role a request has, told by a token in a header or in a cookie."""

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, HTTPException, Request

from search.service.roles import Caller, Role, caller_of
from search.service.state import Service

BEARER = "bearer "
SAFE_METHODS = frozenset({"GET", "HEAD"})


def service_of(request: Request) -> Service:
    """The service that a request is for."""
    found: Service = request.app.state.service
    return found


def caller_in(request: Request, service: Service) -> Caller | None:
    """Who makes a request; None without a token, or with one that is not known."""
    header = request.headers.get("authorization", "")
    if header.lower().startswith(BEARER):
        return caller_of(header[len(BEARER) :].strip(), service.tokens)
    token = request.cookies.get(service.cookie_name)
    if token is None:
        return None
    # Browsers add cookies by themselves: what changes something must come from our own page.
    if request.method not in SAFE_METHODS and request.headers.get("origin") is None:
        return None
    return caller_of(token, service.tokens)


def allows(role: Role) -> Callable[[Request, Service], Caller]:
    """A check that a caller has at least this role."""

    def check(request: Request, service: Annotated[Service, Depends(service_of)]) -> Caller:
        caller = caller_in(request, service)
        if caller is None:
            raise HTTPException(
                401,
                "a token is needed: open the link that `cclsearch serve` printed, or send "
                "`Authorization: Bearer TOKEN`",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if caller.role < role:
            raise HTTPException(
                403, f"{caller.name} may {caller.role.word}; this takes the role {role.word}"
            )
        return caller

    return check


TheService = Annotated[Service, Depends(service_of)]
Reader = Annotated[Caller, Depends(allows(Role.READ))]
Submitter = Annotated[Caller, Depends(allows(Role.SUBMIT))]
Admin = Annotated[Caller, Depends(allows(Role.ADMIN))]
