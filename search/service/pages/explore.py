"""The page that explores a study: its Pareto front, parallel coordinates, and a table of both."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Response

from records.errors import StudyError
from records.store.queries import TrialOutline
from records.store.rows import StudyRow
from records.store.store import Store
from search.service.data import Axis, FrontPoint, Interval, StudyFront, StudyKnobs, outlines_of
from search.service.pages.base import OneStudy, StudyPage, drawing
from search.views.charts import (
    ErrorBar,
    FrontMark,
    ParallelAxis,
    ParallelLine,
    front_chart,
    parallel_chart,
)
from search.views.format import format_flags, format_number, one_line
from search.views.svg import scale_of

router = APIRouter(include_in_schema=False)

LABEL_CHARS = 50
MIB = 2.0**20


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """A trial that the charts show, as a row: its values by axis, empty where it has none."""

    ordinal: int
    values: tuple[str, ...]
    launch_count: int
    settings: str
    on_front: bool
    is_best: bool
    failure: str | None


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
        fronts=[(words, drawing(svg)) for words, svg in _front_charts(front)],
        knobs=knobs,
        tried=drawing(_knob_chart(knobs)),
        rows=_rows(row, front, knobs, records),
        axis_name=_axis_name,
    )


def _metrics(at: StudyPage) -> list[str]:
    """Return what the objective can be drawn against: the metrics of the best trial."""
    best = at.best()
    if best is None:
        return []
    values = at.records.metric_values(at.row.id, best.ordinal).get(best.ordinal, ())
    return [each.name for each in values if each.name != at.row.study.objective.expression]


def _front_charts(front: StudyFront) -> Iterator[tuple[str, str]]:
    """Yield charts of the main axis against each other one, each with its description."""
    if len(front.axes) < 2 or not front.points:
        return
    main, *others = front.axes
    for place, other in enumerate(others, start=1):
        pairs = [_pair(point, front, place) for point in front.points]
        # What a trial costs is the x-axis, as readers expect; several objectives keep their order.
        across, upwards = (main, other) if front.is_multi_objective else (other, main)
        chart = front_chart(
            pairs, x_label=_label(across), y_label=_label(upwards), line=len(others) == 1
        )
        yield f"{_axis_name(upwards)} against {_axis_name(across)}", chart


def _pair(point: FrontPoint, front: StudyFront, place: int) -> FrontMark:
    main, other = (
        _reach(point.values[0], front.axes[0]),
        _reach(point.values[place], front.axes[place]),
    )
    return FrontMark(
        name=str(point.ordinal),
        x=main if front.is_multi_objective else other,
        y=other if front.is_multi_objective else main,
        on_front=point.on_front,
        is_limited=point.is_limited,
        tip=point.words,
        trial=point.ordinal,
    )


def _reach(value: Interval, axis: Axis) -> ErrorBar:
    size = MIB if axis.unit == "bytes" else 1.0
    ends = [None if end is None else end / size for end in (value.low, value.high)]
    return ErrorBar(centre=value.centre / size, low=ends[0], high=ends[1])


def _axis_name(axis: Axis) -> str:
    """Return an axis with the unit of its numbers here."""
    unit = "MiB" if axis.unit == "bytes" else axis.unit
    name = one_line(axis.name, LABEL_CHARS)
    return f"{name} ({unit})" if unit else name


def _label(axis: Axis) -> str:
    return f"{_axis_name(axis)}, {'lower' if axis.lower_is_better else 'higher'} is better"


def _knob_chart(found: StudyKnobs) -> str | None:
    """Draw configurations as lines; None where nothing was varied."""
    if len(found.knobs) < 2 or len(found.lines) < 2:
        return None
    values = [line.value for line in found.lines if line.value is not None]
    return parallel_chart(
        [
            ParallelAxis(name=knob.name, choices=tuple(map(str, knob.choices)))
            for knob in found.knobs
        ],
        [
            ParallelLine(
                places=line.places,
                value=line.value,
                rank=line.rank,
                is_best=line.ordinal == found.best,
                tip=line.words,
                trial=line.ordinal,
            )
            for line in found.lines
        ],
        scale_of(values, 0.0, 1.0),
        _axis_name(found.axis),
    )


def _rows(
    row: StudyRow, front: StudyFront, knobs: StudyKnobs, store: Store
) -> tuple[TrialRow, ...]:
    """Return every trial that a chart shows, the best first and the failed last."""
    points = {point.ordinal: point for point in front.points}
    drawn = {*points, *(line.ordinal for line in knobs.lines)}
    outlines = sorted(outlines_of(row, store, drawn), key=_rank)
    return tuple(_row(each, points.get(each.ordinal), front, knobs.best) for each in outlines)


def _rank(of: TrialOutline) -> tuple[bool, bool, float, int]:
    cost = 0.0 if of.cost is None else of.cost
    return of.cost is None, of.is_limited, cost, of.ordinal


def _row(
    of: TrialOutline, point: FrontPoint | None, front: StudyFront, best: int | None
) -> TrialRow:
    values = [""] * len(front.axes)
    if of.value is not None:
        values[0] = format_number(of.value)
    if point is not None:
        reached = zip(point.values, front.axes, strict=True)
        values = [format_number(_reach(value, axis).centre) for value, axis in reached]
    return TrialRow(
        ordinal=of.ordinal,
        values=tuple(values),
        launch_count=of.launch_count,
        settings="" if of.config is None else format_flags(of.config),
        on_front=point is not None and point.on_front,
        is_best=of.ordinal == best,
        failure=None if of.failure is None else of.failure.value.replace("_", " "),
    )
