"""/health, metrics.

How the service is: what waits, what runs and where, and what is wrong.

Whether the service does what it should, for people and for monitoring.
"""

import os
import pathlib
import shutil
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

from records.errors import CclsearchError
from search.service.access import Reader, TheService
from search.service.queue import State, Submitted
from search.service.runner import DeviceGroup
from search.service.service import Service
from search.settings import installed_version

T = TypeVar("T")


class DeviceUse(BaseModel):
    """Devices, how many studies may measure on them at once, and how many do."""

    devices: str
    environments: list[str]
    parallel_studies: int
    running: int
    queued: int


class ServiceStatus(BaseModel):
    """How the service is, in full; what cannot be told is null, and `faults` say why.

    `waits_for` is a search that was started by hand on the same records: until it ends nothing
    is started. `faults` are what keeps the service from doing what it should.
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
    """Whether the queue moves, and the records can be used."""
    return service.scheduler.lives and not service.scheduler.faults


def service_status(service: Service) -> ServiceStatus:
    """How the service is, in full; whatever is broken, there is an answer."""
    faults = [*service.scheduler.faults]
    if not service.scheduler.lives:
        faults.append("the queue is looked after no more; start the service again")
    if service.webhooks is not None and service.webhooks.fault is not None:
        faults.append(service.webhooks.fault)
    under_way = _or_fault(lambda: service.table.under_way(), faults)
    waiting = _or_fault(lambda: len(service.table.deliveries()), faults)
    studies = _or_fault(lambda: service.records.study_count(), faults)
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
        disk_free_bytes=_disk_free_bytes(service),
        memory_bytes=_memory_bytes(),
    )


def _or_fault(read: Callable[[], T], faults: list[str]) -> T | None:
    """What there is to tell; None, and a fault more, where it cannot be told."""
    try:
        return read()
    except CclsearchError as error:
        if str(error) not in faults:
            faults.append(str(error))
        return None


def _devices(service: Service, under_way: Sequence[Submitted]) -> list[DeviceUse]:
    """Every device that is configured, and those that are in use still."""
    names: dict[str, list[str]] = {}
    bear: dict[str, int] = {}

    def note(environment: str, place: DeviceGroup) -> None:
        known = names.setdefault(place.devices, [])
        if environment not in known:
            known.append(environment)
        bear[place.devices] = min(
            place.parallel_studies, bear.get(place.devices, place.parallel_studies)
        )

    for name, offered in service.config.environment.items():
        note(name, DeviceGroup(offered.devices, offered.parallel_studies))
    for each in under_way:
        note(each.environment, service.scheduler.devices_of(each))
    there = [(service.scheduler.devices_of(each).devices, each) for each in under_way]
    return [
        DeviceUse(
            devices=devices,
            environments=sorted(known),
            parallel_studies=bear[devices],
            running=_count([each for on, each in there if on == devices], is_queued=False),
            queued=_count([each for on, each in there if on == devices], is_queued=True),
        )
        for devices, known in sorted(names.items())
    ]


def _count(under_way: Sequence[Submitted], *, is_queued: bool) -> int:
    return sum((each.state is State.QUEUED) == is_queued for each in under_way)


def _disk_free_bytes(service: Service) -> int | None:
    try:
        return shutil.disk_usage(service.store).free
    except OSError:
        return None


def _memory_bytes() -> int | None:
    """What this process has in memory."""
    try:
        with pathlib.Path("/proc/self/statm").open(encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


router = APIRouter(tags=["health"])


class Health(BaseModel):
    """Whether the service is well, which needs no token."""

    ok: bool


@router.get("/health", responses={503: {"model": Health}})
def health(service: TheService, response: Response) -> Health:
    """Whether the service is well: its queue moves, and its records can be used."""
    ok = is_healthy(service)
    response.status_code = 200 if ok else 503
    return Health(ok=ok)


@router.get("/status")
def details(service: TheService, _caller: Reader) -> ServiceStatus:
    """How the service is, in full."""
    return service_status(service)


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(service: TheService, _caller: Reader) -> str:
    """The same for Prometheus, in its text format; what cannot be told is left out."""
    found = service_status(service)
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
    for use in found.devices:
        label = use.devices.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        texts.append(f'cclsearch_devices_running{{devices="{label}"}} {use.running}\n')
    return "".join(texts)


def _gauge(name: str, meaning: str, value: float) -> str:
    return f"# HELP {name} {meaning}\n# TYPE {name} gauge\n{name} {value}\n"
