"""The history of a study in a word's height, drawn again only when its records have changed."""

from markupsafe import Markup

from records.errors import StudyError
from records.rows import StudyRow
from search.charts.sparkline import sparkline
from search.service.pages.rendering import drawing
from search.service.state import Service


def spark_of(study_id: str, service: Service) -> Markup:
    """The best so far of a study, trial by trial; nothing where none was measured."""
    row = service.study(study_id)
    stamp = service.records.stamp(study_id)
    return drawing(service.drawings.get((study_id, "spark"), stamp, lambda: _drawn(row, service)))


def _drawn(row: StudyRow, service: Service) -> str:
    try:
        history = service.explored.history(row, service.records)
    except StudyError:  # a record from elsewhere may name metrics that are not known here
        return ""
    steps = [(each.ordinal, each.value) for each in history.best_so_far]
    return sparkline(steps, history.total - 1, lower_is_better=history.axis.lower_is_better)
