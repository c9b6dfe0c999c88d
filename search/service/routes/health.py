"""Whether the service does what it should, for people and for monitoring."""

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

from search.service.access import Reader, TheService
from search.service.runs.table import State
from search.version import installed_version

router = APIRouter(tags=["health"])


class Health(BaseModel):
    """How the service is; without a token only whether it is well."""

    ok: bool


class Details(BaseModel):
    """How the service is, in full; `fault` is what keeps the queue from moving."""

    ok: bool
    version: str
    queued: int
    running: int
    studies: int
    event_streams: int
    fault: str | None


@router.get("/health")
def health(service: TheService, response: Response) -> Health:
    """Whether the service is well: its queue moves, and its records can be read."""
    ok = service.keeper.lives and service.keeper.fault is None
    response.status_code = 200 if ok else 503
    return Health(ok=ok)


@router.get("/status")
def details(service: TheService, _caller: Reader) -> Details:
    """How the service is, in full."""
    under_way = [submitted.state for submitted in service.table.under_way()]
    return Details(
        ok=service.keeper.lives and service.keeper.fault is None,
        version=installed_version(),
        queued=under_way.count(State.QUEUED),
        running=len(under_way) - under_way.count(State.QUEUED),
        studies=service.records.study_count(),
        event_streams=service.streams.total(),
        fault=service.keeper.fault,
    )


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(service: TheService, _caller: Reader) -> str:
    """The same for Prometheus, in its text format."""
    found = details(service, _caller)
    return "".join(_metric(*line) for line in _lines(found))


def _lines(found: Details) -> list[tuple[str, str, str, int]]:
    return [
        ("cclsearch_up", "gauge", "Whether the queue moves.", int(found.ok)),
        ("cclsearch_studies_queued", "gauge", "Studies that wait.", found.queued),
        ("cclsearch_studies_running", "gauge", "Studies that are searched.", found.running),
        ("cclsearch_studies", "gauge", "Studies on record.", found.studies),
        ("cclsearch_event_streams", "gauge", "Readers of live events.", found.event_streams),
    ]


def _metric(name: str, kind: str, meaning: str, value: int) -> str:
    return f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n{name} {value}\n"
