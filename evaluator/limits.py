"""Limits on metrics: what a measured trial must satisfy to lead, as in `peak_memory < 30 GiB`."""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from evaluator.metrics.base import Metric
from evaluator.readings import lacking, metrics_read
from records.errors import StudyError
from records.expression import Expression, ExpressionError, parse

UNITS: Final[Mapping[str, tuple[str, float]]] = {
    "B": ("size", 1.0),
    "KiB": ("size", 2.0**10),
    "MiB": ("size", 2.0**20),
    "GiB": ("size", 2.0**30),
    "TiB": ("size", 2.0**40),
    "kB": ("size", 1e3),
    "MB": ("size", 1e6),
    "GB": ("size", 1e9),
    "TB": ("size", 1e12),
    "us": ("time", 1e-6),
    "ms": ("time", 1e-3),
    "s": ("time", 1.0),
    "%": ("share", 0.01),
}
"""What a unit that numbers may have measures, and its size."""

_METRIC_UNITS: Final[Mapping[str, tuple[str, float]]] = {
    **UNITS,
    "bytes": ("size", 1.0),
    "fraction": ("share", 1.0),
    "ratio": ("share", 1.0),
}
_COMPARING = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq)
_WITH_UNIT = re.compile(
    r"(?<![\w.])((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z]+\b|%(?!\s*[\w(.]))"
)
"""A number and its unit; a % before another operand is the remainder."""

EXAMPLE: Final = "write it as in 'peak_memory < 30 GiB'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One limit, ready for use; `units` are those in which the metrics of it are told, by name."""

    text: str
    expression: Expression
    units: Mapping[str, tuple[str, float]]

    def broken(self, known: Mapping[str, float], absent: Mapping[str, str]) -> str | None:
        """How a trial breaks it, in words with numbers; None where it does not.

        What cannot be checked counts as broken: nobody knows that it holds.
        """
        missing, why = lacking(self.expression, known, absent)
        if missing:
            return f"{self.text} cannot be checked without {', '.join(missing)}{why}"
        try:
            if self.expression.holds(known):
                return None
        except ExpressionError as error:
            return f"{self.text} cannot be checked: {error}"
        told = (f"{name} is {self._words(name, known[name])}" for name in sorted(self.units))
        return f"{self.text} is broken: {', '.join(told)}"

    def _words(self, name: str, value: float) -> str:
        unit, size = self.units[name]
        return f"{value / size:.6g}{'' if unit == '%' else ' '}{unit}"


def limit(text: str, added: Sequence[Metric] = ()) -> Limit:
    """Check a limit; raises `StudyError` for an unknown metric or unit, or where none is said."""
    text = " ".join(text.split())
    try:
        return _checked(text, added)
    except StudyError as error:
        raise StudyError(f"limit {text!r}: {error}") from error


def _checked(text: str, added: Sequence[Metric]) -> Limit:
    units = {unit for _, unit in _WITH_UNIT.findall(text)}
    unknown = sorted(units - UNITS.keys())
    if unknown:
        raise StudyError(f"{unknown[0]!r} is no unit; known are {', '.join(UNITS)}")
    metrics = metrics_read(parse(_WITH_UNIT.sub(r"\1", text)), added)
    sizes = {unit: _size(unit, metrics) for unit in units}
    expression = parse(_WITH_UNIT.sub(lambda n: repr(float(n[1]) * sizes[n[2]]), text))
    match expression.body:
        case ast.Compare(ops=ops) if all(isinstance(op, _COMPARING) for op in ops):
            pass
        case _:
            raise StudyError(f"it compares nothing with <, <=, >, >= or ==; {EXAMPLE}")
    if not metrics:
        raise StudyError(f"it names no metric; {EXAMPLE}")
    told = {name: _told_in(metric, units) for name, metric in metrics.items()}
    return Limit(text=text, expression=expression, units=told)


def _size(unit: str, metrics: Mapping[str, Metric]) -> float:
    """How much of the metrics' own unit one of this unit is."""
    measures, size = UNITS[unit]
    own = [_METRIC_UNITS.get(metric.unit) for metric in metrics.values()]
    sizes = {each[1] for each in own if each is not None and each[0] == measures}
    if not sizes:
        told = ", ".join(f"{name} is in {metric.unit}" for name, metric in metrics.items())
        raise StudyError(f"{unit} is a unit of {measures}, but {told or 'no metric is named'}")
    if len(sizes) > 1:
        raise StudyError(f"its metrics have different units of {measures}; compare one at a time")
    return size / sizes.pop()


def _told_in(metric: Metric, units: set[str]) -> tuple[str, float]:
    """The unit that was written for such a metric, and how much of the metric's own one is."""
    own = _METRIC_UNITS.get(metric.unit)
    for unit in sorted(units):
        if own is not None and UNITS[unit][0] == own[0]:
            return unit, UNITS[unit][1] / own[1]
    return metric.unit, 1.0
