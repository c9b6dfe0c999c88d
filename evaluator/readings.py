"""What an expression over metrics reads of a launch: its metrics, and those that the seed had."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from evaluator.metrics.base import Metric
from evaluator.metrics.registry import ALIASES, metric
from records.expression import Expression
from records.trial import MetricValue

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
AT_SEED: Final = "@seed"

Baseline: TypeAlias = Sequence[MetricValue] | None
"""Metrics of the seed; None while nothing was measured."""


def metrics_read(expression: Expression, added: Sequence[Metric] = ()) -> Mapping[str, Metric]:
    """The metric behind each name in an expression. Raises `MetricError` for an unknown one."""
    return {name: metric(name.removesuffix(AT_SEED), added) for name in sorted(expression.names)}


def readings(metrics: Sequence[MetricValue], seed: Baseline) -> Mapping[str, float]:
    """Values by every name that an expression may use."""
    at_seed = {f"{name}{AT_SEED}": value for name, value in _by_name(seed or ()).items()}
    return {**_by_name(metrics), **at_seed}


def lacking(
    expression: Expression, known: Mapping[str, float], absent: Mapping[str, str]
) -> tuple[tuple[str, ...], str]:
    """Names that have no value, and why in parentheses as far as `absent` tells, by metric."""
    missing = tuple(sorted(expression.names - known.keys()))
    reasons = {name: _reason(name, absent) for name in missing}
    why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason)
    return missing, f" ({why})" if why else ""


def _reason(name: str, absent: Mapping[str, str]) -> str | None:
    if name.endswith(AT_SEED):
        return "the seed has no value of it"
    return absent.get(name) or absent.get(ALIASES.get(name, name))


def _by_name(metrics: Sequence[MetricValue]) -> dict[str, float]:
    values = {value.name: value.value for value in metrics}
    aliased = {alias: values[name] for alias, name in ALIASES.items() if name in values}
    return {**aliased, **values}
