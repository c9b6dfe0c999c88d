"""The page on which a study is submitted: its form, what was filled in, and what is wrong."""

import json
import secrets
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from evaluator.metrics.registry import loaded_metrics
from policies.contract import seed_names
from records.errors import StudyError
from records.study import Dimension, Study, Value, choices_of
from search.compose import MODEL_TURNS
from search.service.access import Submitter, TheService
from search.service.api.studies import create
from search.service.auth import Caller, TooManyError
from search.service.config import Limits
from search.service.pages.base import Fields, form_of, one, page
from search.service.service import (
    NewStudy,
    RefusedError,
    Service,
    faults_in,
    offered_study,
)
from search.settings import has_key
from search.strategies.catalog import CHOOSERS
from search.study.spaces import completed

WORK = ("global_batch", "sequence_length", "output_length")
COUNTS = ("trials", "patience", "max_tokens", "max_cost_usd", "parallel")
TEXTS = ("name", "strategy", "direction", "seed_policy", "seed_source")
KNOB = "knob."
MINUTE_S = 60.0
MOST_KEY_CHARS = 100


router = APIRouter(include_in_schema=False)


@router.get("/studies/new")
def new_study_page(
    request: Request, service: TheService, _caller: Submitter, environment: str = ""
) -> Response:
    """The form, with the choices of one environment."""
    return _form(request, service, {"environment": (environment,)} if environment else {}, {})


@router.post("/studies/new")
async def submit_page(request: Request, service: TheService, caller: Submitter) -> Response:
    """Submit what the form asks for and show it, or say what is wrong beside each field."""
    return await run_in_threadpool(_submitted, request, service, caller, await form_of(request))


def _submitted(request: Request, service: Service, caller: Caller, fields: Fields) -> Response:
    environment = _environment(service, fields)
    if "change" in fields:  # another environment was chosen, which has other knobs
        return RedirectResponse(f"/studies/new?environment={quote(environment)}", 303)
    base = offered_study(service.config.environment[environment], service.folder)
    key = one(fields, "key")[:MOST_KEY_CHARS] or None
    try:
        asked = NewStudy.model_validate(_facts(fields, base))
        entered = create(asked, service, caller, Response(), key)
    except TooManyError:
        raise
    except (ValidationError, StudyError) as error:
        problems = _problems(fields, base, service.config.limits, error)
        return _form(request, service, fields, problems)
    return RedirectResponse(f"/studies/{entered.id}", status_code=303)


def _environment(service: Service, fields: Fields) -> str:
    """Return the environment that a form is for; the first one unless it names another."""
    offered, asked = service.config.environment, one(fields, "environment")
    return asked if asked in offered else min(offered)


def _form(
    request: Request, service: Service, fields: Fields, problems: Mapping[str, str]
) -> Response:
    """Show the form with what was filled in; `problems` are shown next to their fields."""
    offered, environment = service.config.environment, _environment(service, fields)
    base = completed(offered_study(offered[environment], service.folder))
    loaded, _ = loaded_metrics()
    form = {
        "environment": environment,
        "environments": [(name, about.description) for name, about in sorted(offered.items())],
        "base": base,
        "knobs": _knobs(base, fields),
        "metrics": [
            (each.name, f"{each.unit}, {each.better} is better") for each in loaded.values()
        ],
        "strategies": (*MODEL_TURNS, *CHOOSERS),
        "seeds": seed_names(),
        "has_key": has_key(),
        "most_trials": service.config.limits.trials,
        "key": one(fields, "key") or secrets.token_urlsafe(16),
        "value": lambda name: "\n".join(fields.get(name, ())),
        "problems": problems,
    }
    return page(request, "new_study.html", status=422 if problems else 200, form=form)


def _facts(fields: Fields, base: Study) -> dict[str, object]:
    minutes = one(fields, "max_wall_min")
    facts: dict[str, object] = {
        "environment": one(fields, "environment"),
        "objectives": [*_lines(one(fields, "objective")), *_lines(one(fields, "more_objectives"))],
        "limits": _lines(one(fields, "limits")),
        "max_wall_s": _seconds(minutes) if minutes else None,
        "workload": {name: one(fields, name) or None for name in WORK},
        "choices": _narrowed(fields, base),
        **{name: one(fields, name) or None for name in (*COUNTS, *TEXTS)},
    }
    return {name: fact for name, fact in facts.items() if fact is not None}


def _problems(
    fields: Fields, base: Study, most: Limits, error: ValidationError | StudyError
) -> dict[str, str]:
    """Return the problems by field; those about no single field are under the empty name.

    The other fields are checked, too, where values cannot be read.
    """
    if isinstance(error, RefusedError):
        return dict(error.faults)
    if isinstance(error, StudyError):
        return {"": str(error)}
    found: dict[str, str] = {}
    facts = _facts(fields, base)
    for each in error.errors(include_url=False, include_input=False, include_context=False):
        found.setdefault(_field(each["loc"]), each["msg"])
        facts.pop(str(next(iter(each["loc"]), "")), None)
    return {**faults_in(NewStudy.model_validate(facts), base, most), **found}


def _field(location: Sequence[str | int]) -> str:
    names = {"objectives": "objective", "max_wall_s": "max_wall_min", "workload": "global_batch"}
    first = str(location[0]) if location else ""
    if first == "workload" and len(location) > 1:
        return str(location[1])
    return names.get(first, first)


def _seconds(minutes: str) -> float | str:
    try:
        return float(minutes) * MINUTE_S
    except ValueError:
        return minutes


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _knobs(base: Study, fields: Fields) -> list[dict[str, object]]:
    """Return knobs with each choice as it is sent, as it is shown, and whether it is checked."""
    is_new = not fields.get("key")
    return [
        {
            "name": dimension.name,
            "description": dimension.description,
            "choices": [
                (sent, str(choice), is_new or sent in fields.get(KNOB + dimension.name, ()))
                for sent, choice in _sent(dimension).items()
            ],
        }
        for dimension in base.space.dimensions
    ]


def _sent(dimension: Dimension) -> dict[str, Value]:
    """Return the choices of a knob by the text that a form sends for each."""
    return {json.dumps(choice): choice for choice in choices_of(dimension)}


def _narrowed(fields: Fields, base: Study) -> dict[str, list[Value | str]]:
    """Return the knobs of which not every choice is marked."""
    found: dict[str, list[Value | str]] = {}
    for dimension in completed(base).space.dimensions:
        name = KNOB + dimension.name
        if f"{name}.offered" in fields:
            by_text, marked = _sent(dimension), fields.get(name, ())
            if set(marked) != set(by_text):
                found[dimension.name] = [by_text.get(text, text) for text in marked]
    return found
