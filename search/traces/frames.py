"""Traces as pandas tables and plots: what `cclsearch.trace` returns."""

from pathlib import Path
from typing import Final

import pandas as pd

from search.traces.open import OpenTraces, open_traces
from search.traces.plots import bandwidth_chart, breakdown_chart, timeline_chart
from search.traces.tables import COLUMNS, table_rows
from search.views.html import ShownChart, write_chart

REAL_NUMBERS: Final = ("_s", "share", "_per_step", "mean_count", "value", "flops")
WHOLE_NUMBERS: Final = (
    *("rank", "step", "instance", "bytes", "_ns", "group_id", "version", "_size", "count"),
)
"""How the names of columns of floats, and of the other numbers, end."""


def trace(name: Path | str, store: Path | str | None = None, *, use_cache: bool = True) -> "Trace":
    """The traces in a folder or a file, or of a stored trial (`trial:3`, `trial:STUDY:3`).

    Raises TraceError for a file that is refused, StudyError where there is no such trial.
    """
    root = None if store is None else Path(store)
    return Trace(open_traces(str(name), root, use_cache=use_cache))


class Trace:
    """The traces of one job; each method gives a new table, or a chart.

    Times are seconds, sizes bytes, bandwidths bytes per second, shares 0 to 1; what a trace does
    not hold is missing. The columns are explained in docs/metrics.md.
    """

    def __init__(self, found: OpenTraces) -> None:
        self._found = found

    def __repr__(self) -> str:
        return f"Trace({self._found.name!r}, {len(self._found.traces.ranks)} ranks)"

    @property
    def caveats(self) -> tuple[str, ...]:
        """What is wrong with the traces and was repaired or left out, as text."""
        split = self._found.evidence.split
        return (*(split.caveats if split else ()), *self._found.traces.caveats)

    def ranks(self) -> pd.DataFrame:
        """One row per rank."""
        return self._frame("ranks")

    def steps(self) -> pd.DataFrame:
        """One row per rank and step that all ranks profiled: the parts of the step."""
        return self._frame("steps")

    def breakdown(self) -> pd.DataFrame:
        """One row per rank, and one for their mean: the parts of the mean step."""
        return self._frame("breakdown")

    def idle(self) -> pd.DataFrame:
        """One row per rank and step: why its device was idle."""
        return self._frame("idle")

    def kernels(self) -> pd.DataFrame:
        """One row per kernel or operator name over all ranks, the longest total first."""
        return self._frame("kernels")

    def operators(self) -> pd.DataFrame:
        """One row per operator that launched or did work, with its place below the roofline."""
        return self._frame("operators")

    def modules(self) -> pd.DataFrame:
        """One row per path of module classes: the work of their forward and backward passes."""
        return self._frame("modules")

    def ranges(self) -> pd.DataFrame:
        """One row per path of ranges that the program named: the work within."""
        return self._frame("ranges")

    def phases(self) -> pd.DataFrame:
        """One row per phase of a training step: the work within."""
        return self._frame("phases")

    def launches(self) -> pd.DataFrame:
        """One row per rank, and one for all: how the host hands work to its device."""
        return self._frame("launches")

    def queues(self) -> pd.DataFrame:
        """One row per rank and stream: how much work waited on it."""
        return self._frame("queues")

    def collectives(self) -> pd.DataFrame:
        """One row per collective or transfer that was matched over ranks, with its bandwidth."""
        return self._frame("collectives")

    def calls(self) -> pd.DataFrame:
        """One row per rank and collective of it, matched or not."""
        return self._frame("calls")

    def groups(self) -> pd.DataFrame:
        """One row per group of ranks that communicate."""
        return self._frame("groups")

    def traffic(self) -> pd.DataFrame:
        """One row per kind of collective and group: calls and bytes of a step."""
        return self._frame("traffic")

    def stragglers(self) -> pd.DataFrame:
        """One row per rank: what it waited for others, and others for it."""
        return self._frame("stragglers")

    def metrics(self) -> pd.DataFrame:
        """One row per metric: its value, or why there is none."""
        return self._frame("metrics")

    def plot_breakdown(self, path: Path | str | None = None) -> ShownChart:
        """Draw where the steps of each rank went, also into an SVG or HTML file if one is given."""
        return self._written(breakdown_chart(self._found.evidence.split, self._found.name), path)

    def plot_timeline(self, path: Path | str | None = None) -> ShownChart:
        """Draw what overlaps in one step of each rank, also into a file if one is given."""
        return self._written(timeline_chart(self._found.traces, self._found.name), path)

    def plot_bandwidth(self, path: Path | str | None = None) -> ShownChart:
        """Draw bus bandwidth against size for each collective, also into a file if one is given."""
        return self._written(
            bandwidth_chart(table_rows(self._found, "collectives"), self._found.name), path
        )

    def _written(self, drawn: str, path: Path | str | None) -> ShownChart:
        if path is not None:
            write_chart(drawn, self._found.name, Path(path))
        return ShownChart(drawn)

    def _frame(self, table: str) -> pd.DataFrame:
        """Return a table whose columns have one type each, whatever the traces hold."""
        columns = COLUMNS[table]
        types = {
            name: "float64" if name.endswith(REAL_NUMBERS) else "Int64"
            for name in columns
            if name.endswith((*REAL_NUMBERS, *WHOLE_NUMBERS))
        }
        rows = table_rows(self._found, table)
        return pd.DataFrame(rows, columns=list(columns)).astype(types)
