"""Render a document as Markdown, without its charts."""

import re
from collections.abc import Iterator
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
)
from search.views.format import fenced
from search.views.html import printable

CODE_CHARS = 200_000
_MARKS = re.compile(r"([\\`*\[\]<>|~&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=www)\.|:(?=//))")
_FIRST = re.compile(r"^(\d*)([#+\-.)])(?!\d)", re.ASCII)


def render_markdown(page: Document) -> str:
    """The whole file."""
    parts = [f"# {_escaped(page.title)}", _escaped(page.lead)]
    for section in page.sections:
        parts += _section(section)
    return "\n\n".join(parts) + "\n"


def _section(section: Section) -> Iterator[str]:
    yield f"## {_escaped(section.heading)}"
    yield _escaped(section.lead)
    for block in section.blocks:
        yield _block(block)


def _block(block: Block) -> str:
    match block:
        case Paragraph(text=text):
            return _escaped(text)
        case Facts(lines=lines):
            return "\n".join(f"- {_escaped(label)}: {_escaped(text)}" for label, text in lines)
        case Table():
            return _table(block)
        case Chart(about=about):
            return f"(chart in the HTML report: {_escaped(about)})"
        case Code(text=text, language=language):
            return _code(text, language)
        case Diff(lines=lines):
            return _code("\n".join(lines), "diff")
        case _:
            assert_never(block)


def _table(table: Table) -> str:
    rule = ("---:" if place in table.numeric else "---" for place in range(len(table.headings)))
    rows = (_line(map(_cell, row.cells)) for row in table.rows)
    head = f"{_escaped(table.about)}:\n\n{_line(map(_escaped, table.headings))}\n{_line(rule)}"
    return "\n".join([head, *rows])


def _line(cells: Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    """Text of a cell; settings as code, where that needs no escaping."""
    if cell.is_code and cell.text and not cell.differs and not set(cell.text) & set("`|\n"):
        return f"`{printable(cell.text)}`"
    return _escaped(cell.marked)


def _code(text: str, language: str = "") -> str:
    return fenced(printable(text), language, limit=CODE_CHARS)


def _escaped(text: str) -> str:
    """The text on one line, in which nothing is a mark of Markdown, a link or HTML."""
    line = _MARKS.sub(r"\\\1", " ".join(printable(text).split()))
    return _FIRST.sub(r"\1\\\2", line)
