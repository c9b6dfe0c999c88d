"""Front and parallel coordinates.

What the page of exploring draws: marks that name their trials, and the rows beside them.

The page on which the trials of a study are looked at from several sides at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from records.errors import StudyError
from records.store.queries import TrialOutline
from records.store.rows import StudyRow
from records.store.store import Store
from search.service.access import Reader, TheService
from search.service.api.studies import disturbed_in, study_short
from search.service.data import Axis, FrontPoint, Interval, StudyFront, StudyKnobs, outlines_of
from search.service.pages.base import drawing, page
from search.service.service import Service
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

LABEL_CHARS = 50
MIB = 2.0**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A trial that the charts show, as a row: its values by axis, empty where it has none."""

    ordinal: int
    values: tuple[str, ...]
    launch_count: int
    settings: str
    on_front: bool
    is_best: bool
    failure: str | None


def front_charts(front: StudyFront) -> Iterator[tuple[str, str]]:
    """The main axis against each other one, with what the chart shows in words."""
    if len(front.axes) < 2 or not front.points:
        return
    main, *others = front.axes
    for place, other in enumerate(others, start=1):
        pairs = [_pair(point, front, place) for point in front.points]
        # What is taken lies across, as readers expect it; several objectives as they were asked.
        across, upwards = (main, other) if front.is_multi_objective else (other, main)
        chart = front_chart(
            pairs, x_label=_label(across), y_label=_label(upwards), line=len(others) == 1
        )
        yield f"{axis_name(upwards)} against {axis_name(across)}", chart


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


def axis_name(axis: Axis) -> str:
    """An axis with the unit that its numbers have here."""
    unit = "MiB" if axis.unit == "bytes" else axis.unit
    name = one_line(axis.name, LABEL_CHARS)
    return f"{name} ({unit})" if unit else name


def _label(axis: Axis) -> str:
    return f"{axis_name(axis)}, {'lower' if axis.lower_is_better else 'higher'} is better"


def knob_chart(found: StudyKnobs) -> str | None:
    """Configurations as lines; None where nothing was varied."""
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
        axis_name(found.axis),
    )


def rows_of(row: StudyRow, front: StudyFront, knobs: StudyKnobs, store: Store) -> tuple[Shown, ...]:
    """Every trial that a chart shows, the best first and the failed last."""
    points = {point.ordinal: point for point in front.points}
    drawn = {*points, *(line.ordinal for line in knobs.lines)}
    outlines = sorted(outlines_of(row, store, drawn), key=_rank)
    return tuple(_row(each, points.get(each.ordinal), front, knobs.best) for each in outlines)


def _rank(of: TrialOutline) -> tuple[bool, bool, float, int]:
    cost = 0.0 if of.cost is None else of.cost
    return of.cost is None, of.is_limited, cost, of.ordinal


def _row(of: TrialOutline, point: FrontPoint | None, front: StudyFront, best: int | None) -> Shown:
    values = [""] * len(front.axes)
    if of.value is not None:
        values[0] = format_number(of.value)
    if point is not None:
        reached = zip(point.values, front.axes, strict=True)
        values = [format_number(_reach(value, axis).centre) for value, axis in reached]
    return Shown(
        ordinal=of.ordinal,
        values=tuple(values),
        launch_count=of.launch_count,
        settings="" if of.config is None else format_flags(of.config),
        on_front=point is not None and point.on_front,
        is_best=of.ordinal == best,
        failure=None if of.failure is None else of.failure.value.replace("_", " "),
    )


router = APIRouter(include_in_schema=False)


@router.get("/studies/{study_id}/explore")
def explore(
    request: Request,
    study_id: str,
    service: TheService,
    _caller: Reader,
    against: Annotated[str, Query(max_length=120)] = "",
) -> Response:
    """What trials reached against what they take, what they set, and a table of the same."""
    row, records = service.study(study_id), service.records
    study = study_short(row, service)
    knobs = service.explored.knobs(row, records)
    front, problem = _front(row, against, service)
    tried = knob_chart(knobs)
    rows = rows_of(row, front, knobs, records)
    return page(
        request,
        "explore.html",
        disturbed=disturbed_in(row, service),
        study=study,
        tab="explore",
        problem=problem,
        metrics=_metrics(row, study.best_trial, service),
        front=front,
        fronts=[(words, drawing(svg)) for words, svg in front_charts(front)],
        knobs=knobs,
        tried=None if tried is None else drawing(tried),
        rows=rows,
        axis_name=axis_name,
    )


def _front(row: StudyRow, against: str, service: Service) -> tuple[StudyFront, str | None]:
    """What is drawn, and why it is not what was asked for where that is not there."""
    try:
        return service.explored.front(row, service.records, against or None), None
    except StudyError as error:
        return service.explored.front(row, service.records, None), str(error)


def _metrics(row: StudyRow, best: int | None, service: Service) -> list[str]:
    """What the objective can be drawn against: whatever the best trial was measured by."""
    if best is None:
        return []
    values = service.records.metric_values(row.id, best).get(best, ())
    return [value.name for value in values if value.name != row.study.objective.expression]
