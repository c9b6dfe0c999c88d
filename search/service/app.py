"""The service as a FastAPI application: its routes, its errors, and running it until stopped."""

import shlex
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import typer
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match

from records.errors import (
    CclsearchError,
    EnvironmentFault,
    StoreBusy,
    StoreError,
    StudyError,
    WriterBusy,
)
from search.service.access import is_page
from search.service.api import compare as compare_routes
from search.service.api import health as health_routes
from search.service.api import studies as studies_routes
from search.service.api import trials as trials_routes
from search.service.auth import (
    KnownToken,
    Role,
    Sessions,
    TooManyError,
    digest_of,
    load_key,
    local_token,
    new_token,
)
from search.service.config import Listen, ServiceConfig, read_config
from search.service.guard import Guard
from search.service.pages import base, compare, site, study, submit, trial, trials
from search.service.pages.base import error_page
from search.service.queue import RunTable, State
from search.service.runner import Scheduler, claim, no_deliveries, table_path
from search.service.server import allow_many_files, listening, log_plainly, server_of
from search.service.service import (
    ConflictError,
    ForbiddenError,
    MissingError,
    Service,
    check_offered,
)
from search.service.webhooks import WebhookSender
from search.settings import installed_version, store_root
from search.views.format import one_line

WORDS_CHARS = 1000
WAIT_S = "1"
METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
UNKNOWN = {
    "Not Found": "there is nothing at this address; see /api/v1/openapi.json",
    "Method Not Allowed": "that method does not fit this address; see /api/v1/openapi.json",
}
"""Our messages where no route was found."""


PAGES = (base, site, submit, study, trials, trial, compare)
API = "/api/v1"
ROUTES = (
    studies_routes.router,
    studies_routes.studies_router,
    trials_routes.trials_router,
    trials_routes.policies_router,
    trials_routes.router,
    compare_routes.router,
    compare_routes.leaderboard_router,
    compare_routes.exports_router,
    compare_routes.definitions_router,
    studies_routes.progress_router,
    health_routes.router,
)


STATUSES: Mapping[type, int] = {
    ForbiddenError: 403,
    MissingError: 404,
    ConflictError: 409,
    StoreBusy: 409,
    TooManyError: 429,
    WriterBusy: 503,
    StoreError: 503,
    EnvironmentFault: 503,
    CclsearchError: 422,
}
"""The status for each of our errors; the closest base of an error counts."""


class Problem(BaseModel):
    """Why a request failed."""

    error: str


_AS_JSON = {"application/json": {"schema": Problem.model_json_schema()}}
RESPONSES: dict[int | str, dict[str, object]] = {
    "4XX": {"content": _AS_JSON, "description": "What is wrong with the request."},
    "5XX": {"content": _AS_JSON, "description": "What is wrong with the service."},
}
"""The errors of every route, also of those that do not send JSON."""


async def _answer(request: Request, error: Exception) -> Response:
    """Answer an error, for a page as a page."""
    status, words, headers = _refusal(request, error)
    words = one_line(words.encode("utf-8", "replace").decode(), WORDS_CHARS)
    if is_page(request.url.path):
        return error_page(request, status, words)
    if status in {429, 503}:
        headers = {**headers, "retry-after": WAIT_S}
    return JSONResponse({"error": words}, status, headers)


def _refusal(request: Request, error: Exception) -> tuple[int, str, Mapping[str, str]]:
    """Return the status, the message and further headers for an error."""
    match error:
        case CclsearchError():
            kinds = type(error).mro()
            return next(STATUSES[kind] for kind in kinds if kind in STATUSES), str(error), {}
        case HTTPException(status_code=405):
            allowed = {"Allow": ", ".join(sorted(_methods(request)))}
            return 405, UNKNOWN.get(error.detail, error.detail), allowed
        case HTTPException(status_code=status, detail=words):
            return status, UNKNOWN.get(words, words), error.headers or {}
        case RequestValidationError():
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            return 422, f"{where}: {first['msg']}", {}
        case _:  # a bug of the service, whose traceback is logged
            return 500, "something went wrong in the service; see its log", {}


