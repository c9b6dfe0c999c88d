"""The table of the trials of a study, as a page and for spreadsheets."""

import io
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from records.rows import StudyRow
from records.trial_pages import TrialQuery
from search.exporting.asked import Exported
from search.exporting.documents import trial_documents
from search.exporting.tables import write_csv
from search.service.edge.access import Reader, TheService
from search.service.facts.repeats import costs_again
from search.service.lookups import attachment
from search.service.pages.rendering import page
from search.service.pages.trial_asked import TrialsAsked
from search.service.pages.trial_table import trial_table
from search.service.state import Service
from search.service.told import disturbed_in, study_short

router = APIRouter(include_in_schema=False)

CSV_ROWS = 5000

Asked = Annotated[TrialsAsked, Query()]


@router.get("/studies/{study_id}/trials")
def trials(
    request: Request, study_id: str, service: TheService, _caller: Reader, asked: Asked
) -> Response:
    """The trials of a study, filtered, sorted and paged by the address."""
    row = service.study(study_id)
    study = study_short(row, service)
    found, total = service.records.trial_page(row.id, _query(row, asked, service))
    return page(
        request,
        "trials.html",
        disturbed=disturbed_in(row, service),
        study=study,
        tab="trials",
        asked=asked,
        total=total,
        most_csv=CSV_ROWS,
        table=trial_table(row, found, service.records, asked.columns, study.best_trial),
        kinds=[kind.value for kind in service.records.failures(row.id)],
        authors=sorted({trial.policy.author for trial in found}),
    )


@router.get("/studies/{study_id}/trials.csv")
def trials_as_csv(study_id: str, service: TheService, _caller: Reader, asked: Asked) -> Response:
    """The first rows of the same for a spreadsheet, with every column of an export."""
    row, records = service.study(study_id), service.records
    query = replace(_query(row, asked, service), limit=CSV_ROWS, offset=0)
    found, _ = records.trial_page(row.id, query)
    metrics = {
        trial.ordinal: records.metric_values(row.id, trial.ordinal).get(trial.ordinal, ())
        for trial in found
    }
    documents = trial_documents(Exported(row=row, trials=found, repeats=(), metrics=metrics))
    written = io.BytesIO()
    write_csv(documents, written)
    return Response(
        written.getvalue(),
        media_type="text/csv; charset=utf-8",
        headers={"content-disposition": attachment(f"{row.id}-trials.csv")},
    )


def _query(row: StudyRow, asked: TrialsAsked, service: Service) -> TrialQuery:
    """What is asked, with what counts of trials that were launched again where that sorts them."""
    query = asked.query()
    if query.sort != "score":
        return query
    return replace(query, costs=costs_again(row, service.records))
