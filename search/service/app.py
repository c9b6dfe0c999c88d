"""The service as one ASGI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from records.database import NAME
from search.service.edge.guard import Guard
from search.service.errors import RESPONSES, answer_errors
from search.service.pages.routers import ROUTERS as PAGES
from search.service.remembered import Remembered
from search.service.routes import (
    comparisons,
    definitions,
    exports,
    files,
    health,
    leaderboard,
    policies,
    progress,
    queue,
    studies,
    trials,
)
from search.service.runs.keeper import table_path
from search.service.state import Service
from search.version import installed_version

API = "/api/v1"
ROUTES = (
    queue.router,
    studies.router,
    trials.router,
    policies.router,
    files.router,
    comparisons.router,
    leaderboard.router,
    exports.router,
    definitions.router,
    progress.router,
    health.router,
)


def app_of(service: Service) -> Guard:
    """The application of a service; while it runs, its queue is kept moving."""

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
    databases = (service.store / NAME, table_path(service.store))
    app.add_middleware(Remembered, databases=databases)
    for routes in ROUTES:
        app.include_router(routes, prefix=API, responses=RESPONSES)
    for pages in PAGES:
        app.include_router(pages)
    answer_errors(app)
    return Guard(app, service)
