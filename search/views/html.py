"""Render a document as one self-contained HTML file in which no text can run as code."""

from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import groupby
from operator import itemgetter
from typing import assert_never

from search.views.document import (
    Block,
    Cell,
    Chart,
    Code,
    Diff,
    Document,
    Facts,
    Paragraph,
    Section,
    Table,
    TableRow,
)
from search.views.format import one_line
from search.views.svg import chart_style

TITLE_CHARS = 200


def html_frame(title: str, body: str, *, scripted: bool = False) -> str:
    """A page around a body, which is trusted; its own style and script are all that may run."""
    style = chart_style() + _text("page.css")
    script = _text("page.js") if scripted else ""
    may_run = _only(script) if scripted else "'none'"
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src {_only(style)}; script-src {may_run}"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(one_line(title, TITLE_CHARS))}</title>\n<style>{style}</style>\n</head>\n"
        f"<body>\n{body}\n" + (f"<script>{script}</script>\n" if scripted else "") + "</body>\n"
        "</html>\n"
    )


def _only(text: str) -> str:
    """The source expression that lets this text run, and no other."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


@cache
def _text(name: str) -> str:
    return (files("search.views") / name).read_text(encoding="utf-8")


UNSEEN = "\N{REPLACEMENT CHARACTER}"
DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""They would show a program in another order than it runs."""


def printable(text: str) -> str:
    """The same text with a mark in the place of what cannot be printed; lines and tabs stay."""
    if text.isprintable() and text.isascii():
        return text
    return "".join(
        c if (c.isprintable() or c in "\n\t") and c not in DIRECTIONS else UNSEEN for c in text
    )


LONG_CHARS = 60
LONG_ROWS = 12
"""Rows from which on a table can be filtered and sorted."""


def render_html(page: Document) -> str:
    """The whole file."""
    links = "".join(
        f'<li><a href="#{escape(each.name)}">{_told(each.heading)}</a></li>'
        for each in page.sections
    )
    body = (
        f"<main>\n<h1>{_told(page.title)}</h1>\n"
        f'<p class="result">{_told(page.lead)}</p>\n'
        f'<nav aria-label="Sections"><ol>{links}</ol></nav>\n'
        + "\n".join(map(_section, page.sections))
        + "\n</main>"
    )
    return html_frame(page.title, body, scripted=True)


def table_html(table: Table) -> str:
    """A table with its headings and what it is about."""
    headings = "".join(
        f'<th scope="col"{_class("number" if place in table.numeric else "")}>{_told(text)}</th>'
        for place, text in enumerate(table.headings)
    )
    rows = "\n".join(_row(row, table) for row in table.rows)
    long = "long" if table.is_long and len(table.rows) >= LONG_ROWS else ""
    about = f"<caption>{_told(table.about)}</caption>" if table.about else ""
    return (
        f'<div class="wide"><table{_class(long)}>{about}\n'
        f"<thead><tr>{headings}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


def facts_html(facts: Facts) -> str:
    """Labels with what they say."""
    lines = "".join(
        f"<dt>{_told(label)}</dt>" + "".join(f"<dd>{_told(text)}</dd>" for _, text in found)
        for label, found in groupby(facts.lines, key=itemgetter(0))
    )
    return f"<dl>{lines}</dl>"


def _section(section: Section) -> str:
    blocks = "\n".join(map(_block, section.blocks))
    return (
        f'<section id="{escape(section.name)}">\n<h2>{_told(section.heading)}</h2>\n'
        f'<p class="lead">{_told(section.lead)}</p>\n{blocks}\n</section>'
    )


def _block(block: Block) -> str:
    match block:
        case Paragraph(text=text):
            return f"<p>{_told(text)}</p>"
        case Facts():
            return facts_html(block)
        case Table():
            return table_html(block)
        case Chart(drawn=drawn, about=about):
            label = f"<figcaption>{_told(about)}</figcaption>"
            return f'<figure><div class="wide">{drawn}</div>{label}</figure>'
        case Code(text=text):
            return f"<pre><code>{_told(text)}</code></pre>"
        case Diff(lines=lines):
            return f"<pre>{''.join(map(_changed, range(len(lines)), lines))}</pre>"
        case _:
            assert_never(block)


def _row(row: TableRow, table: Table) -> str:
    anchor = "" if row.anchor is None else f' id="{escape(row.anchor)}"'
    cells = "".join(_cell(cell, place, table) for place, cell in enumerate(row.cells))
    return f"<tr{anchor}{_class(row.tone)}>{cells}</tr>"


def _cell(cell: Cell, place: int, table: Table) -> str:
    name, scope = ("th", ' scope="row"') if place == 0 else ("td", "")
    kind = _class(_cell_kind(cell, place, table))
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    text = f"<code>{_told(cell.text)}</code>" if cell.is_code and cell.text else _told(cell.text)
    return f"<{name}{scope}{kind}{value}>{text}</{name}>"


def _cell_kind(cell: Cell, place: int, table: Table) -> str:
    """How a cell is set: numbers below each other, long words with room."""
    if place in table.numeric:
        return "number"
    return "words" if len(cell.text) > LONG_CHARS and not cell.is_code else ""


def _changed(place: int, line: str) -> str:
    """A line of a difference, of which the first two name the sides."""
    kind = {"+": "added", "-": "removed"}.get(line[:1], "same") if place > 1 else "same"
    return f'<span class="{kind}">{_told(line)}</span>'


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _told(text: str) -> str:
    return escape(printable(text))
