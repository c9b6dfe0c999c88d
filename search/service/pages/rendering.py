"""Pages out of templates: every text in them is escaped, and what cannot be printed is marked."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from search.charts.style import chart_style
from search.report_page.plain import plain
from search.service.callers.roles import Role
from search.service.edge.access import caller_in
from search.words.condition import disturbed_words
from search.words.quantities import many, size
from search.words.trial import number, one_line

PARTS = (("day", 86400), ("h", 3600), ("min", 60), ("s", 1))


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
    made = Environment(
        loader=PackageLoader("search.service.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=_printable,
    )
    made.filters.update(
        number=number,
        many=lambda count, one, several=None: many(int(count), one, several),
        size=size,
        one_line=lambda text, chars=200: one_line(str(text), chars),
        moment=moment,
        took=took,
        settings=settings,
        disturbed_words=disturbed_words,
    )
    return made


def _printable(value: object) -> object:
    """Plain texts without control characters; what is markup already stays as it is."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return plain(value)
    return value


def moment(instant: str) -> str | Markup:
    """An instant on record as people read it, in UTC; one that is none as it stands."""
    try:
        at = datetime.fromisoformat(instant)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return instant
    exact = at.isoformat(timespec="seconds")
    return Markup('<time datetime="{}">{}</time>').format(exact, f"{at.day} {at:%b %Y, %H:%M} UTC")


def took(seconds: float) -> str:
    """A length of time by its two largest units: `3 h 20 min`."""
    left, told = round(seconds), list[str]()
    for unit, size_s in PARTS:
        count, left = divmod(left, size_s)
        if count:
            plural = "s" if unit == "day" and count > 1 else ""
            told.append(f"{count} {unit}{plural}")
    return " ".join(told[:2]) or "0 s"


def settings(config: Mapping[str, object]) -> Markup:
    """A configuration as pairs that wrap as wholes."""
    pairs: Iterable[str] = (
        Markup("<code>{}={}</code>").format(plain(name), plain(str(value)))
        for name, value in config.items()
    )
    return Markup('<span class="settings">{}</span>').format(Markup(" ").join(pairs))
