"""Traces as pandas tables and plots: what `cclsearch.trace` returns."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pandas as pd

from evaluator.metrics.registry import measure_all, metric, metric_names
from evaluator.traces.analysis.collectives import bandwidths
from evaluator.traces.analysis.stragglers import stragglers
from evaluator.traces.model import TraceSet
from search.traces.open import Traced, traced
from search.traces.tables import (
    BREAKDOWN_COLUMNS,
    CALL_COLUMNS,
    COLLECTIVE_COLUMNS,
    GROUP_COLUMNS,
    IDLE_COLUMNS,
    KERNEL_COLUMNS,
    LAUNCH_COLUMNS,
    QUEUE_COLUMNS,
    RANK_COLUMNS,
    STEP_COLUMNS,
    TRAFFIC_COLUMNS,
    WAIT_COLUMNS,
    Columns,
    Row,
    breakdown_rows,
    call_rows,
    collective_rows,
    group_rows,
    idle_rows,
    kernel_rows,
    launch_rows,
    queue_rows,
    rank_rows,
    step_rows,
    traffic_rows,
    wait_rows,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


METRIC_COLUMNS: Final[Columns] = {
    "name": "name of the metric",
    "label": "name to be read by people",
    "value": "missing where there is none",
    "unit": "unit of the value",
    "better": "higher or lower",
    "version": "version of its definition",
    "absent": "why it has no value",
}
WHOLE_NUMBERS: Final = frozenset(
    {
        *("rank", "last_rank", "step", "instance", "bytes", "start_ns", "group_id", "version"),
        "group_size",
        *("count", "step_count", "span_count", "collective_count", "shown_count", "rank_count"),
        *("launch_count", "graph_launch_count", "kernel_count", "longest_count", "untold_count"),
    }
)
"""Columns of integers, some of them missing."""
REAL_NUMBERS: Final = ("_s", "share", "_per_step", "mean_count", "value")
"""How the names of columns of floats end."""


def trace(name: Path | str, store: Path | str | None = None, *, use_cache: bool = True) -> "Trace":
    """The traces in a folder or a file, or of a trial on record (`trial:3`, `trial:STUDY:3`).

    Raises TraceError for a file that is refused, StudyError where there is no such trial.
    """
    root = None if store is None else Path(store)
    return Trace(traced(str(name), root, use_cache=use_cache))


class Trace:
    """The traces of one job; each method gives a new table, or a figure.

    Times are seconds, sizes bytes, bandwidths bytes per second, shares 0 to 1; what a trace does
    not tell is missing. The columns are explained in docs/metrics.md.
    """

    def __init__(self, found: Traced) -> None:
        self._found = found

    def __repr__(self) -> str:
        return f"Trace({self._found.name!r}, {len(self._traces.ranks)} ranks)"

    @property
    def caveats(self) -> tuple[str, ...]:
        """What is wrong with the traces and was mended or left out, in words."""
        split = self._found.evidence.split
        return (*(split.caveats if split else ()), *self._traces.caveats)

    def ranks(self) -> pd.DataFrame:
        """One row per rank."""
        return _frame(rank_rows(self._traces), RANK_COLUMNS)

    def steps(self) -> pd.DataFrame:
        """One row per rank and step that all ranks profiled: the parts of the step."""
        return _frame(step_rows(self._traces, self._found.evidence.split), STEP_COLUMNS)

    def breakdown(self) -> pd.DataFrame:
        """One row per rank, and one for their mean: the parts of the mean step."""
        return _frame(breakdown_rows(self._found.evidence.split), BREAKDOWN_COLUMNS)

    def idle(self) -> pd.DataFrame:
        """One row per rank and step: why its device was idle."""
        marked = bool(self._traces.common_steps.size)
        return _frame(idle_rows(self._found.evidence.idle, marked=marked), IDLE_COLUMNS)

    def kernels(self) -> pd.DataFrame:
        """One row per kernel or operator name over all ranks, the longest total first."""
        return _frame(kernel_rows(self._found.kernels.job), KERNEL_COLUMNS)

    def launches(self) -> pd.DataFrame:
        """One row per rank, and one for all: how the host hands work to its device."""
        return _frame(launch_rows(self._found.evidence.launches), LAUNCH_COLUMNS)

    def queues(self) -> pd.DataFrame:
        """One row per rank and stream: how much work waited on it."""
        return _frame(queue_rows(self._traces), QUEUE_COLUMNS)

    def collectives(self) -> pd.DataFrame:
        """One row per collective or transfer that was matched over ranks, with its bandwidth."""
        return _frame(self._collective_rows, COLLECTIVE_COLUMNS)

    def calls(self) -> pd.DataFrame:
        """One row per rank and collective of it, matched or not."""
        return _frame(call_rows(self._traces, self._found.matches), CALL_COLUMNS)

    def groups(self) -> pd.DataFrame:
        """One row per group of ranks that communicate."""
        return _frame(group_rows(self._found.matches), GROUP_COLUMNS)

    def traffic(self) -> pd.DataFrame:
        """One row per kind of collective and group: calls and bytes of a step."""
        return _frame(
            traffic_rows(self._found.evidence.volume, self._found.matches), TRAFFIC_COLUMNS
        )

    def stragglers(self) -> pd.DataFrame:
        """One row per rank: what it waited for others, and others for it."""
        waits = stragglers(self._traces, self._found.matches)
        return _frame(wait_rows(waits, self._found.evidence.split), WAIT_COLUMNS)

    def metrics(self) -> pd.DataFrame:
        """One row per metric: its value, or why there is none."""
        measures = measure_all(self._found.evidence)
        values = {value.name: value.value for value in measures.values}
        rows: list[Row] = [
            {
                "name": name,
                "label": metric(name).label,
                "value": values.get(name),
                "unit": metric(name).unit,
                "better": metric(name).better,
                "version": metric(name).version,
                "absent": measures.absent.get(name),
            }
            for name in metric_names()
        ]
        return _frame(rows, METRIC_COLUMNS)

    def plot_breakdown(self, path: Path | str | None = None) -> "Figure":
        """Draw where the steps of each rank went, into a PNG file if one is given."""
        from search.traces.plots import breakdown_figure

        return _saved(breakdown_figure(self._found.evidence.split, self._found.name), path)

    def plot_timeline(self, path: Path | str | None = None) -> "Figure":
        """Draw what overlaps in one step of each rank, into a PNG file if one is given."""
        from search.traces.plots import timeline_figure

        return _saved(timeline_figure(self._traces, self._found.name), path)

    def plot_bandwidth(self, path: Path | str | None = None) -> "Figure":
        """Draw bus bandwidth against size for each collective, into a PNG file if one is given."""
        from search.traces.plots import bandwidth_figure

        return _saved(bandwidth_figure(self._collective_rows, self._found.name), path)

    @property
    def _traces(self) -> TraceSet:
        return self._found.traces

    @cached_property
    def _collective_rows(self) -> list[Row]:
        found = bandwidths(self._traces, self._found.matches)
        return collective_rows(self._traces, self._found.matches, found)


def _frame(rows: list[Row], columns: Columns) -> pd.DataFrame:
    """A table whose columns have one type each, whatever the traces tell."""
    whole = dict.fromkeys(WHOLE_NUMBERS & columns.keys(), "Int64")
    real = {
        name: "float64" for name in columns if name.endswith(REAL_NUMBERS) and name not in whole
    }
    return pd.DataFrame(rows, columns=list(columns)).astype({**whole, **real})


def _saved(figure: "Figure", path: Path | str | None) -> "Figure":
    from search.traces.plots import save

    if path is not None:
        save(figure, Path(path))
    return figure
