"""The trials of a study: a table, filtered, sorted and paged, and their charts to explore."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Response
from pydantic import Field, model_validator

from records.errors import StudyError
from records.store.queries import KNOB, METRIC, TrialOutline
from records.store.rows import StudyRow
from records.store.store import Store
from records.study import Dimension, choices_of
from records.trial import Measured, MetricValue, Trial
from search.report.analysis import shown_metrics
from search.report.explored import (
    FrontPoint,
    StudyFront,
    StudyKnobs,
    are_too_many,
    draw_fronts,
    draw_knobs,
    outlines_of,
    repeat_spreads,
    spread_of_trial,
)
from search.service.api.trials import TrialListQuery, attachment
from search.service.data import disturbed_trials
from search.service.pages.base import OneStudy, StudyPage, drawing
from search.transfer.tables import StudyExport, trial_documents, write_csv
from search.views.format import format_flags, format_number, one_line
from search.views.trial import ListedTrial, known_numbers, trial_table

router = APIRouter(include_in_schema=False)

MOST_KNOBS, MOST_METRICS = 8, 4
CSV_ROWS = 5000
SORTS = {"ordinal": "ordinal", "result": "score", "author": "author", "remarks": "kind"}
"""What the table is sorted by under the headings of columns, besides knobs and metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A knob or a metric; `key` is what the table is sorted by."""

    key: str
    name: str
    is_shown: bool


class TrialTableQuery(TrialListQuery):
    """The same with the columns of a table; a form sends empty fields.

    `columns` are `config.KNOB` and `metric.NAME`; without any the page chooses.
    """

    columns: Annotated[list[Annotated[str, Field(max_length=120)]], Field(max_length=200)] = Field(
        default_factory=list
    )

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, given: dict[str, object]) -> dict[str, object]:
        return {name: value for name, value in given.items() if value != ""}

    @property
    def is_filtered(self) -> bool:
        """Whether it selects some of the trials only."""
        return bool(self.status or self.kind or self.author or self.text)

    def address(self, **changes: str | int) -> str:
        """Return the query string of the same table with these changes, from its first row."""
        asked = {**self.model_dump(mode="json", exclude_defaults=True), "offset": 0, **changes}
        return "?" + urlencode({k: v for k, v in asked.items() if v not in ("", 0)}, doseq=True)

    @property
    def paged(self) -> str:
        """The start of the query string of another page; the offset follows."""
        asked = self.address()
        return asked if asked == "?" else f"{asked}&"

    def sorted_by(self, column: str) -> str:
        """Return the query string that sorts by a column, reversed where it is sorted by it."""
        turned = self.sort == column and self.order == "up"
        return self.address(sort=column, order="down" if turned else "up")

    def direction(self, column: str) -> str | None:
        """Return how the table is sorted by a column, as ARIA names it; None where it is not."""
        if self.sort != column:
            return None
        return "ascending" if self.order == "up" else "descending"


Asked = Annotated[TrialTableQuery, Query()]


@router.get("/studies/{study_id}/trials")
def trials(at: OneStudy, asked: Asked) -> Response:
    """Show the trials of a study, filtered, sorted and paged by the address."""
    row, records, best = at.row, at.records, at.best()
    found, total = records.trial_page(row.id, asked.to_store(row, records))
    return at.page(
        "trials.html",
        "trials",
        asked=asked,
        total=total,
        most_csv=CSV_ROWS,
        table=_trial_table(row, found, records, asked.columns, best.ordinal if best else None),
        kinds=[kind.value for kind in records.failures(row.id)],
        authors=sorted({trial.policy.author for trial in found}),
    )


@router.get("/studies/{study_id}/trials.csv")
def trials_as_csv(at: OneStudy, asked: Asked) -> Response:
    """Send the first rows of the same for a spreadsheet, with every column of an export."""
    row, records = at.row, at.records
    query = replace(asked.to_store(row, records), limit=CSV_ROWS, offset=0)
    found, _ = records.trial_page(row.id, query)
    metrics = {
        trial.ordinal: records.metric_values(row.id, trial.ordinal).get(trial.ordinal, ())
        for trial in found
    }
    documents = trial_documents(StudyExport(row=row, trials=found, repeats=(), metrics=metrics))
    written = io.BytesIO()
    write_csv(documents, written)
    return Response(
        written.getvalue(),
        media_type="text/csv; charset=utf-8",
        headers={"content-disposition": attachment(f"{row.id}-trials.csv")},
    )


def _trial_table(
    row: StudyRow, trials: Sequence[Trial], store: Store, asked: Sequence[str], best: int | None
) -> dict[str, object]:
    """Return the table of these trials with the columns asked for, or with a default choice."""
    metrics = {
        trial.ordinal: store.metric_values(row.id, trial.ordinal).get(trial.ordinal, ())
        for trial in trials
        if isinstance(trial.outcome, Measured)
    }
    again, disturbed = repeat_spreads(row, store), disturbed_trials(trials, row, store)
    columns = _columns(row, trials, metrics, asked)
    shown = {column.key: column.name for column in columns if column.is_shown}
    headings = {
        "ordinal": "Trial",
        "result": one_line(row.study.objective.expression, 60),
        "launches": "Launches",
        **shown,
        **{fact.key: fact.heading for fact in known_numbers(trials)},
        "author": "By",
        "remarks": "Notes",
    }
    listed = (
        ListedTrial(
            trial=trial,
            reached=spread_of_trial(trial, again),
            metrics={value.name: value for value in metrics.get(trial.ordinal, ())},
            disturbed=disturbed.get(trial.ordinal),
            is_best=trial.ordinal == best,
        )
        for trial in trials
    )
    return {
        "choices": columns,
        "keys": [*headings],
        "sorts": {**SORTS, **{key: key for key in shown}},
        "shown": trial_table("", headings, listed),
        "is_first_only": are_too_many(row, store),
    }


def _columns(
    row: StudyRow,
    trials: Sequence[Trial],
    metrics: Mapping[int, Sequence[MetricValue]],
    asked: Sequence[str],
) -> tuple[Column, ...]:
    configs = [trial.config.values for trial in trials if trial.config is not None]
    dimensions = {dimension.name: dimension for dimension in row.study.space.dimensions}
    knobs = dict.fromkeys([*dimensions, *(name for config in configs for name in config)])
    names = sorted({value.name for values in metrics.values() for value in values})
    own = [key.removeprefix(METRIC) for key in asked if key.startswith(METRIC)]
    names += [name for name in own if name not in names]
    varied = [name for name, dimension in dimensions.items() if _is_varied(dimension)]
    chosen = set(asked) or {
        *(f"{KNOB}{name}" for name in varied[:MOST_KNOBS]),
        *(f"{METRIC}{name}" for name in shown_metrics(row.study, metrics, MOST_METRICS)),
    }
    keys = [*((KNOB, name) for name in knobs), *((METRIC, name) for name in names)]
    return tuple(
        Column(key=f"{kind}{name}", name=name, is_shown=f"{kind}{name}" in chosen)
        for kind, name in keys
    )


def _is_varied(dimension: Dimension) -> bool:
    try:
        return len(choices_of(dimension)) > 1
    except StudyError:  # an imported record, which lists no choices
        return True


@router.get("/studies/{study_id}/explore")
def explore(at: OneStudy, against: Annotated[str, Query(max_length=120)] = "") -> Response:
    """Show results against what they cost, configurations as lines, and a table of the same."""
    row, records, explored = at.row, at.records, at.service.explored
    knobs, problem = explored.knobs(row, records), None
    try:
        front = explored.front(row, records, against or None)
    except StudyError as error:
        front, problem = explored.front(row, records), str(error)
    return at.page(
        "explore.html",
        "explore",
        problem=problem,
        metrics=_metrics(at),
        front=front,
        fronts=[(words, drawing(svg)) for words, svg in draw_fronts(front)],
        knobs=knobs,
        tried=drawing(draw_knobs(knobs)),
        rows=_rows(row, front, knobs, records),
        axis_names=[axis.shown.label for axis in front.axes],
    )


def _metrics(at: StudyPage) -> list[str]:
    """Return what the objective can be drawn against: the metrics of the best trial."""
    best = at.best()
    if best is None:
        return []
    values = at.records.metric_values(at.row.id, best.ordinal).get(best.ordinal, ())
    return [each.name for each in values if each.name != at.row.study.objective.expression]


def _rows(
    row: StudyRow, front: StudyFront, knobs: StudyKnobs, store: Store
) -> list[dict[str, object]]:
    """Return every trial that a chart shows, the best first and the failed last."""
    points = {point.ordinal: point for point in front.points}
    drawn = {*points, *(line.ordinal for line in knobs.lines)}
    outlines = sorted(
        outlines_of(row, store, drawn),
        key=lambda of: (of.cost is None, of.is_limited, of.cost or 0.0, of.ordinal),
    )
    return [
        {
            "ordinal": each.ordinal,
            "values": _values(each, points.get(each.ordinal), front),
            "launch_count": each.launch_count,
            "settings": "" if each.config is None else format_flags(each.config),
            "on_front": each.ordinal in points and points[each.ordinal].on_front,
            "is_best": each.ordinal == knobs.best,
            "failure": None if each.failure is None else each.failure.value.replace("_", " "),
        }
        for each in outlines
    ]


def _values(of: TrialOutline, point: FrontPoint | None, front: StudyFront) -> list[str]:
    """Return the values of a trial by axis, empty where it has none."""
    if point is not None:
        reached = zip(point.values, front.axes, strict=True)
        return [format_number(value.shown(axis).centre) for value, axis in reached]
    value = "" if of.value is None else format_number(of.value)
    return [value] + [""] * (len(front.axes) - 1)
