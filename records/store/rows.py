"""What the store's tables hold that is no trial; combine measured and computed metrics."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

from records.codec import from_fields, from_json
from records.errors import StudyError, shown
from records.llm_exchange import ExchangeSummary
from records.machine import NodeRecord
from records.study import Study
from records.trial import Config, Measured, MetricValue, Policy

MOST_TAGS, TAG_CHARS, NOTES_CHARS = 20, 40, 10_000
Row: TypeAlias = Mapping[str, str | int | float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What people add to a study: tags in alphabetical order, notes, and whether it is archived."""

    tags: tuple[str, ...] = ()
    notes: str = ""
    archived: bool = False

    def __post_init__(self) -> None:
        if len(self.tags) > MOST_TAGS:
            raise ValueError(f"{len(self.tags)} tags are too many; give at most {MOST_TAGS}")
        for tag in self.tags:
            if not re.fullmatch(rf"[\w.:/+-]{{1,{TAG_CHARS}}}", tag):
                raise ValueError(
                    f"{shown(tag)} is not a tag; it has letters, digits and . : / + - _ only, at "
                    f"most {TAG_CHARS}"
                )
        if len(self.notes) > NOTES_CHARS:
            raise ValueError(f"the notes are {len(self.notes)} characters, max {NOTES_CHARS}")

    def change(
        self,
        *,
        tags: Iterable[str] | None = None,
        notes: str | None = None,
        archived: bool | None = None,
    ) -> "Labels":
        """Return the labels with what is given; raise `StudyError` for what cannot be stored."""
        try:
            return Labels(
                tags=self.tags if tags is None else tuple(sorted(set(tags))),
                notes=self.notes if notes is None else "\n".join(notes.strip().splitlines()),
                archived=self.archived if archived is None else archived,
            )
        except ValueError as error:
            raise StudyError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """A stored study as listings show it."""

    id: str
    strategy: str
    status: str
    created_at: str
    study: Study
    summary: str | None
    labels: Labels = Labels()


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTrial:
    """A trial that was proposed and has not ended: an entry of journals before its launch.

    `exchange` is the digest of the conversation that proposed it, and `exchange_summary` what it
    cost, if it was held for this trial.
    """

    kind: ClassVar[str] = "trial_begun"

    ordinal: int
    policy: Policy
    started_at: str
    exchange: str | None = None
    exchange_summary: ExchangeSummary | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRun:
    """One run of a study's search: the study it ran, and what was recorded when it started.

    `begun` counts the pending trials of earlier runs. `node_s` is how long it held nodes, in
    seconds times nodes; None where that is not counted. `nodes` are those of a cluster that it was
    given, `job_id` is the scheduler's job that it ran in, if any.
    """

    trials: int
    repeats: int
    begun: int
    study: Study
    node_s: float | None = None
    nodes: tuple[NodeRecord, ...] = ()
    job_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCounts:
    """How much is recorded of a study, without reading it.

    `launches` counts all launches, `repeats` those of them that repeat a trial.
    """

    trials: int = 0
    measured: int = 0
    launches: int = 0
    repeats: int = 0

    @property
    def failed(self) -> int:
        """Trials that went wrong."""
        return self.trials - self.measured


def to_study_row(row: Row) -> StudyRow:
    """Study as listings show it."""
    labels = from_json(Labels, str(row["labels"])) if row["labels"] else Labels()
    fields = {**row, "study": from_json(Study, str(row["study"])), "labels": labels}
    return from_fields(StudyRow, fields)


def to_config(text: object) -> Config | None:
    """Configuration from its stored text, if it has any."""
    return Config(json.loads(str(text))) if text else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedMetric:
    """One metric of one trial: either its `value` or why it is `absent`.

    `definition` is the SHA-256 of the source that defines the metric; None for built-in metrics,
    which their version identifies.
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
            raise ValueError(f"metric {self.name}: {self.value} is not a finite number")

    @property
    def metric_value(self) -> MetricValue | None:
        """The value as trials hold it; None if it is absent."""
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
    """The outcome with the newest version of each metric, or why it is absent."""
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
    values |= {
        name: one.metric_value for name, one in latest.items() if one.metric_value is not None
    }
    absent = {name: one.absent for name, one in latest.items() if one.absent is not None}
    return tuple(value for _, value in sorted(values.items())), absent
