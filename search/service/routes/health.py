"""Whether the service does what it should, for people and for monitoring."""

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

from search.service.edge.access import Reader, TheService
from search.service.health import Details, details_of, is_well

router = APIRouter(tags=["health"])


class Health(BaseModel):
    """Whether the service is well, which needs no token."""

    ok: bool


@router.get("/health", responses={503: {"model": Health}})
def health(service: TheService, response: Response) -> Health:
    """Whether the service is well: its queue moves, and its records can be used."""
    ok = is_well(service)
    response.status_code = 200 if ok else 503
    return Health(ok=ok)


@router.get("/status")
def details(service: TheService, _caller: Reader) -> Details:
    """How the service is, in full."""
    return details_of(service)


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(service: TheService, _caller: Reader) -> str:
    """The same for Prometheus, in its text format; what cannot be told is left out."""
    found = details_of(service)
    lines = [
        ("cclsearch_up", "Whether the queue moves.", int(found.ok)),
        ("cclsearch_uptime_seconds", "Since the service started.", found.uptime_s),
        ("cclsearch_faults", "What is wrong, as counted.", len(found.faults)),
        ("cclsearch_studies_queued", "Studies that wait.", found.queued),
        ("cclsearch_studies_running", "Studies that are searched.", found.running),
        ("cclsearch_studies", "Studies on record.", found.studies),
        ("cclsearch_event_streams", "Readers of live events.", found.event_streams),
        ("cclsearch_webhooks_waiting", "Messages to deliver.", found.webhooks_waiting),
        ("cclsearch_disk_free_bytes", "Free where the records are.", found.disk_free_bytes),
        ("cclsearch_memory_bytes", "Memory of the service.", found.memory_bytes),
    ]
    texts = [_gauge(name, meaning, value) for name, meaning, value in lines if value is not None]
    for use in found.places:
        label = use.devices.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        texts.append(f'cclsearch_devices_running{{devices="{label}"}} {use.running}\n')
    return "".join(texts)


def _gauge(name: str, meaning: str, value: float) -> str:
    return f"# HELP {name} {meaning}\n# TYPE {name} gauge\n{name} {value}\n"
