"""Render a document as one self-contained HTML file in which no text can run as code."""

from base64 import b64encode
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import get_args

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from records.errors import StoreError
from search.views.document import Block, Chart, Document, Section, Table
from search.views.format import one_line
from search.views.svg import chart_file, standalone, view_file

TITLE_CHARS = 200
UNSEEN = "\N{REPLACEMENT CHARACTER}"
DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""They would show a program in another order than it runs."""


def render_html(page: Document) -> str:
    """The whole file."""
    blocks = [block for section in page.sections for block in section.blocks]
    has_charts = any(isinstance(block, Chart) for block in blocks)
    is_long = any(isinstance(block, Table) and block.is_long for block in blocks)
    scripts = [view_file("charts.js")] * has_charts + [view_file("page.js")] * is_long
    template = environment("search.views").get_template("document.html")
    text = template.render(
        page=page,
        title=one_line(page.title, TITLE_CHARS),
        style=Markup(view_file("charts.css") + view_file("page.css")),
        script=Markup("".join(scripts)),
    )
    return f"{text}\n"


@dataclass(frozen=True, slots=True)
class ShownChart:
    """A chart, which notebooks show."""

    drawn: str
    """As SVG within a page."""

    def _repr_svg_(self) -> str:
        return standalone(self.drawn)


def write_chart(drawn: str, title: str, path: Path) -> None:
    """Write a chart as SVG or as a page. Raises StudyError, and StoreError if it cannot."""
    chart_file(path)
    if path.suffix.lower() != ".html":
        _write(standalone(drawn), path)
        return
    blocks = (Chart(drawn=drawn, about=""),)
    section = Section(name="chart", heading="Chart", lead="", blocks=blocks)
    write_html(Document(title=title, lead="", sections=(section,)), path)


def write_html(page: Document, path: Path) -> None:
    """Write a document as a page. Raises StoreError if it cannot."""
    _write(render_html(page), path)


def _write(text: str, path: Path) -> None:
    try:
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error


@cache
def environment(package: str) -> Environment:
    """The templates of a package; texts are escaped, and what cannot be printed is marked."""
    made = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("search.views")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=_finalize,
    )
    made.filters["only"] = _only
    made.tests.update({kind.__name__: partial(_is_of, kind) for kind in get_args(Block)})
    return made


def printable(text: str) -> str:
    """The same text with a mark in the place of what cannot be printed; lines and tabs stay."""
    if text.isprintable() and text.isascii():
        return text
    return "".join(
        c if (c.isprintable() or c in "\n\t") and c not in DIRECTIONS else UNSEEN for c in text
    )


def _finalize(value: object) -> object:
    """Plain texts without control characters; markup stays as it is."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value)
    return value


def _is_of(kind: type, block: object) -> bool:
    return isinstance(block, kind)


def _only(text: str) -> Markup:
    """The source expression that lets this text run, and no other."""
    return Markup("'sha256-{}'").format(b64encode(sha256(text.encode()).digest()).decode())
