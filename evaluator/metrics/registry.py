"""Finds metrics by name: those built in and those that installed packages add."""

import math
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from evaluator.metrics.base import Evidence, Metric, MetricError
from records.trial import MetricValue

GROUP: Final = "cclsearch.metrics"

_BUILT_IN: Final[Mapping[str, str]] = {
    "step_time": "evaluator.metrics.throughput:step_time",
    "tokens_per_s": "evaluator.metrics.throughput:tokens_per_s",
    "rank_count": "evaluator.metrics.throughput:rank_count",
    "ttft": "evaluator.metrics.inference:ttft",
    "tpot": "evaluator.metrics.inference:tpot",
    "output_tokens_per_s": "evaluator.metrics.inference:output_tokens_per_s",
    "peak_memory": "evaluator.metrics.memory:peak_memory",
    "communication_fraction": "evaluator.metrics.communication:communication_fraction",
    "exposed_communication_fraction": (
        "evaluator.metrics.communication:exposed_communication_fraction"
    ),
    "exposed_communication": "evaluator.metrics.communication:exposed_communication",
    "overlap_fraction": "evaluator.metrics.communication:overlap_fraction",
    "compute_fraction": "evaluator.metrics.communication:compute_fraction",
    "idle_fraction": "evaluator.metrics.communication:idle_fraction",
}


def metric(name: str) -> Metric:
    """The metric of this name. Raises MetricError when there is none, or it is broken."""
    known = _entries()
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
        raise MetricError(f"no metric is called {name!r}; {hint}")
    return _load(known[name])


def metric_names() -> tuple[str, ...]:
    """Every metric that can be asked for, in alphabetical order."""
    return tuple(sorted(_entries()))


def measure_all(evidence: Evidence) -> tuple[MetricValue, ...]:
    """Every metric that has an answer, by name. Raises MetricError for one that is not finite."""
    values = []
    for _, entry in sorted(_entries().items()):
        found = _load(entry)
        value = found.measure(evidence)
        if value is None:
            continue
        if not math.isfinite(value):
            raise MetricError(f"metric {found.name!r} ({entry.value}) gave {value}, not a number")
        values.append(
            MetricValue(
                name=found.name,
                value=value,
                unit=found.unit,
                better=found.better,
                version=found.version,
            )
        )
    return tuple(values)


def _entries() -> dict[str, EntryPoint]:
    entries = {name: EntryPoint(name, value, GROUP) for name, value in _BUILT_IN.items()}
    for entry in entry_points(group=GROUP):
        other = entries.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise MetricError(
                f"metric {entry.name!r} is defined twice, by {other.value} and by {entry.value}"
            )
    return entries


def _load(entry: EntryPoint) -> Metric:
    try:
        loaded: object = entry.load()
    except (ImportError, AttributeError) as error:
        raise MetricError(f"metric {entry.name!r} cannot be loaded: {error}") from error
    if not isinstance(loaded, Metric) or loaded.name != entry.name:
        raise MetricError(f"{entry.value} is no metric of the name {entry.name!r}")
    return loaded
