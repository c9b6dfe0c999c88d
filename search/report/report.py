"""All sections of a report in their order, those that this study's record can answer."""

from records.store.rows import StudyRow
from records.store.store import Store
from search.report.analysis import cost, matters, trials, where_time_went
from search.report.data import Seen
from search.report.outcome import course, doubts, failures, front, winner
from search.report.question import again, asked, outcome_words, parallel, policy
from search.views.document import Page
from search.views.format import one_line
from search.views.study import objective_words

TITLE_CHARS = 160


def study_report(row: StudyRow, store: Store, store_flag: str) -> Page:
    """The report of a study on record; `store_flag` is what commands need to find it."""
    seen = Seen.of(row, store, store_flag)
    sections = (
        asked(seen),
        winner(seen),
        course(seen),
        front(seen),
        parallel(seen),
        matters(seen),
        where_time_went(seen),
        trials(seen),
        failures(seen),
        cost(seen),
        policy(seen),
        doubts(seen),
        again(seen),
    )
    return Page(
        title=one_line(f"{row.study.name}: the best by {objective_words(row.study)}", TITLE_CHARS),
        lead=outcome_words(seen),
        sections=tuple(section for section in sections if section is not None),
    )
