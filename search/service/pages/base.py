"""Rendering, forms, static files.

Pages out of templates: every text in them is escaped, and what cannot be printed is marked.

What a form of ours sends, read within bounds.

Output of jobs as text in which nothing is hidden: control characters are shown, not obeyed.

What a person sees where a page cannot be shown.

What all pages share: the way in, and files that browsers keep.

The history of a study in a word's height, drawn again only when its records have changed.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TypeAlias
from unicodedata import category
from urllib.parse import parse_qsl

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment
from markupsafe import Markup

from records.errors import StudyError
from records.store.rows import StudyRow
from search.service.access import Reader, caller_in
from search.service.auth import Role
from search.service.service import MissingError, Service
from search.views.charts import sparkline
from search.views.format import (
    format_count,
    format_decimal_bytes,
    format_elapsed,
    format_number,
    one_line,
)
from search.views.html import environment, printable
from search.views.machine import disturbed_words
from search.views.svg import chart_style


def page(request: Request, name: str, *, status: int = 200, **facts: object) -> HTMLResponse:
    """The page of a template in `templates/`; `facts` are what it tells.

    Every page also knows `caller` (None without a token), `may_submit`, `path` and `static`.
    """
    caller = caller_in(request)
    told = (
        _templates()
        .get_template(name)
        .render(
            caller=caller,
            may_submit=caller is not None and caller.role >= Role.SUBMIT,
            path=request.url.path,
            static=f"/static/{static_version()}",
            **facts,
        )
    )
    return HTMLResponse(told, status_code=status)


def drawing(svg: str) -> Markup:
    """A chart of search/charts, in which every text is escaped, to be put into a page as it is."""
    return Markup(svg)


@cache
def static_files() -> Mapping[str, bytes]:
    """Style sheets, scripts and the icon, by name."""
    folder = files("search.service.pages") / "static"
    found = {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}
    return {**found, "charts.css": chart_style().encode()}


@cache
def static_version() -> str:
    """What their addresses begin with, so that browsers may keep them until they change."""
    told = sha256()
    for name, content in sorted(static_files().items()):
        told.update(f"{name} {len(content)} ".encode() + content)
    return told.hexdigest()[:16]


@cache
def _templates() -> Environment:
    made = environment("search.service.pages")
    made.filters.update(
        number=format_number,
        many=lambda count, one, several=None: format_count(int(count), one, several),
        size=format_decimal_bytes,
        one_line=lambda text, chars=200: one_line(str(text), chars),
        moment=moment,
        took=format_elapsed,
        settings=settings,
        disturbed_words=disturbed_words,
    )
    return made


def moment(instant: str) -> str | Markup:
    """An instant on record as people read it, in UTC; one that is none as it stands."""
    try:
        at = datetime.fromisoformat(instant)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return instant
    exact = at.isoformat(timespec="seconds")
    return Markup('<time datetime="{}">{}</time>').format(exact, f"{at.day} {at:%b %Y, %H:%M} UTC")


def settings(config: Mapping[str, object]) -> Markup:
    """A configuration as pairs that wrap as wholes."""
    pairs: Iterable[str] = (
        Markup("<code>{}={}</code>").format(printable(name), printable(str(value)))
        for name, value in config.items()
    )
    return Markup('<span class="settings">{}</span>').format(Markup(" ").join(pairs))


MOST_FIELDS = 2000

Fields: TypeAlias = Mapping[str, tuple[str, ...]]


async def form_of(request: Request) -> Fields:
    """The fields of a form by name, each with all its values, those left empty too."""
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
    """The first value of a field without what surrounds it; empty where it is missing."""
    return fields.get(name, ("",))[0].strip()


CARET_OFFSET = 0x40
"""A control character and the letter that is written behind a caret for it differ by this."""
DELETE = "\x7f"


def visible(text: str) -> str:
    """The text with a sign for each character that a terminal or a browser would obey: `^[`."""
    text = text.replace("\r\n", "\n")
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_seen, text))


def _seen(character: str) -> str:
    if character in "\n\t" or character.isprintable() or category(character) == "Zs":
        return character
    if character == "\r":  # a line that was written over: each state on a line of its own
        return "^M\n"
    if character < " " or character == DELETE:
        return f"^{chr(ord(character) ^ CARET_OFFSET)}"
    return f"<U+{ord(character):04X}>"


HEADINGS = {
    400: "That request makes no sense",
    401: "Please sign in",
    403: "You may not do that",
    404: "There is nothing here",
    405: "That does not work here",
    409: "That does not fit any more",
    413: "That is too large",
    422: "That does not work as it stands",
    429: "Too much at once",
    503: "The records cannot be used now",
}


def error_page(request: Request, status: int, words: str) -> HTMLResponse:
    """A page that says what went wrong, and where to go on."""
    heading = HEADINGS.get(status, "Something went wrong")
    return page(request, "error.html", status=status, code=status, heading=heading, words=words)


router = APIRouter(include_in_schema=False)

KINDS = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
A_YEAR = "public, max-age=31536000, immutable"


@router.get("/")
def home(_caller: Reader) -> Response:
    """The first page."""
    return RedirectResponse("/studies", status_code=303)


@router.get("/static/{_version}/{name}")
def static(_version: str, name: str) -> Response:
    """A style sheet, script or icon; needs no token, as it tells nothing."""
    content = static_files().get(name)
    if content is None:
        raise MissingError("there is no such file")
    kind = KINDS.get(name.rpartition(".")[2], "application/octet-stream")
    return Response(content, media_type=kind, headers={"cache-control": A_YEAR})


@router.get("/favicon.ico")
def icon() -> Response:
    """The icon of browsers that ask for it by its old name."""
    return RedirectResponse("/static/0/icon.svg", status_code=301)


def spark_of(study_id: str, service: Service) -> Markup:
    """The best so far of a study, trial by trial; nothing where none was measured."""
    row = service.study(study_id)
    stamp = service.records.stamp(study_id)
    return drawing(service.drawings.get((study_id, "spark"), stamp, lambda: _drawn(row, service)))


def _drawn(row: StudyRow, service: Service) -> str:
    try:
        history = service.explored.history(row, service.records)
    except StudyError:  # a record from elsewhere may name metrics that are not known here
        return ""
    steps = [(each.ordinal, each.value) for each in history.best_so_far]
    return sparkline(steps, history.total - 1, lower_is_better=history.axis.lower_is_better)
