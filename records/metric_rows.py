"""Metrics as rows: what launches measured, what was computed afterwards, and the newest of both."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Literal

from records.codec import from_json
from records.computed import ComputedMetric, newest
from records.connection import Database
from records.rows import Row
from records.trial import MetricValue


def computed_columns(ordinal: int, metric: ComputedMetric) -> dict[str, object]:
    """Columns of one metric of a trial that was computed afterwards."""
    return {
        "ordinal": ordinal,
        "name": metric.name,
        "version": metric.version,
        "value": metric.value,
        "absent": metric.absent,
        "unit": metric.unit,
        "better": metric.better,
        "definition": metric.definition,
        "computed_at": metric.computed_at,
    }


def computed_metrics(
    db: Database, study_id: str, ordinal: int | None = None
) -> dict[int, tuple[ComputedMetric, ...]]:
    """What was computed afterwards of each trial, or of one; every version, by name and version."""
    found: dict[int, list[ComputedMetric]] = defaultdict(list)
    which, values = _where(study_id, ordinal)
    rows = db.query(
        f"select * from computed_metrics where {which} order by ordinal, name, version", values
    )
    for row in rows:
        found[int(row["ordinal"])].append(_computed(row))
    return {ordinal: tuple(metrics) for ordinal, metrics in found.items()}


def metric_values(
    db: Database, study_id: str, ordinal: int | None = None
) -> Mapping[int, tuple[MetricValue, ...]]:
    """The newest version of each metric of each trial, or of one, by its ordinal and by name."""
    measured = dict(_measured(db, study_id, ordinal))
    computed = computed_metrics(db, study_id, ordinal)
    return {
        number: newest(measured.get(number, ()), computed.get(number, ()))
        for number in sorted({*measured, *computed})
    }


def metric_definitions(db: Database) -> tuple[tuple[str, int, str], ...]:
    """Name, version and digest of every definition of the users' own that computed anything."""
    rows = db.query(
        "select distinct name, version, definition from computed_metrics"
        " where definition is not null order by name, version"
    )
    return tuple((str(r["name"]), int(r["version"]), str(r["definition"])) for r in rows)


def _measured(
    db: Database, study_id: str, ordinal: int | None
) -> Iterator[tuple[int, tuple[MetricValue, ...]]]:
    """What launches measured; only the outcome tells which way each metric is better."""
    which, values = _where(study_id, ordinal)
    rows = db.query(
        "select ordinal, json_extract(outcome, '$.metrics') as metrics from trials"
        f" where {which} and status = 'measured' order by ordinal",
        values,
    )
    for row in rows:
        kind = tuple[MetricValue, ...]
        yield int(row["ordinal"]), from_json(kind, str(row["metrics"] or "[]"))


def _where(study_id: str, ordinal: int | None) -> tuple[str, list[str | int]]:
    if ordinal is None:
        return "study_id = ?", [study_id]
    return "study_id = ? and ordinal = ?", [study_id, ordinal]


def _computed(row: Row) -> ComputedMetric:
    value, definition = row["value"], row["definition"]
    return ComputedMetric(
        name=str(row["name"]),
        version=int(row["version"] or 0),
        unit=str(row["unit"]),
        better=_better(row),
        value=None if value is None else float(value),
        absent=None if row["absent"] is None else str(row["absent"]),
        definition=None if definition is None else str(definition),
        computed_at=str(row["computed_at"]),
    )


def _better(row: Row) -> Literal["lower", "higher"]:
    return "higher" if row["better"] == "higher" else "lower"
