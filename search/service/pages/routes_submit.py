"""The page on which a study is submitted."""

from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from records.errors import StudyError
from search.service.callers.roles import Caller
from search.service.edge.access import Submitter, TheService
from search.service.pages.forms import Fields, form_of, one
from search.service.pages.rendering import page
from search.service.pages.study_form import asked_in, problems_in, study_form
from search.service.routes.queue import create
from search.service.state import Service, TooManyError

router = APIRouter(include_in_schema=False)

MOST_KEY_CHARS = 100


@router.get("/studies/new")
def new_study_page(
    request: Request, service: TheService, _caller: Submitter, environment: str = ""
) -> Response:
    """The form, with the choices of one environment."""
    fields = {"environment": (environment,)} if environment else {}
    return _shown(request, service, fields, {})


@router.post("/studies/new")
async def submit_page(request: Request, service: TheService, caller: Submitter) -> Response:
    """Submit what the form asks for and show it, or say what is wrong beside each field."""
    return await run_in_threadpool(_submitted, request, service, caller, await form_of(request))


def _submitted(request: Request, service: Service, caller: Caller, fields: Fields) -> Response:
    form = study_form(service, fields, {})
    if "change" in fields:  # another environment was chosen, which has other knobs
        return RedirectResponse(f"/studies/new?environment={quote(form.environment)}", 303)
    key = one(fields, "key")[:MOST_KEY_CHARS] or None
    try:
        entered = create(asked_in(fields, form.base), service, caller, Response(), key)
    except TooManyError:
        raise
    except (ValidationError, StudyError) as error:
        return _shown(request, service, fields, problems_in(service, form, fields, error))
    return RedirectResponse(f"/studies/{entered.id}", status_code=303)


def _shown(
    request: Request, service: Service, fields: Fields, problems: dict[str, str]
) -> Response:
    form = study_form(service, fields, problems)
    return page(request, "new_study.html", status=422 if problems else 200, form=form)
