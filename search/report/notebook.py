"""A recorded study in a notebook: what `cclsearch.study` returns."""

import html
from pathlib import Path

import pandas as pd

from records.errors import StudyError
from records.store.rows import StudyRow
from search.report.report import study_report
from search.settings import open_store
from search.views.document import Chart, Document
from search.views.frames import trials
from search.views.html import ShownChart, render_html, write_chart

HEIGHT_PX = 720


def study(study_id: str = "", store: Path | str | None = None) -> "RecordedStudy":
    """Return a recorded study by its id or a prefix of it, the newest by default.

    `store` is the folder of the records. Raises `StudyError` when there is no such study.
    """
    with open_store(None if store is None else Path(store)) as records:
        row = records.find(study_id)
        return RecordedStudy(row, study_report(row, records, ""), records.root)


class RecordedStudy:
    """A study as it was recorded when this was made: its report, trials and charts."""

    def __init__(self, row: StudyRow, report: Document, store: Path) -> None:
        self.id = row.id
        self._report, self._store = report, store

    def __repr__(self) -> str:
        return f"RecordedStudy({self.id!r}): {self._report.lead}"

    def _repr_html_(self) -> str:
        page = html.escape(render_html(self._report))
        return f'<iframe srcdoc="{page}" width="100%" height="{HEIGHT_PX}" sandbox></iframe>'

    def trials(self) -> pd.DataFrame:
        """One row per trial: configuration, result and every metric."""
        return trials(self.id, self._store)

    def plot_history(self, path: Path | str | None = None) -> ShownChart:
        """Draw every trial in order and the best so far, also into an SVG or HTML file."""
        return self._chart("history", path)

    def plot_front(self, path: Path | str | None = None) -> ShownChart:
        """Draw the Pareto front, also into a file if one is given."""
        return self._chart("front", path)

    def plot_parallel(self, path: Path | str | None = None) -> ShownChart:
        """Draw configurations as parallel coordinates, also into a file if one is given."""
        return self._chart("knobs", path)

    def plot_importance(self, path: Path | str | None = None) -> ShownChart:
        """Draw how much each knob matters, also into a file if one is given."""
        return self._chart("importance", path)

    def plot_breakdown(self, path: Path | str | None = None) -> ShownChart:
        """Draw where the step of each trial went, also into a file if one is given."""
        return self._chart("time", path)

    def _chart(self, name: str, path: Path | str | None) -> ShownChart:
        """Return the first chart of a section of the report.

        Raises `StudyError` with the section's own reason where it has none.
        """
        section = next((each for each in self._report.sections if each.name == name), None)
        charts = [each for each in section.blocks if isinstance(each, Chart)] if section else []
        if section is None or not charts:
            why = section.lead if section is not None else "nothing was measured that it would show"
            raise StudyError(f"study {self.id} has no such chart: {why}")
        if path is not None:
            write_chart(charts[0].drawn, section.heading, Path(path))
        return ShownChart(charts[0].drawn)
