"""Writes all that traces tell into one HTML file: metrics, tables and plots, nothing beside it."""

import math
from base64 import b64encode
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Final

import pandas as pd
from matplotlib.figure import Figure

from records.errors import StoreError, StudyError
from search.plots import png
from search.tables import CELL_CHARS
from search.trace_frames import Trace
from search.traced import Traced
from search.trial_words import number, one_line

MOST_ROWS: Final = 200
"""Of one table; the rest is what --json and data frames are for."""
STYLE: Final = """
body { font: 14px/1.4 sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; display: block; overflow-x: auto; }
th, td { padding: 2px 10px; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
td { max-width: 40em; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
img { max-width: 100%; }
"""


def write_report(found: Traced, to: Path) -> None:
    """Write the report of these traces. Raises StoreError when it cannot be written."""
    title = escape(found.name)
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n"
        + "\n".join(_sections(found))
        + "\n</body></html>\n"
    )
    try:
        to.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise StoreError(f"cannot write {to}: {error.strerror}") from error


def _sections(found: Traced) -> Iterator[str]:
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
    more = f"<p>{left_out} more rows</p>" if left_out > 0 else ""
    with pd.option_context("display.max_colwidth", None):
        shown = rows.head(MOST_ROWS).map(_cell).to_html(index=False, border=0)
    return f"<h2>{heading}</h2>\n{shown}{more}"


def _cell(value: object) -> str:
    """A number with four digits, a name without control characters, nothing where it is missing."""
    if value is pd.NA or value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return number(value) if isinstance(value, float) else one_line(str(value), CELL_CHARS)


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
