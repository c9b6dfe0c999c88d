"""Finds metrics by name and asks them: those built in, those that packages add, and the user's own.

Packages add metrics by entry points of the group `cclsearch.metrics`; what a file holds is handed
in as `added` (see `evaluator.metrics.from_file`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from numbers import Real
from typing import Final

from evaluator.metrics.base import Absent, Evidence, Metric, MetricError, contract_fault, raised
from evaluator.metrics.published import PREFIX, published
from records.errors import shown
from records.trial import MetricValue

GROUP: Final = "cclsearch.metrics"

_BUILT_IN: Final[Mapping[str, str]] = {
    "step_time": "evaluator.metrics.throughput:step_time",
    "tokens_per_s": "evaluator.metrics.throughput:tokens_per_s",
    "rank_count": "evaluator.metrics.throughput:rank_count",
    "avg_step_time": "evaluator.metrics.throughput:avg_step_time",
    "step_period": "evaluator.metrics.throughput:step_period",
    "rank_seconds": "evaluator.metrics.cost:rank_seconds",
    "rank_seconds_per_token": "evaluator.metrics.cost:rank_seconds_per_token",
    "tokens_per_s_per_rank": "evaluator.metrics.cost:tokens_per_s_per_rank",
    "cost_per_step": "evaluator.metrics.cost:cost_per_step",
    "cost_per_million_tokens": "evaluator.metrics.cost:cost_per_million_tokens",
    "mfu": "evaluator.metrics.compute:mfu",
    "achieved_tflops": "evaluator.metrics.compute:achieved_tflops",
    "ttft": "evaluator.metrics.inference:ttft",
    "tpot": "evaluator.metrics.inference:tpot",
    "output_tokens_per_s": "evaluator.metrics.inference:output_tokens_per_s",
    "peak_memory": "evaluator.metrics.memory:peak_memory",
    "communication_fraction": "evaluator.metrics.communication:communication_fraction",
    "exposed_communication_fraction": (
        "evaluator.metrics.communication:exposed_communication_fraction"
    ),
    "total_communication_time": "evaluator.metrics.communication:total_communication_time",
    "compute_comm_overlap": "evaluator.metrics.communication:compute_comm_overlap",
    "compute_fraction": "evaluator.metrics.communication:compute_fraction",
    "idle_fraction": "evaluator.metrics.communication:idle_fraction",
    "bw_allreduce": "evaluator.metrics.bandwidth:bw_allreduce",
    "bw_allgather": "evaluator.metrics.bandwidth:bw_allgather",
    "bw_reducescatter": "evaluator.metrics.bandwidth:bw_reducescatter",
    "bw_alltoall": "evaluator.metrics.bandwidth:bw_alltoall",
    "bw_peertopeer": "evaluator.metrics.bandwidth:bw_peertopeer",
    "bus_bandwidth": "evaluator.metrics.exchange:bus_bandwidth",
    "latency": "evaluator.metrics.exchange:latency",
    "straggler": "evaluator.metrics.stragglers:straggler",
    "load_imbalance_ratio": "evaluator.metrics.stragglers:load_imbalance_ratio",
    "communication_volume": "evaluator.metrics.volume:communication_volume",
    "collective_count": "evaluator.metrics.volume:collective_count",
    "pipeline_bubble_fraction": "evaluator.metrics.communication:pipeline_bubble_fraction",
    "memory_transfer_overhead": "evaluator.metrics.communication:memory_transfer_overhead",
    "dominant_kernel_concentration": "evaluator.metrics.kernels:dominant_kernel_concentration",
    "mean_sm_coverage": "evaluator.metrics.kernels:mean_sm_coverage",
    "compute_bound_fraction": "evaluator.metrics.kernels:compute_bound_fraction",
    "memory_bound_fraction": "evaluator.metrics.kernels:memory_bound_fraction",
    "moe_fraction": "evaluator.metrics.kernels:moe_fraction",
    "average_memory_bandwidth": "evaluator.metrics.kernels:average_memory_bandwidth",
    "kernel_launch_delay": "evaluator.metrics.launches:kernel_launch_delay",
    "launches_per_step": "evaluator.metrics.launches:launches_per_step",
    "short_kernel_fraction": "evaluator.metrics.launches:short_kernel_fraction",
    "host_wait_fraction": "evaluator.metrics.launches:host_wait_fraction",
}


ALIASES: Final[Mapping[str, str]] = {"gpus": "rank_count", "memory_peak": "peak_memory"}
"""Names that others have for metrics of ours, where no metric is called so."""


@dataclass(frozen=True, slots=True)
class Measures:
    """Every metric that has a value, and why each of the others has none, both by rising name."""

    values: tuple[MetricValue, ...]
    absent: Mapping[str, str]


def metric(name: str, added: Sequence[Metric] = ()) -> Metric:
    """The metric of this name. Raises MetricError when there is none, or it is broken."""
    if name in _BUILT_IN and not any(one.name == name for one in added):
        return _load(EntryPoint(name, _BUILT_IN[name], GROUP))
    known = _origins(added)
    if name not in known:
        name = ALIASES.get(name, name)
    if name not in known and name.startswith(PREFIX):
        return published(name)
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
        raise MetricError(f"no metric is called {name!r}; {hint}")
    return _load(known[name])


def is_built_in(name: str) -> bool:
    """Whether a metric of this name comes with us."""
    return name in _BUILT_IN


def added_by(name: str) -> str | None:
    """Where the metric that a package adds under this name is, as `module:attribute`; else None."""
    found = None if is_built_in(name) else _origins(()).get(name)
    return found.value if isinstance(found, EntryPoint) else None


def metric_names(added: Sequence[Metric] = ()) -> tuple[str, ...]:
    """Every metric that can be asked for, in alphabetical order."""
    return tuple(sorted(_origins(added)))


def loaded_metrics(added: Sequence[Metric] = ()) -> tuple[dict[str, Metric], dict[str, str]]:
    """Every metric by rising name, and why those that are broken cannot be asked.

    Raises MetricError only where two metrics have one name.
    """
    found: dict[str, Metric] = {}
    broken: dict[str, str] = {}
    for name, origin in sorted(_origins(added).items()):
        try:
            found[name] = _load(origin)
        except MetricError as error:
            broken[name] = str(error)
    return found, broken


def measure_all(evidence: Evidence, added: Sequence[Metric] = ()) -> Measures:
    """Ask every metric; one that is broken is absent and says how.

    Raises MetricError only where two metrics have one name.
    """
    found, broken = loaded_metrics(added)
    measures = measure_each(found.values(), evidence)
    return Measures(measures.values, dict(sorted((broken | dict(measures.absent)).items())))


def measure_each(asked: Iterable[Metric], evidence: Evidence) -> Measures:
    """Ask these metrics; one that is broken is absent and says how."""
    values: list[MetricValue] = []
    absent: dict[str, str] = {}
    for one in sorted(asked, key=lambda metric: metric.name):
        try:
            answer = measure(one, evidence)
        except MetricError as error:
            answer = Absent(str(error))
        if isinstance(answer, Absent):
            absent[one.name] = answer.reason
        else:
            values.append(answer)
    return Measures(tuple(values), absent)


def measure(asked: Metric, evidence: Evidence) -> MetricValue | Absent:
    """Ask one metric. Raises MetricError when it fails or gives what is no finite number."""
    try:
        answer: object = asked.measure(evidence)
        number = float(answer) if isinstance(answer, Real) else math.nan
    # The boundary to code that is not ours: whatever a metric raises, the others still answer.
    except Exception as error:
        raise MetricError(f"metric {asked.name!r} failed: {raised(error)}") from error
    if isinstance(answer, Absent):
        return answer
    if isinstance(answer, bool) or not math.isfinite(number):
        raise MetricError(f"metric {asked.name!r} gave {shown(answer)}, no finite number")
    return MetricValue(
        name=asked.name,
        value=number,
        unit=asked.unit,
        better=asked.better,
        version=asked.version,
    )


def _origins(added: Sequence[Metric]) -> dict[str, EntryPoint | Metric]:
    """Where the metric of each name comes from."""
    entries = {name: EntryPoint(name, value, GROUP) for name, value in _BUILT_IN.items()}
    for entry in entries_of_packages():
        other = entries.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise MetricError(
                f"metric {entry.name!r} is defined twice, by {other.value} and by {entry.value}"
            )
    origins: dict[str, EntryPoint | Metric] = {**entries}
    for one in added:
        if origins.setdefault(one.name, one) is not one:
            raise MetricError(f"metric {one.name!r} exists already; give yours another name")
    return origins


@cache
def entries_of_packages() -> tuple[EntryPoint, ...]:
    """The metrics that installed packages add; finding them reads a file of each package."""
    return tuple(entry_points(group=GROUP))


def _load(origin: EntryPoint | Metric) -> Metric:
    if not isinstance(origin, EntryPoint):
        return origin
    try:
        loaded: object = origin.load()
    # Importing a package runs its code, which may raise anything.
    except Exception as error:
        raise MetricError(f"metric {origin.name!r} cannot be loaded: {raised(error)}") from error
    if not isinstance(loaded, Metric) or loaded.name != origin.name:
        raise MetricError(f"{origin.value} is no metric of the name {origin.name!r}")
    fault = contract_fault(loaded)
    if fault is not None:
        raise MetricError(f"metric {origin.name!r} ({origin.value}) {fault}")
    return loaded
