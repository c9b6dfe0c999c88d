"""The table of the trials of a study, as a page and for spreadsheets."""

import io
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from search.exporting.asked import Exported
from search.exporting.documents import trial_documents
from search.exporting.tables import write_csv
from search.service.edge.access import Reader, TheService
from search.service.lookups import attachment
from search.service.pages.rendering import page
from search.service.pages.trial_asked import TrialsAsked
from search.service.pages.trial_table import trial_table
from search.service.told import study_short

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
    found, total = service.records.trial_page(row.id, asked.query())
    return page(
        request,
        "trials.html",
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
    found, _ = records.trial_page(row.id, asked.query(limit=CSV_ROWS, offset=0))
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
