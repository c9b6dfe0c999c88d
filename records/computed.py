"""What a metric's definition said of a trial that had ended long before."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from records.trial import Measured, MetricValue


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedMetric:
    """One metric of one trial: a `value`, or why it is `absent`; exactly one of them is there.

    `definition` is the SHA-256 of the source that defines the metric, None of one that comes with
    us: there the version says it all.
    """

    name: str
    version: int
    unit: str
    better: Literal["lower", "higher"]
    value: float | None
    absent: str | None
    definition: str | None
    computed_at: str

    def __post_init__(self) -> None:
        if (self.value is None) == (self.absent is None):
            raise ValueError(f"metric {self.name}: give a value, or why there is none")
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"metric {self.name}: {self.value} is no value")

    @property
    def told(self) -> MetricValue | None:
        """The value as trials hold it; None where there is none."""
        if self.value is None:
            return None
        return MetricValue(
            name=self.name,
            value=self.value,
            unit=self.unit,
            better=self.better,
            version=self.version,
        )


def newest(
    measured: Iterable[MetricValue], computed: Iterable[ComputedMetric]
) -> tuple[MetricValue, ...]:
    """The newest version of each metric, by name; what a newer one finds absent is left out."""
    values, _ = _newest(measured, computed)
    return values


def with_newest(outcome: Measured, computed: Iterable[ComputedMetric]) -> Measured:
    """The outcome with the newest version of each metric, and why those that are absent are."""
    values, absent = _newest(outcome.metrics, computed)
    named = {value.name for value in values}
    reasons = {name: why for name, why in outcome.absent.items() if name not in named}
    return replace(outcome, metrics=values, absent={**reasons, **absent})


def _newest(
    measured: Iterable[MetricValue], computed: Iterable[ComputedMetric]
) -> tuple[tuple[MetricValue, ...], dict[str, str]]:
    found = {value.name: value for value in measured}
    latest: dict[str, ComputedMetric] = {}
    for one in sorted(computed, key=lambda each: each.version):
        if one.name not in found or found[one.name].version <= one.version:
            latest[one.name] = one
    values = {name: value for name, value in found.items() if name not in latest}
    values |= {name: one.told for name, one in latest.items() if one.told is not None}
    absent = {name: one.absent for name, one in latest.items() if one.absent is not None}
    return tuple(value for _, value in sorted(values.items())), absent
