"""Routes that report how the service is, for people, programs and Prometheus."""

import shutil
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import psutil
from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

from records.errors import CclsearchError
from search.service.access import Reader, TheService
from search.service.config import OfferedEnvironment
from search.service.queue import State, Submitted
from search.service.service import Service
from search.settings import installed_version

T = TypeVar("T")

router = APIRouter(tags=["health"])


class DeviceUse(BaseModel):
    """Devices, how many studies may measure on them in parallel, and how many do."""

    devices: str
    environments: list[str]
    parallel_studies: int
    running: int
    queued: int


class ServiceStatus(BaseModel):
    """The full status of the service; what cannot be read is null, and `faults` say why.

    `waits_for` is a search started outside the service on the same records: until it ends, none
    is started. `faults` keep the service from working.
    """

    ok: bool
    faults: list[str]
    waits_for: str | None
    version: str
    uptime_s: float
    queued: int | None
    running: int | None
    devices: list[DeviceUse]
    studies: int | None
    event_streams: int
    webhooks_waiting: int | None
    disk_free_bytes: int | None
    memory_bytes: int | None


def is_healthy(service: Service) -> bool:
    """Return whether the queue moves and the records can be used."""
    return service.scheduler.lives and not service.scheduler.faults


def service_status(service: Service) -> ServiceStatus:
    """Return the full status of the service, also where parts of it fail."""
    faults = [*service.scheduler.faults]
    if not service.scheduler.lives:
        faults.append("the scheduler has stopped; restart the service")
    if service.webhooks is not None and service.webhooks.fault is not None:
        faults.append(service.webhooks.fault)
    under_way = _or_fault(lambda: service.scheduler.under_way(service.table), faults)
    waiting = _or_fault(lambda: len(service.table.deliveries()), faults)
    studies = _or_fault(lambda: service.records.study_count(), faults)
    disk_free_bytes = _or_fault(lambda: shutil.disk_usage(service.store).free, faults)
    queued = None if under_way is None else _count(under_way, is_queued=True)
    return ServiceStatus(
        ok=is_healthy(service),
        faults=faults,
        waits_for=service.scheduler.waits_for,
        version=installed_version(),
        uptime_s=time.time() - service.started_s,
        queued=queued,
        running=None if under_way is None else _count(under_way, is_queued=False),
        devices=_devices(service, under_way or ()),
        studies=studies,
        event_streams=service.streams.total(),
        webhooks_waiting=waiting,
        disk_free_bytes=disk_free_bytes,
        memory_bytes=psutil.Process().memory_info().rss,
    )


def _or_fault(read: Callable[[], T], faults: list[str]) -> T | None:
    """Return what can be read; None, and another fault, where it cannot."""
    try:
        return read()
    except (CclsearchError, OSError) as error:
        if str(error) not in faults:
            faults.append(str(error))
        return None


def _devices(service: Service, under_way: Sequence[Submitted]) -> list[DeviceUse]:
    """Return all configured devices, and those that are still in use."""
    used: list[tuple[str, OfferedEnvironment | Submitted]] = [
        *((name, one) for name, one in service.config.environment.items()),
        *((each.environment, each) for each in under_way),
    ]
    found = list[DeviceUse]()
    for devices in sorted({one.devices for _, one in used}):
        users = [(name, one) for name, one in used if one.devices == devices]
        here = [one for _, one in users if isinstance(one, Submitted)]
        found.append(
            DeviceUse(
                devices=devices,
                environments=sorted({name for name, _ in users}),
                parallel_studies=min(one.parallel_studies for _, one in users),
                running=_count(here, is_queued=False),
                queued=_count(here, is_queued=True),
            )
        )
    return found


def _count(under_way: Sequence[Submitted], *, is_queued: bool) -> int:
    return sum((each.state is State.QUEUED) == is_queued for each in under_way)


class Health(BaseModel):
    """Whether the service works; needs no token."""

    ok: bool


@router.get("/health", responses={503: {"model": Health}})
def health(service: TheService, response: Response) -> Health:
    """Whether the service works: its queue moves, and its records can be used."""
    ok = is_healthy(service)
    response.status_code = 200 if ok else 503
    return Health(ok=ok)


@router.get("/status")
def details(service: TheService, _caller: Reader) -> ServiceStatus:
    """The full status of the service."""
    return service_status(service)


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(service: TheService, _caller: Reader) -> str:
    """The same in the text format of Prometheus; what cannot be read is left out."""
    found = service_status(service)
    lines = [
        ("cclsearch_up", "Whether the queue moves.", int(found.ok)),
        ("cclsearch_uptime_seconds", "Since the service started.", found.uptime_s),
        ("cclsearch_faults", "Faults of the service.", len(found.faults)),
        ("cclsearch_studies_queued", "Queued studies.", found.queued),
        ("cclsearch_studies_running", "Running studies.", found.running),
        ("cclsearch_studies", "Recorded studies.", found.studies),
        ("cclsearch_event_streams", "Readers of live events.", found.event_streams),
        ("cclsearch_webhooks_waiting", "Messages to deliver.", found.webhooks_waiting),
        ("cclsearch_disk_free_bytes", "Free where the records are.", found.disk_free_bytes),
        ("cclsearch_memory_bytes", "Memory of the service.", found.memory_bytes),
    ]
    texts = [_gauge(name, meaning, value) for name, meaning, value in lines if value is not None]
    for use in found.devices:
        label = use.devices.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        texts.append(f'cclsearch_devices_running{{devices="{label}"}} {use.running}\n')
    return "".join(texts)


def _gauge(name: str, meaning: str, value: float) -> str:
    return f"# HELP {name} {meaning}\n# TYPE {name} gauge\n{name} {value}\n"
