"""Aligned columns of text, for terminals and pipes alike."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import typer
from rich.cells import cell_len, set_cell_size

from search.terminal import Terminal, on_terminal
from search.words.trial import one_line

PAGE_CELLS = 80
GAP = 2
CELL_CHARS = 4000
"""A name of a hostile trace may be of any length."""

Align: TypeAlias = Literal["left", "right"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A heading and its cells; cells that do not fit in a page are cut in the `yielding` column."""

    heading: str
    cells: Sequence[str]
    align: Align = "left"
    yielding: bool = False


def page_cells() -> int:
    """Width to print in: that of the terminal, and of a page where there is none."""
    return Terminal().width if on_terminal() else PAGE_CELLS


def table_lines(columns: Sequence[Column], width: int) -> list[str]:
    """The columns side by side under their headings, no line wider than `width` if one yields."""
    texts = [
        [column.heading, *(one_line(cell, CELL_CHARS) for cell in column.cells)]
        for column in columns
    ]
    widths = [max(map(cell_len, text)) for text in texts]
    spare = width - sum(widths) - GAP * (len(widths) - 1)
    for place, column in enumerate(columns):
        if column.yielding and spare < 0:
            widths[place] = max(len(column.heading), 8, widths[place] + spare)
    aligned = [
        [_cell(text, cells, column.align) for text in told]
        for column, told, cells in zip(columns, texts, widths, strict=True)
    ]
    return [(" " * GAP).join(row).rstrip() for row in zip(*aligned, strict=True)]


def print_table(*columns: Column) -> None:
    """Print columns side by side; a pipe gets them as wide as a page."""
    for line in table_lines(columns, page_cells()):
        typer.echo(line)


def print_words(line: str) -> None:
    """Print a line of words, going on below its first word's end where the page ends."""
    indent = " " * (len(line) - len(line.split(" ", 1)[-1].lstrip()))
    typer.echo("\n".join(textwrap.wrap(line, page_cells(), subsequent_indent=indent)))


def echo_words(line: str, indent: int | None = None) -> None:
    """Print a line, on a terminal continued below where the page ends; no word is ever broken.

    A command to copy stays whole.
    """
    stays = line.startswith("next: ")
    if not on_terminal() or stays or cell_len(line) <= page_cells():
        typer.echo(line)
        return
    if indent is None:
        indent = len(line) - len(line.lstrip()) + GAP
    typer.echo(
        textwrap.fill(
            line,
            page_cells(),
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def numbers(heading: str, cells: Sequence[str]) -> Column:
    """A column whose cells end at one place."""
    return Column(heading=heading, cells=cells, align="right")


def _cell(text: str, cells: int, align: Align) -> str:
    if cell_len(text) > cells:
        return f"{set_cell_size(text, cells - 3)}..."
    blank = " " * (cells - cell_len(text))
    return blank + text if align == "right" else text + blank
