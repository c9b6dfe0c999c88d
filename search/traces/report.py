"""Write the metrics, tables and plots of traces to one self-contained HTML file."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pandas as pd

from records.errors import StoreError, StudyError
from search.traces.frames import Trace, TraceChart
from search.traces.open import OpenTraces
from search.views.document import (
    Block,
    Cell,
    Chart,
    Document,
    Paragraph,
    Section,
    Table,
    TableRow,
)
from search.views.format import format_number, one_line
from search.views.html import render_html
from search.views.terminal import CELL_CHARS

MOST_ROWS: Final = 200
"""Of one table; --json and data frames have the rest."""


def write_report(found: OpenTraces, to: Path) -> None:
    """Write the report of these traces. Raises StoreError when it cannot be written."""
    try:
        to.write_text(render_html(_document(found)), encoding="utf-8", errors="replace")
    except OSError as error:
        raise StoreError(f"cannot write {to}: {error.strerror}") from error


def _document(found: OpenTraces) -> Document:
    trace = Trace(found)
    metrics = trace.metrics()
    present = metrics["value"].notna()
    sections: list[tuple[str, list[Block]]] = [
        ("Metrics", [_table(metrics[present].drop(columns=["absent", "version"]))]),
        ("Metrics without a value", [_table(metrics[~present][["name", "absent"]])]),
        ("Breakdown of the mean step", [_plot(trace.plot_breakdown), _table(trace.breakdown())]),
        ("Steps", [_plot(trace.plot_timeline), _table(trace.steps())]),
        ("Why devices were idle", [_table(trace.idle())]),
        ("Traffic of a step", [_plot(trace.plot_bandwidth), _table(trace.traffic())]),
        ("Who waits for whom", [_table(trace.stragglers())]),
        ("Kernels", [_table(trace.kernels())]),
        ("Launches", [_table(trace.launches())]),
        ("Ranks", [_table(trace.ranks())]),
    ]
    if trace.caveats:
        sections.insert(0, ("Caveats", [Paragraph(text=each) for each in trace.caveats]))
    return Document(
        title=found.name,
        lead="",
        sections=tuple(
            Section(
                name=heading.lower().replace(" ", "-"),
                heading=heading,
                lead="",
                blocks=tuple(blocks),
            )
            for heading, blocks in sections
        ),
    )


def _table(rows: pd.DataFrame) -> Block:
    """A table of the first rows."""
    if rows.empty:
        return Paragraph(text="nothing")
    left_out = len(rows) - MOST_ROWS
    numeric = [pd.api.types.is_numeric_dtype(rows[name]) for name in rows.columns]
    return Table(
        about=f"{left_out} more rows are left out" if left_out > 0 else "",
        headings=tuple(map(str, rows.columns)),
        rows=tuple(
            TableRow(cells=tuple(map(_cell, values, numeric)))
            for values in rows.head(MOST_ROWS).itertuples(index=False, name=None)
        ),
    )


def _cell(value: object, is_number: bool) -> Cell:
    """A number with four digits, a name without control characters, nothing where it is missing."""
    if value is pd.NA or value is None or (isinstance(value, float) and math.isnan(value)):
        return Cell(text="", is_number=is_number)
    text = format_number(value) if isinstance(value, float) else one_line(str(value), CELL_CHARS)
    return Cell(text=text, is_number=is_number)


def _plot(draw: Callable[[], TraceChart]) -> Block:
    """The chart, or why there is none."""
    try:
        return Chart(drawn=draw().drawn, about="")
    except StudyError as error:
        return Paragraph(text=str(error))
