"""The folder of files that an analysis is written to."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

from records.errors import StoreError
from search.bench_analysis.analysis import Analysis
from search.bench_analysis.facts import analysis_facts
from search.bench_analysis.highlights import highlights, highlights_lines, limit_lines
from search.bench_analysis.history_plots import history_figures
from search.bench_analysis.pair_plots import Scene, pair_figures
from search.bench_analysis.point_tables import comparison, history, standing_table, summary
from search.bench_analysis.points import DevicePoint
from search.bench_analysis.results import Results
from search.bench_analysis.tables import Table, csv_text, text_lines
from search.bench_analysis.verdicts import PairVerdicts, Standing
from search.traces.plots import save

VERDICT: Final = "verdict.json"
LEAST_HISTORY: Final = 3
"""Labels from which on their order tells something."""
WORDS: Final = {Standing.REGRESSION: "regressed", Standing.IMPROVEMENT: "improved"}
FILES: Final = {Standing.REGRESSION: "perf_regress", Standing.IMPROVEMENT: "perf_improve"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Files below one folder; raises `StoreError` for what cannot be written."""

    root: Path
    doing: Callable[[str], None]

    def write(self, found: Analysis, *, summary_only: bool) -> None:
        """Write everything; the verdicts come last, so that they stand for a whole tree."""
        self._forget(VERDICT)
        for results in found.results:
            self._table(f"perf_summary_{results.label}", *_summary(found, results))
        if summary_only:
            return
        if found.baseline is not None:
            lines = (*limit_lines(found.limits), "", *text_lines(comparison(found)))
            self._table("perf_comparison", comparison(found), lines)
        for pair in found.pairs:
            self._pair(found, pair)
        if len(found.results) >= LEAST_HISTORY:
            self._table("perf_history", history(found), text_lines(history(found)))
        for name, figure in _figures(found):
            self.doing(f"drawing {name}")
            self._figure(name, figure)
        facts = json.dumps(analysis_facts(found), indent=1, allow_nan=False)
        self._text(VERDICT, f"{facts}\n")

    def _pair(self, found: Analysis, pair: PairVerdicts) -> None:
        for standing, name in FILES.items():
            table = standing_table(found, pair, standing)
            self._table(f"{pair.name}/{name}", table, _standing_lines(found, pair, standing, table))
        lines = highlights_lines(found, pair)
        self._table(f"{pair.name}/perf_highlights", highlights(found, pair), lines)

    def _table(self, name: str, table: Table, lines: Iterable[str]) -> None:
        self._text(f"{name}.csv", csv_text(table))
        self._text(f"{name}.txt", "".join(f"{line}\n" for line in lines))

    def _text(self, name: str, text: str) -> None:
        path = self._path(name)
        try:
            path.write_text(text, encoding="utf-8", newline="")
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from error

    def _figure(self, name: str, figure: Figure) -> None:
        save(figure, self._path(name))

    def _path(self, name: str) -> Path:
        """Where a file goes, in a folder that is there."""
        path = self.root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot make {path.parent}: {error.strerror}; give another --outdir"
            ) from error
        return path

    def _forget(self, name: str) -> None:
        """Remove what an earlier analysis said, which would pass for this one's."""
        path = self._path(name)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot replace {path}: {error.strerror}") from error


def _summary(found: Analysis, results: Results) -> tuple[Table, list[str]]:
    table = summary(results, found.names)
    told = (
        f"not measured: {row.point}, {row.status} ({row.columns.get('Reason', 'no reason')})"
        for row in results.left_out
    )
    left_out = list(dict.fromkeys(told))
    return table, [*text_lines(table), *([""] if left_out else []), *left_out]


def _standing_lines(
    found: Analysis, pair: PairVerdicts, standing: Standing, table: Table
) -> Iterator[str]:
    words = f"{pair.label} against {pair.baseline}"
    if table.rows:
        yield f"{words}: {len(table.rows)} of {pair.judged_count} points {WORDS[standing]}"
    else:
        yield f"{words}: no {standing} in {pair.judged_count} points"
    yield from limit_lines(found.limits)
    if table.rows:
        yield ""
        yield from text_lines(table)


def _figures(found: Analysis) -> Iterator[tuple[str, Figure]]:
    """Every plot with its place in the tree."""
    by_name: dict[tuple[str, str], list[DevicePoint]] = {}
    for point in found.points():
        by_name.setdefault((point.point.collective, point.point.operation), []).append(point)
    for key, points in by_name.items():
        folder, name = f"plots/{key[0]}", found.names[key]
        for pair in found.pairs:
            for kind, figure in _pair_figures(found, pair, name, points):
                yield f"{folder}/{name}_{pair.name}_{kind}.png", figure
        if len(found.results) >= LEAST_HISTORY:
            for kind, figure in history_figures(found, name, tuple(points)):
                yield f"{folder}/history_{name}_{kind}.png", figure


def _pair_figures(
    found: Analysis, pair: PairVerdicts, name: str, points: list[DevicePoint]
) -> Iterator[tuple[str, Figure]]:
    own, baseline = found.named(pair.label), found.named(pair.baseline)
    here = tuple(point for point in points if point in own.rows or point in baseline.rows)
    scene = Scene(
        name=name,
        own=own,
        baseline=baseline,
        verdicts=pair,
        limits=found.limits,
        points=here,
    )
    yield from pair_figures(scene)
