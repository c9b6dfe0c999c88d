"""The page on which the trials of a study are looked at from several sides at once."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from records.errors import StudyError
from records.rows import StudyRow
from search.service.edge.access import Reader, TheService
from search.service.facts.front import StudyFront
from search.service.pages.explored_charts import axis_name, front_charts, knob_chart, rows_of
from search.service.pages.rendering import drawing, page
from search.service.state import Service
from search.service.told import disturbed_in, study_short

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
