"""A report as one HTML file; every text is escaped here and nowhere else."""

from html import escape
from itertools import groupby
from operator import itemgetter
from typing import assert_never

from search.report_page.blocks import (
    Block,
    Cell,
    Chart,
    Code,
    Difference,
    Facts,
    Page,
    Row,
    Section,
    Table,
    Words,
)
from search.report_page.frame import framed
from search.report_page.plain import plain

LONG_CHARS = 60
LONG_ROWS = 12
"""Rows from which on a table can be filtered and sorted."""


def html_page(page: Page) -> str:
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
    return framed(page.title, body, scripted=True)


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
        case Words(text=text):
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
        case Difference(lines=lines):
            return f"<pre>{''.join(map(_changed, range(len(lines)), lines))}</pre>"
        case _:
            assert_never(block)


def _row(row: Row, table: Table) -> str:
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
    return escape(plain(text))
