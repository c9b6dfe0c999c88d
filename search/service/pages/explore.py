"""The page that explores a study: its Pareto front, parallel coordinates, and a table of both."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from records.errors import StudyError
from records.store.queries import TrialOutline
from records.store.rows import StudyRow
from records.store.store import Store
from search.report.explored import (
    FrontPoint,
    StudyFront,
    StudyKnobs,
    draw_fronts,
    draw_knobs,
    outlines_of,
)
from search.service.pages.base import OneStudy, StudyPage, drawing
from search.views.format import format_flags, format_number

router = APIRouter(include_in_schema=False)


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
