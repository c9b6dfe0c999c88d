"""The page of a study, which follows its search; and what can be done with it."""

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from evaluator.objective import scoring_of
from records.errors import StudyError, shown
from search.report_page.asked import question_facts, work_facts
from search.service.edge.access import Reader, Submitter, TheService
from search.service.pages.forms import form_of, one
from search.service.pages.happening import happening
from search.service.pages.rendering import drawing, page
from search.service.pages.study_facts import (
    MOST_MARKS,
    failures,
    found_lines,
    history_drawing,
    judged_lines,
    model_lines,
    spent,
)
from search.service.routes.queue import MoreTrials, cancel, resume
from search.service.runs.table import UNDER_WAY
from search.service.told import disturbed_in, study_full
from search.words.objective import objective_words

router = APIRouter(include_in_schema=False)

JUDGED = frozenset({"noise", "race"})
SAID_AT_ONCE = 60
MORE_TRIALS = 5


@router.get("/studies/{study_id}")
def study_page(study_id: str, request: Request, service: TheService, _caller: Reader) -> Response:
    """One study: what it does now, what it reached, what it took, what failed."""
    row, records = service.study(study_id), service.records
    found = study_full(row, service)
    events = service.events(study_id)
    goes_on = found.status in UNDER_WAY
    now = happening(events, row.study.measure)
    judged = judged_lines(row) or tuple(
        (each.kind, each.words) for each in reversed(now.said) if each.kind in JUDGED
    )
    return page(
        request,
        "study.html",
        disturbed=disturbed_in(row, service),
        tab="overview",
        study=found,
        goes_on=goes_on,
        now=now,
        said=now.said[:SAID_AT_ONCE],
        has_events=events.exists(),
        asked=objective_words(row.study),
        work=tuple(work_facts(row.study)),
        question=tuple(question_facts(row.study, row.strategy, scoring_of(row.study))),
        chart=drawing(history_drawing(row, service)),
        spent=tuple(spent(row, records, is_over=not goes_on)),
        failures=tuple(failures(row, records)),
        models=model_lines(row, records),
        judged=judged,
        finding=found_lines(row, records),
        more_trials=MORE_TRIALS,
        most_marks=MOST_MARKS,
    )


@router.post("/studies/{study_id}/cancel")
def cancel_from_page(study_id: str, service: TheService, caller: Submitter) -> Response:
    """End a study and show it."""
    cancel(study_id, service, caller)
    return RedirectResponse(f"/studies/{study_id}", status_code=303)


@router.post("/studies/{study_id}/resume")
async def resume_from_page(
    study_id: str, request: Request, service: TheService, caller: Submitter
) -> Response:
    """Go on with a study and show it; an empty number of trials asks for no more of them."""
    asked = one(await form_of(request), "more_trials")
    try:
        how = MoreTrials.model_validate({"more_trials": asked}) if asked else None
    except ValidationError as error:
        raise StudyError(
            f"{shown(asked)} is no number of trials; give a whole one from 1 on"
        ) from error
    await run_in_threadpool(resume, study_id, service, caller, how)
    return RedirectResponse(f"/studies/{study_id}", status_code=303)
