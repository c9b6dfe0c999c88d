"""The page on which a study is submitted: its form, what was filled in, and what is wrong."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from evaluator.metrics.registry import loaded_metrics
from policies.contract import seed_names
from records.errors import StudyError
from records.study import Study, Value, choices_of
from search.compose import MODEL_TURNS
from search.service.access import Submitter, TheService
from search.service.api.studies import create
from search.service.auth import Caller
from search.service.pages.base import Fields, form_of, one, page
from search.service.service import (
    NewStudy,
    RefusedError,
    Service,
    TooManyError,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobChoices:
    """A knob with its choices, each as it is sent and as it is shown, and whether it is checked."""

    name: str
    description: str
    choices: tuple[tuple[str, str, bool], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyForm:
    """Everything that the page of a new study shows; `problems` are shown next to their fields."""

    environment: str
    environments: tuple[tuple[str, str], ...]
    base: Study
    knobs: tuple[KnobChoices, ...]
    metrics: tuple[tuple[str, str], ...]
    strategies: tuple[str, ...]
    seeds: tuple[str, ...]
    has_key: bool
    most_trials: int
    key: str
    values: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)

    def value(self, name: str) -> str:
        """What was filled in; empty for nothing."""
        return self.values.get(name, "")


def study_form(service: Service, fields: Fields, problems: Mapping[str, str]) -> StudyForm:
    """The form with what was filled in; raises `StudyError` where no environment can be read."""
    offered = service.config.environment
    asked = one(fields, "environment")
    name = asked if asked in offered else min(offered)
    base = completed(offered_study(offered[name], service.folder))
    loaded, _ = loaded_metrics()
    return StudyForm(
        environment=name,
        environments=tuple((each, about.description) for each, about in sorted(offered.items())),
        base=base,
        knobs=tuple(_knobs(base, fields)),
        metrics=tuple(
            (each.name, f"{each.unit}, {each.better} is better") for each in loaded.values()
        ),
        strategies=(*MODEL_TURNS, *CHOOSERS),
        seeds=seed_names(),
        has_key=has_key(),
        most_trials=service.config.limits.trials,
        key=one(fields, "key") or secrets.token_urlsafe(16),
        values={name: "\n".join(values) for name, values in fields.items()},
        problems=problems,
    )


def asked_in(fields: Fields, base: Study) -> NewStudy:
    """What a form asks for; an empty field asks for nothing. Raises `ValidationError`."""
    return NewStudy.model_validate(_facts(fields, base))


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


def problems_in(
    service: Service, form: StudyForm, fields: Fields, error: ValidationError | StudyError
) -> dict[str, str]:
    """Return the problems by field; those about no single field are under the empty name.

    The other fields are checked, too, where values cannot be read.
    """
    if isinstance(error, RefusedError):
        return dict(error.faults)
    if isinstance(error, StudyError):
        return {"": str(error)}
    found: dict[str, str] = {}
    facts = _facts(fields, form.base)
    for each in error.errors(include_url=False, include_input=False, include_context=False):
        found.setdefault(_field(each["loc"]), each["msg"])
        facts.pop(str(next(iter(each["loc"]), "")), None)
    base = offered_study(service.config.environment[form.environment], service.folder)
    rest = faults_in(NewStudy.model_validate(facts), base, service.config.limits)
    return {**rest, **found}


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


def _knobs(base: Study, fields: Fields) -> list[KnobChoices]:
    is_new = not fields.get("key")
    return [
        KnobChoices(
            name=dimension.name,
            description=dimension.description,
            choices=tuple(
                (sent, str(choice), is_new or sent in fields.get(KNOB + dimension.name, ()))
                for choice in choices_of(dimension)
                for sent in [json.dumps(choice)]
            ),
        )
        for dimension in base.space.dimensions
    ]


def _narrowed(fields: Fields, base: Study) -> dict[str, list[Value | str]]:
    """Knobs of which not every choice is marked."""
    found: dict[str, list[Value | str]] = {}
    known = {each.name: choices_of(each) for each in base.space.dimensions}
    for name, offered in known.items():
        if f"{KNOB}{name}.offered" not in fields:
            continue
        by_text: dict[str, Value] = {json.dumps(choice): choice for choice in offered}
        marked = fields.get(KNOB + name, ())
        if set(marked) != set(by_text):
            found[name] = [by_text.get(text, text) for text in marked]
    return found


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
