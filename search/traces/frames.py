"""Traces as pandas tables and plots: what `cclsearch.trace` returns."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import pandas as pd

from evaluator.metrics.registry import measure_all, metric, metric_names
from evaluator.traces.analysis.stragglers import stragglers
from evaluator.traces.model import TraceSet
from search.traces import tables
from search.traces.open import OpenTraces, open_traces
from search.traces.plots import bandwidth_chart, breakdown_chart, timeline_chart
from search.traces.tables import COLUMNS, Row
from search.views.html import write_chart
from search.views.svg import standalone

REAL_NUMBERS: Final = ("_s", "share", "_per_step", "mean_count", "value")
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


@dataclass(frozen=True, slots=True)
class TraceChart:
    """A chart of traces, which notebooks show."""

    drawn: str
    """As SVG within a page."""

    def _repr_svg_(self) -> str:
        return standalone(self.drawn)


class Trace:
    """The traces of one job; each method gives a new table, or a chart.

    Times are seconds, sizes bytes, bandwidths bytes per second, shares 0 to 1; what a trace does
    not hold is missing. The columns are explained in docs/metrics.md.
    """

    def __init__(self, found: OpenTraces) -> None:
        self._found = found

    def __repr__(self) -> str:
        return f"Trace({self._found.name!r}, {len(self._traces.ranks)} ranks)"

    @property
    def caveats(self) -> tuple[str, ...]:
        """What is wrong with the traces and was repaired or left out, as text."""
        split = self._found.evidence.split
        return (*(split.caveats if split else ()), *self._traces.caveats)

    def ranks(self) -> pd.DataFrame:
        """One row per rank."""
        return _frame("ranks", tables.rank_rows(self._traces))

    def steps(self) -> pd.DataFrame:
        """One row per rank and step that all ranks profiled: the parts of the step."""
        return _frame("steps", tables.step_rows(self._traces, self._found.evidence.split))

    def breakdown(self) -> pd.DataFrame:
        """One row per rank, and one for their mean: the parts of the mean step."""
        return _frame("breakdown", tables.breakdown_rows(self._found.evidence.split))

    def idle(self) -> pd.DataFrame:
        """One row per rank and step: why its device was idle."""
        marked = bool(self._traces.common_steps.size)
        return _frame("idle", tables.idle_rows(self._found.evidence.idle, marked=marked))

    def kernels(self) -> pd.DataFrame:
        """One row per kernel or operator name over all ranks, the longest total first."""
        return _frame("kernels", tables.kernel_rows(self._found.kernels.job))

    def launches(self) -> pd.DataFrame:
        """One row per rank, and one for all: how the host hands work to its device."""
        return _frame("launches", tables.launch_rows(self._found.evidence.launches))

    def queues(self) -> pd.DataFrame:
        """One row per rank and stream: how much work waited on it."""
        return _frame("queues", tables.queue_rows(self._traces))

    def collectives(self) -> pd.DataFrame:
        """One row per collective or transfer that was matched over ranks, with its bandwidth."""
        return _frame("collectives", self._collective_rows)

    def calls(self) -> pd.DataFrame:
        """One row per rank and collective of it, matched or not."""
        return _frame("calls", tables.call_rows(self._traces, self._found.matches))

    def groups(self) -> pd.DataFrame:
        """One row per group of ranks that communicate."""
        return _frame("groups", tables.group_rows(self._found.matches))

    def traffic(self) -> pd.DataFrame:
        """One row per kind of collective and group: calls and bytes of a step."""
        volume, matches = self._found.evidence.volume, self._found.matches
        return _frame("traffic", tables.traffic_rows(volume, matches))

    def stragglers(self) -> pd.DataFrame:
        """One row per rank: what it waited for others, and others for it."""
        waits = stragglers(self._traces, self._found.matches)
        return _frame("stragglers", tables.wait_rows(waits, self._found.evidence.split))

    def metrics(self) -> pd.DataFrame:
        """One row per metric: its value, or why there is none."""
        measures = measure_all(self._found.evidence)
        values = {value.name: value.value for value in measures.values}
        rows: list[Row] = [
            {
                **{column: getattr(metric(name), column, None) for column in COLUMNS["metrics"]},
                "value": values.get(name),
                "absent": measures.absent.get(name),
            }
            for name in metric_names()
        ]
        return _frame("metrics", rows)

    def plot_breakdown(self, path: Path | str | None = None) -> TraceChart:
        """Draw where the steps of each rank went, also into an SVG or HTML file if one is given."""
        return self._written(breakdown_chart(self._found.evidence.split, self._found.name), path)

    def plot_timeline(self, path: Path | str | None = None) -> TraceChart:
        """Draw what overlaps in one step of each rank, also into a file if one is given."""
        return self._written(timeline_chart(self._traces, self._found.name), path)

    def plot_bandwidth(self, path: Path | str | None = None) -> TraceChart:
        """Draw bus bandwidth against size for each collective, also into a file if one is given."""
        return self._written(bandwidth_chart(self._collective_rows, self._found.name), path)

    def _written(self, drawn: str, path: Path | str | None) -> TraceChart:
        if path is not None:
            write_chart(drawn, self._found.name, Path(path))
        return TraceChart(drawn)

    @property
    def _traces(self) -> TraceSet:
        return self._found.traces

    @cached_property
    def _collective_rows(self) -> list[Row]:
        return tables.collective_rows(self._traces, self._found.matches)


def _frame(table: str, rows: list[Row]) -> pd.DataFrame:
    """A table whose columns have one type each, whatever the traces hold."""
    columns = COLUMNS[table]
    types = {
        name: "float64" if name.endswith(REAL_NUMBERS) else "Int64"
        for name in columns
        if name.endswith((*REAL_NUMBERS, *WHOLE_NUMBERS))
    }
    return pd.DataFrame(rows, columns=list(columns)).astype(types)
