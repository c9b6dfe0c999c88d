"""Timings side by side: a table per label, a row per statement, a column per description."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import typer
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from evaluator.timing.decision import DecisionRule, LaunchValue, Round, Spread, Verdict, decide
from evaluator.timing.timing import Timing, Unit, decimals, merge, select_unit, trim
from search.views.console import Terminal, on_terminal
from search.views.format import one_line
from search.views.terminal import CELL_CHARS, GAP

UNTRIMMED_DECIMALS = 1
UNSPECIFIED = "unspecified"
AS_GOOD, AS_GOOD_S = 1.01, 100e-9
"""Times this close to the best are as good in practice."""

ONE_LOOK = DecisionRule(min_rounds=2, look_often=False)

RowKey: TypeAlias = tuple[int, str | None, str]
"""Threads, environment and name of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How tables of timings look; `compare` is among which cells the best is sought."""

    trim_figures: bool = False
    highlight_warnings: bool = False
    compare: Literal["nothing", "columns", "rows"] = "nothing"


PLAIN = Look()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """A timing and its median with interval."""

    timing: Timing
    told: Spread

    @property
    def centre(self) -> float:
        return self.told.centre

    @property
    def figures(self) -> int | None:
        """Figures that are known, or as many more as keep the median in its interval."""
        known, low, high = self.timing.significant_figures, self.told.low, self.told.high
        if known is None or low is None or high is None:
            return known
        enough = (
            figures
            for figures in range(known, sys.float_info.dig)
            if low <= trim(self.centre, figures) <= high
        )
        return next(enough, known)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """The cells of one table by row and column."""

    rows: Sequence[RowKey]
    columns: Sequence[str | None]
    cells: dict[tuple[RowKey, str | None], _Cell]

    def column(self, name: str | None) -> list[_Cell | None]:
        """The cells of a column from top to bottom."""
        return [self.cells.get((row, name)) for row in self.rows]

    def best(self, row: RowKey, column: str | None, look: Look) -> _Cell:
        """Of the cells that one is compared with: its row, or its column at as many threads."""
        among = [
            cell
            for (other, name), cell in self.cells.items()
            if (other == row if look.compare == "rows" else (other[0], name) == (row[0], column))
        ]
        return min(among, key=lambda cell: cell.centre)


def print_timings(timings: Iterable[Timing], look: Look = PLAIN) -> None:
    """Print tables of timings, in colour where somebody looks."""
    tables = Text("\n\n").join(timing_tables(timings, look))
    if on_terminal():
        Terminal().print(tables, soft_wrap=True)
    else:
        typer.echo(tables.plain)


def timing_tables(timings: Iterable[Timing], look: Look = PLAIN) -> list[Text]:
    """Lay out a table for each label, first seen first; replicates of a task share a cell."""
    by_label: dict[str | None, list[Timing]] = {}
    for timing in merge(timings):
        by_label.setdefault(timing.task.label, []).append(timing)
    return [_table(label, _grid(group), look) for label, group in by_label.items()]


def _grid(timings: Sequence[Timing]) -> _Grid:
    cells: dict[tuple[RowKey, str | None], _Cell] = {}
    for timing in timings:
        task = timing.task
        place = (task.num_threads, task.env, task.row_name), task.description
        if place in cells:
            where = f"row {task.row_name!r}, column {task.description!r}"
            raise ValueError(f"{where} has two tasks; give them other sub_labels or descriptions")
        cells[place] = _Cell(timing=timing, told=timing.estimate)
    rows = dict.fromkeys(row for row, _ in cells)
    return _Grid(
        rows=sorted(rows, key=lambda row: (row[0], row[1] or "")),
        columns=list(dict.fromkeys(column for _, column in cells)),
        cells=cells,
    )


def _table(label: str | None, grid: _Grid, look: Look) -> Text:
    unit = select_unit(min(cell.centre for cell in grid.cells.values()))
    columns = [_row_names(grid), *(_column(grid, name, unit, look) for name in grid.columns)]
    heading, *rows = (Text(" " * GAP).join(row) for row in zip(*columns, strict=True))
    width = heading.cell_len
    title = [f"[{f' {_shown(label)} '.center(width - 2, '-')}]"] if label is not None else []
    lines = [*map(Text, title), heading]
    before = None
    for (threads, _, _), row in zip(grid.rows, rows, strict=True):
        if threads != before:
            words = f"{threads} thread{'s' if threads > 1 else ''}: "
            lines.append(Text(words.ljust(width, "-")))
        lines.append(row)
        before = threads
    for line in lines:
        line.rstrip()
    footer = f"Times are in {unit.word} ({unit.symbol})."
    return Text("\n").join([*lines, Text(), *map(Text, (footer, *_legend(grid, look)))])


def _row_names(grid: _Grid) -> list[Text]:
    """The first column: environments, on their first rows where there are several, and names."""
    several = len({env for _, env, _ in grid.rows}) > 1
    envs = [""]
    before: tuple[int, str | None] | None = None
    for threads, env, _ in grid.rows:
        first = (threads, env) != before
        envs.append(f"({_shown(env or UNSPECIFIED)})" if several and first else "")
        before = threads, env
    names = ["", *(_shown(name) for _, _, name in grid.rows)]
    return [Text(f"  {line}") for line in _joined([envs, names])]


def _column(grid: _Grid, name: str | None, unit: Unit, look: Look) -> list[Text]:
    """A heading and its cells, all of one width."""
    cells = grid.column(name)
    held = [cell for cell in cells if cell is not None]
    digits = _decimals(held, unit) if look.trim_figures else UNTRIMMED_DECIMALS
    several = _several(grid)
    medians = ["" if cell is None else _median(cell, unit, digits, look) for cell in cells]
    widest = max(map(len, medians))
    parts = [
        [median.rjust(widest) for median in medians],
        ["" if cell is None else _interval(cell, unit, digits) for cell in cells],
        [f"n={cell.told.launch_count}" if cell is not None and several else "" for cell in cells],
        [_warning(cell) if cell is not None and look.highlight_warnings else "" for cell in cells],
    ]
    heading, *texts = _aligned([_shown(name or ""), *_joined(parts)])
    styles = [
        _style(cell, grid.best(row, name, look)) if cell is not None and _compared(look) else ""
        for row, cell in zip(grid.rows, cells, strict=True)
    ]
    return [Text(heading), *map(Text, texts, styles)]


def _style(cell: _Cell, best: _Cell) -> str:
    ratio = cell.centre / best.centre
    as_good = ratio <= AS_GOOD or cell.centre <= best.centre + AS_GOOD_S
    if as_good or not _is_slower(cell, best):
        return "bold green"
    if ratio <= 1.1:
        return "bold blue"
    if ratio >= 5:
        return "red"
    return "dim red" if ratio >= 2 else ""


def _is_slower(cell: _Cell, best: _Cell) -> bool:
    """Whether a cell is slower than the best as far as is known; without intervals it counts so.

    Launches of one name were taken together and are compared in pairs.
    """
    ours, theirs = cell.timing.launch_medians, best.timing.launch_medians
    rounds = [
        Round(candidate=LaunchValue(value=ours[name]), anchor=LaunchValue(value=theirs[name]))
        for name in ours
        if name in theirs
    ]
    if len(rounds) >= ONE_LOOK.min_rounds:
        return decide(rounds, ONE_LOOK).verdict is Verdict.SLOW
    low, high = cell.told.low, best.told.high
    return low is None or high is None or low > high


def _median(cell: _Cell, unit: Unit, digits: int, look: Look) -> str:
    value = cell.centre / unit.size_s
    figures = cell.figures if look.trim_figures else None
    return f"{trim(value, figures) if figures else value:.{digits}f}"


def _interval(cell: _Cell, unit: Unit, digits: int) -> str:
    low, high = cell.told.low, cell.told.high
    if low is None or high is None:
        both = (f"{value / unit.size_s:.{digits}f}" for value in cell.told.values)
        return f"({', '.join(both)})" if cell.told.launch_count == 2 else ""
    return f"[{low / unit.size_s:.{digits}f}, {high / unit.size_s:.{digits}f}]"


def _warning(cell: _Cell) -> str:
    return "" if cell.timing.meets_confidence() else f"(! {cell.timing.relative_iqr:.0%})"


def _decimals(cells: Sequence[_Cell], unit: Unit) -> int:
    """Digits after the point that all cells with known figures have."""
    known = ((cell.figures, cell.centre / unit.size_s) for cell in cells)
    return min(
        (decimals(value, figures) for figures, value in known if figures),
        default=UNTRIMMED_DECIMALS,
    )


def _legend(grid: _Grid, look: Look) -> list[str]:
    cells = grid.cells.values()
    lines = []
    if any(cell.told.low is not None for cell in cells):
        over = "over n launches; n=1: within one launch" if _several(grid) else "within one launch"
        lines.append(
            f"[low, high]: 95 % interval of the median {over}, another may differ by more."
        )
    if any(cell.told.launch_count == 2 for cell in cells):
        lines.append("(x, y): the two launches, too few for an interval.")
    if look.highlight_warnings and any(map(_warning, cells)):
        lines.append("(! XX%): times vary, their interquartile range is XX % of their median.")
    return lines


def _several(grid: _Grid) -> bool:
    return any(cell.told.launch_count > 1 for cell in grid.cells.values())


def _compared(look: Look) -> bool:
    return look.compare != "nothing"


def _joined(parts: Sequence[Sequence[str]]) -> list[str]:
    """Parts of cells side by side, each as wide as its widest; a part that is empty vanishes."""
    return [" ".join(cell) for cell in zip(*(_aligned(p) for p in parts if any(p)), strict=True)]


def _aligned(cells: Sequence[str]) -> list[str]:
    """Cells brought to one width."""
    widest = max(map(cell_len, cells))
    return [set_cell_size(cell, widest) for cell in cells]


def _shown(text: str) -> str:
    return one_line(text, CELL_CHARS)
