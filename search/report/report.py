"""All sections of a report in their order, those that this study's record can answer."""

from records.store.rows import StudyRow
from records.store.store import Store
from search.report.analysis import cost_section, importance_section, time_section, trials_section
from search.report.data import ReportData
from search.report.outcome import (
    best_section,
    failures_section,
    front_section,
    history_section,
)
from search.report.question import (
    knobs_section,
    outcome_words,
    policy_section,
    reproduce_section,
    study_section,
)
from search.traces.view import trial_timeline
from search.views.document import Document
from search.views.format import one_line
from search.views.study import objective_words

TITLE_CHARS = 160


def study_report(row: StudyRow, store: Store, store_flag: str) -> Document:
    """The report of a stored study; `store_flag` is what commands need to find it."""
    data = ReportData.of(row, store, store_flag)
    timeline = [] if data.best is None else trial_timeline(row, data.best, store)
    sections = (
        study_section(data),
        best_section(data),
        history_section(data),
        front_section(data),
        knobs_section(data),
        importance_section(data.space, data.history, data.scoring.sign),
        time_section(data.history, data.best, timeline),
        trials_section(data),
        failures_section(data),
        cost_section(data),
        policy_section(data),
        reproduce_section(data),
    )
    return Document(
        title=one_line(f"{row.study.name}: the best by {objective_words(row.study)}", TITLE_CHARS),
        lead=outcome_words(data),
        sections=tuple(section for section in sections if section is not None),
    )
