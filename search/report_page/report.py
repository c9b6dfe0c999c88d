"""All sections of a report in their order, those that this study's record can answer."""

from records.rows import StudyRow
from records.store import Store
from search.report_page.again import again
from search.report_page.asked import asked, outcome_words
from search.report_page.blocks import Page
from search.report_page.cost import cost
from search.report_page.course import course
from search.report_page.doubts import doubts
from search.report_page.failures import failures
from search.report_page.front import front
from search.report_page.knobs import parallel
from search.report_page.matters import matters
from search.report_page.policy import policy
from search.report_page.seen import Seen
from search.report_page.trials import trials
from search.report_page.where_time import where_time_went
from search.report_page.winner import winner
from search.words.objective import objective_words
from search.words.trial import one_line

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
