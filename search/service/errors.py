"""Errors as answers: one shape for programs, a page for people, and never more than words."""

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match

from records.errors import CclsearchError, EnvironmentFault, StoreBusy, StoreError, WriterBusy
from search.service.edge.checks import is_page
from search.service.facts.written import BusyError
from search.service.pages.errors import error_page
from search.service.state import ConflictError, ForbiddenError, MissingError, TooManyError
from search.words.trial import one_line

WORDS_CHARS = 1000
WAIT_S = "1"
METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
UNKNOWN = {
    "Not Found": "there is nothing at this address; see /api/v1/openapi.json",
    "Method Not Allowed": "that method does not fit this address; see /api/v1/openapi.json",
}
"""What is said where no route was found, in words of ours."""


class Problem(BaseModel):
    """Why nothing came of a request, in words."""

    error: str


_AS_JSON = {"application/json": {"schema": Problem.model_json_schema()}}
RESPONSES: dict[int | str, dict[str, object]] = {
    "4XX": {"content": _AS_JSON, "description": "What is wrong with the request."},
    "5XX": {"content": _AS_JSON, "description": "What is wrong with the service."},
}
"""What any route may answer beside what it is for, also where that is no JSON."""


def answer_errors(app: FastAPI) -> None:
    """Give every error its answer."""
    app.add_exception_handler(CclsearchError, _ours)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(Exception, _broken)


async def _ours(request: Request, error: Exception) -> Response:
    """An error of ours; its words are made for whoever asked."""
    return _answer(request, _status(error), str(error))


async def _refused(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    words, headers = UNKNOWN.get(error.detail, error.detail), dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(sorted(_methods(request)))
    return _answer(request, error.status_code, words, headers)


def _methods(request: Request) -> set[str]:
    """Every method that an address takes: its routes know only their own."""
    found: set[str] = set()
    for method in METHODS:
        asked = {**request.scope, "method": method}
        if any(route.matches(asked)[0] is Match.FULL for route in request.app.router.routes):
            found.add(method)
    return found


async def _malformed(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return _answer(request, 422, f"{where}: {first['msg']}")


async def _broken(request: Request, _error: Exception) -> Response:
    """A fault of ours, which goes on to the log with all that is known of it."""
    return _answer(request, 500, "something went wrong in the service; its log tells what")


def _answer(
    request: Request, status: int, words: str, headers: dict[str, str] | None = None
) -> Response:
    words = one_line(words.encode("utf-8", "replace").decode(), WORDS_CHARS)
    if is_page(request.url.path):
        return error_page(request, status, words)
    headers = {**(headers or {}), **({"retry-after": WAIT_S} if status in {429, 503} else {})}
    return JSONResponse({"error": words}, status, headers)


def _status(error: Exception) -> int:
    match error:
        case ForbiddenError():
            return 403
        case MissingError():
            return 404
        case WriterBusy():
            return 503
        case ConflictError() | StoreBusy():
            return 409
        case TooManyError() | BusyError():
            return 429
        case StoreError() | EnvironmentFault():
            return 503
        case _:
            return 422
