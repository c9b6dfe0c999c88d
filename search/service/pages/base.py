"""What all pages share: templates, filters, forms, error pages and static files.

Every text in a template is escaped, and control characters are replaced by printable signs.
"""

from collections.abc import Mapping
from functools import cache, cached_property
from hashlib import sha256
from importlib.resources import files
from typing import Annotated, TypeAlias
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment
from markupsafe import Markup

from records.store.rows import StudyRow
from records.store.store import Store
from records.trial import Trial
from search.service.access import Reader, TheService, caller_in
from search.service.api.studies import study_short
from search.service.auth import Role
from search.service.service import MissingError, Service
from search.views.console import plain
from search.views.document import metric_words
from search.views.format import (
    format_count,
    format_decimal_bytes,
    format_elapsed,
    format_instant,
    format_number,
    one_line,
)
from search.views.html import environment
from search.views.machine import disturbed_words
from search.views.svg import view_file
from search.views.trial import NOT_SET

router = APIRouter(include_in_schema=False)

MOST_FIELDS = 2000
HEADINGS = {
    400: "That request makes no sense",
    401: "Please sign in",
    403: "You may not do that",
    404: "There is nothing here",
    405: "That does not work here",
    409: "That does not fit any more",
    413: "That is too large",
    422: "That does not work like this",
    429: "Too many requests",
    503: "The records cannot be used now",
}
KINDS = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
A_YEAR = "public, max-age=31536000, immutable"

Fields: TypeAlias = Mapping[str, tuple[str, ...]]


@router.get("/")
def home(_caller: Reader) -> Response:
    """Show the first page."""
    return RedirectResponse("/studies", status_code=303)


@router.get("/static/{_version}/{name}")
def static(_version: str, name: str) -> Response:
    """Send a style sheet, script or icon; no token is needed, because none holds data."""
    content = static_files().get(name)
    if content is None:
        raise MissingError("there is no such file")
    kind = KINDS.get(name.rpartition(".")[2], "application/octet-stream")
    return Response(content, media_type=kind, headers={"cache-control": A_YEAR})


@router.get("/favicon.ico")
def icon() -> Response:
    """Send the icon to browsers that request it by its old name."""
    return RedirectResponse("/static/0/icon.svg", status_code=301)


def page(request: Request, name: str, *, status: int = 200, **facts: object) -> HTMLResponse:
    """Render a template of `templates/` with `facts`.

    Every page also knows `caller` (None without a token), `may_submit`, `path` and `static`.
    """
    caller = caller_in(request)
    text = (
        _templates()
        .get_template(name)
        .render(
            caller=caller,
            may_submit=caller is not None and caller.role.includes(Role.SUBMIT),
            path=request.url.path,
            static=f"/static/{static_version()}",
            **facts,
        )
    )
    return HTMLResponse(text, status_code=status)


class StudyPage:
    """A page about one study; raises `MissingError` where it is not recorded."""

    def __init__(self, request: Request, service: Service, study_id: str) -> None:
        self.request, self.service, self._study_id = request, service, study_id

    @cached_property
    def row(self) -> StudyRow:
        """The study."""
        return self.service.study(self._study_id)

    @property
    def records(self) -> Store:
        """The records, as this thread reads them."""
        return self.service.records

    def best(self) -> Trial | None:
        """Return the trial that won, or leads; None where none may."""
        ordinal = study_short(self.row, self.service).best_trial
        return None if ordinal is None else self.records.trial(self.row.id, ordinal)

    def page(self, name: str, tab: str, **facts: object) -> HTMLResponse:
        """Render a template with `facts` and what all pages of a study show."""
        facts.setdefault("study", study_short(self.row, self.service))
        disturbed = self.service.disturbed(self.row, self.records)
        return page(self.request, name, status=200, disturbed=disturbed, tab=tab, **facts)


async def _study_page(
    request: Request, study_id: str, service: TheService, _caller: Reader
) -> StudyPage:
    return StudyPage(request, service, study_id)


OneStudy = Annotated[StudyPage, Depends(_study_page)]


def error_page(request: Request, status: int, words: str) -> HTMLResponse:
    """Return a page that says what went wrong, and where to continue."""
    heading = HEADINGS.get(status, "Something went wrong")
    return page(request, "error.html", status=status, code=status, heading=heading, words=words)


def drawing(svg: str | None) -> Markup | None:
    """Return a chart, in which every text is escaped already, to be put into a page unchanged."""
    return None if svg is None else Markup(svg)


@cache
def static_files() -> Mapping[str, bytes]:
    """Return style sheets, scripts and the icon, by name."""
    folder = files("search.service.pages") / "static"
    found = {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}
    return {**found, **{name: view_file(name).encode() for name in ("charts.css", "charts.js")}}


@cache
def static_version() -> str:
    """Return what their addresses begin with; it changes with their content."""
    digest = sha256()
    for name, content in sorted(static_files().items()):
        digest.update(f"{name} {len(content)} ".encode() + content)
    return digest.hexdigest()[:16]


async def form_of(request: Request) -> Fields:
    """Return the fields of a form by name, each with all its values, also the empty ones."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, "a form is needed, as application/x-www-form-urlencoded")
    body = await request.body()
    found: dict[str, tuple[str, ...]] = {}
    try:
        pairs = parse_qsl(body.decode("utf-8"), True, errors="replace", max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise HTTPException(422, "the form cannot be read") from error
    for name, value in pairs:
        found[name] = (*found.get(name, ()), value)
    return found


def one(fields: Fields, name: str) -> str:
    """Return the first value of a field without white space around it; empty without the field."""
    return fields.get(name, ("",))[0].strip()


def visible(text: str) -> str:
    """Return a text whose control characters are escapes, each overwritten line a separate one."""
    return plain(text.replace("\r\n", "\n").replace("\r", "\n"))


@cache
def _templates() -> Environment:
    templates = environment("search.service.pages")
    templates.filters.update(
        number=format_number,
        many=lambda count, one, several=None: format_count(int(count), one, several),
        size=format_decimal_bytes,
        one_line=lambda text, chars=200: one_line(str(text), chars),
        moment=format_instant,
        elapsed=format_elapsed,
        setting=lambda value: NOT_SET if value is None else str(value),
        metric_words=metric_words,
        disturbed_words=disturbed_words,
    )
    return templates
