"""The service as one ASGI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp

from records.errors import CclsearchError, EnvironmentFault, StoreBusy, StoreError
from search.service.guard import BodyTooLargeError, Guard
from search.service.routes import files, health, policies, progress, queue, studies, trials
from search.service.state import ConflictError, MissingError, Service, TooManyError
from search.version import installed_version

API = "/api/v1"


def app_of(service: Service) -> ASGIApp:
    """The application of a service; while it runs, its queue is kept moving."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        service.keeper.start()
        try:
            yield
        finally:
            service.keeper.close()

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
    for about in (queue, studies, trials, policies, files, progress, health):
        app.include_router(about.router, prefix=API)
    app.add_exception_handler(CclsearchError, _refused)
    app.add_exception_handler(BodyTooLargeError, _too_large)
    return Guard(app, service.config)


async def _refused(_request: Request, error: Exception) -> JSONResponse:
    """An error of ours as an answer; its words are made for whoever asked."""
    return JSONResponse({"error": str(error)}, status_code=_status(error))


def _status(error: Exception) -> int:
    match error:
        case MissingError():
            return 404
        case ConflictError() | StoreBusy():
            return 409
        case TooManyError():
            return 429
        case StoreError() | EnvironmentFault():
            return 503
        case _:
            return 422


async def _too_large(_request: Request, _error: Exception) -> JSONResponse:
    return JSONResponse({"error": "the body is too large"}, status_code=413)
