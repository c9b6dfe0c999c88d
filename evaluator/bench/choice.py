"""Chooses the libraries that a benchmark measures, among those that can be used here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from evaluator.bench.plan import Plan
from evaluator.workloads.collectives.adapters.adapter import AdapterName
from evaluator.workloads.collectives.adapters.catalog import availability, default_backend
from evaluator.workloads.collectives.sweep_request import SweepRequest
from records.errors import EnvironmentFault

UNASKED: Final = (AdapterName.TORCHCOMMS, AdapterName.C10D, AdapterName.MPI)
"""Where nobody chose: the first of these that can be used, MPI where mpirun started the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What to measure, a request for each library, and the reason for each that is left out."""

    requests: tuple[SweepRequest, ...]
    left_out: tuple[str, ...] = ()


def choose(plan: Plan, closed: Mapping[AdapterName, str]) -> Choice:
    """Choose by trying; raises `EnvironmentFault` if none of those asked for can be used.

    `closed` are libraries that the ranks cannot use, whatever is installed, each with the reason.
    """
    usable: list[AdapterName] = []
    left_out: list[str] = []
    for name in plan.adapters or UNASKED:
        reason = closed.get(name) or availability(name)
        if reason is not None:
            left_out.append(f"{name} is left out: {reason}")
        else:
            usable.append(name)
            if not plan.adapters:
                break
    if not usable:
        raise EnvironmentFault("; ".join(left_out))
    return Choice(requests=tuple(_requests(plan, usable)), left_out=tuple(left_out))


def _requests(plan: Plan, names: list[AdapterName]) -> Iterator[SweepRequest]:
    for name in names:
        yield plan.request(name, plan.backend or default_backend(name, plan.device))