def _methods(request: Request) -> set[str]:
    """Return every method that an address has: each route knows only its own."""
    found: set[str] = set()
    for method in METHODS:
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.router.routes):
            found.add(method)
    return found


def app_of(service: Service) -> Guard:
    """Return the application of a service, which runs the queue."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            service.close()

    app = FastAPI(
        title="cclsearch",
        version=installed_version(),
        summary="Submit, watch and explore searches for the best launch configuration.",
        openapi_url=f"{API}/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    for routes in ROUTES:
        app.include_router(routes, prefix=API, responses=RESPONSES)
    for pages in PAGES:
        app.include_router(pages.router)
    for kind in (CclsearchError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _answer)
    return Guard(app, service)


def print_new_token(text: str) -> None:
    """Print a new token, and the configuration that makes the service accept it."""
    name, colon, role = text.rpartition(":")
    if not colon or role not in [*Role]:
        raise StudyError(f"--new-token {text!r} is not NAME:ROLE; the roles are {', '.join(Role)}")
    token = new_token()
    known = KnownToken(name=name, role=Role(role), sha256=digest_of(token))
    typer.echo(f"token, shown only now: {token}", err=True)
    typer.echo(f'[[token]]\nname = "{known.name}"\nrole = "{role}"\nsha256 = "{known.sha256}"')


def run_service(config_file: Path | None, port: int | None, store: Path | None) -> None:
    """Serve the records of a store until stopped; print the link, with a token if none is set."""
    config = read_config(config_file)
    listen = config.listen if port is None else replace(config.listen, port=port)
    root = store_root(store).absolute()
    with lock_store(root), listening(listen) as at:
        listen = replace(listen, port=at.getsockname()[1])
        sessions = Sessions(key=load_key(root / "service"))
        service = service_of(replace(config, listen=listen), config_file, root, sessions)
        allow_many_files()
        log_plainly()
        server = server_of(app_of(service), listen, service.feeds.close)
        with _stop_on_signals(server):
            typer.echo(f"cclsearch serves {root}")
            typer.echo(f"open: {_link(listen, None if config.token else sessions.local_token)}")
            server.run(sockets=[at])
        typer.echo(_closing_line(root))


def service_of(
    config: ServiceConfig, config_file: Path | None, root: Path, sessions: Sessions
) -> Service:
    """Return the configured service of a store, not started; raise `StudyError`."""
    folder = Path() if config_file is None else config_file.parent
    check_offered(config, folder)
    webhooks = WebhookSender(table_path(root), config.webhook, folder) if config.webhook else None
    deliveries_for = no_deliveries if webhooks is None else webhooks.deliveries_for
    return Service(
        config=config,
        folder=folder,
        store=root,
        tokens=config.token or (local_token(sessions.local_token),),
        scheduler=Scheduler(root, config.environment, deliveries_for),
        webhooks=webhooks,
        sessions=sessions,
    )


@contextmanager
def _stop_on_signals(server: uvicorn.Server) -> Iterator[None]:
    """Stop the server on signals, also that of a closing terminal."""

    def stop(_number: int, _frame: object) -> None:
        server.should_exit = True

    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    signals = [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _closing_line(root: Path) -> str:
    with closing(RunTable(table_path(root))) as table:
        states = [submitted.state for submitted in table.under_way()]
    waiting = states.count(State.QUEUED)
    if not states:
        return "stopped; nothing was under way"
    return (
        f"stopped; {len(states) - waiting} running and {waiting} queued: running searches "
        f"continue, and `cclsearch serve --store {shlex.quote(str(root))}` finds them again"
    )


def _link(listen: Listen, token: str | None) -> str:
    return f"{listen.url}/" + ("" if token is None else f"?token={token}")


@contextmanager
def lock_store(root: Path) -> Iterator[None]:
    """Lock a store for this service; the lock ends with the process."""
    folder = root / "service"
    with ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = held.enter_context(claim(folder / "lock"))
        except OSError as error:
            raise StoreError(f"cannot use {folder}: {error.strerror}") from error
        if handle is None:
            raise StoreBusy(f"another service serves {root}; stop it, or use its link")
        yield
