"""Write the metrics, tables and plots of traces to one self-contained HTML file."""

import math
from base64 import b64encode
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Final

import pandas as pd
from matplotlib.figure import Figure

from records.errors import StoreError, StudyError
from search.traces.frames import Trace
from search.traces.open import OpenTraces
from search.traces.plots import png
from search.views.document import Table, words_row
from search.views.format import format_number, one_line
from search.views.html import html_frame, printable, table_html
from search.views.terminal import CELL_CHARS

MOST_ROWS: Final = 200
"""Of one table; the rest is what --json and data frames are for."""


def write_report(found: OpenTraces, to: Path) -> None:
    """Write the report of these traces. Raises StoreError when it cannot be written."""
    body = f"<h1>{escape(printable(found.name))}</h1>\n" + "\n".join(_sections(found))
    try:
        to.write_text(html_frame(found.name, body), encoding="utf-8", errors="replace")
    except OSError as error:
        raise StoreError(f"cannot write {to}: {error.strerror}") from error


def _sections(found: OpenTraces) -> Iterator[str]:
    trace = Trace(found)
    metrics = trace.metrics()
    yield _list("Caveats", trace.caveats)
    yield _table("Metrics", metrics[metrics["value"].notna()].drop(columns=["absent", "version"]))
    yield _table("Metrics without a value", metrics[metrics["value"].isna()][["name", "absent"]])
    yield _drawn(trace.plot_breakdown)
    yield _table("Breakdown of the mean step", trace.breakdown())
    yield _drawn(trace.plot_timeline)
    yield _table("Steps", trace.steps())
    yield _table("Why devices were idle", trace.idle())
    yield _drawn(trace.plot_bandwidth)
    yield _table("Traffic of a step", trace.traffic())
    yield _table("Who waits for whom", trace.stragglers())
    yield _table("Kernels", trace.kernels())
    yield _table("Launches", trace.launches())
    yield _table("Ranks", trace.ranks())


def _table(heading: str, rows: pd.DataFrame) -> str:
    """A table under its heading; names in it are escaped, whatever they hold."""
    if rows.empty:
        return f"<h2>{heading}</h2>\n<p>nothing</p>"
    left_out = len(rows) - MOST_ROWS
    numeric = (pd.api.types.is_numeric_dtype(rows[name]) for name in rows.columns)
    table = Table(
        about=f"{left_out} more rows are left out" if left_out > 0 else "",
        headings=tuple(map(str, rows.columns)),
        rows=tuple(
            words_row(*map(_cell, values))
            for values in rows.head(MOST_ROWS).itertuples(index=False, name=None)
        ),
        numeric=frozenset(place for place, is_number in enumerate(numeric) if is_number),
    )
    return f"<h2>{heading}</h2>\n{table_html(table)}"


def _cell(value: object) -> str:
    """A number with four digits, a name without control characters, nothing where it is missing."""
    if value is pd.NA or value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return format_number(value) if isinstance(value, float) else one_line(str(value), CELL_CHARS)


def _list(heading: str, lines: tuple[str, ...]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<h2>{heading}</h2>\n<ul>{items}</ul>" if lines else ""


def _drawn(draw: Callable[[], Figure]) -> str:
    """The figure as a picture within the page, or why there is none."""
    try:
        picture = b64encode(png(draw())).decode("ascii")
    except StudyError as error:
        return f"<p>{escape(str(error))}</p>"
    return f'<img alt="" src="data:image/png;base64,{picture}">'
