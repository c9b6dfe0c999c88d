"""Timings side by side: a table per label, a row per statement, a column per description."""

from collections.abc import Iterable, Iterator, Sequence

import typer

from evaluator.timing.decision import Spread
from evaluator.timing.timing import Timing, Unit, merge, select_unit
from search.views.document import Column, Document, Facts, Paragraph, Section, Table, number_column
from search.views.format import one_line
from search.views.terminal import CELL_CHARS, print_blocks

UNSPECIFIED = "unspecified"


def print_timings(timings: Iterable[Timing]) -> None:
    """Print tables of timings: each median with its 95 % interval."""
    for place, section in enumerate(timings_document(timings).sections):
        if place:
            typer.echo("")
        print_blocks(section.blocks, spaced=True)


def timings_document(timings: Iterable[Timing]) -> Document:
    """Return a table for each label; replicates of a task share a cell.

    Raises `ValueError` where two tasks have the same row and column.
    """
    by_label: dict[str | None, list[Timing]] = {}
    for timing in merge(timings):
        by_label.setdefault(timing.task.label, []).append(timing)
    sections = (_section(label, group) for label, group in by_label.items())
    return Document(title="Timings", lead="", sections=tuple(sections))


def _section(label: str | None, timings: Sequence[Timing]) -> Section:
    cells: dict[tuple[tuple[int, str, str], str], Spread] = {}
    for task, found in ((timing.task, timing.estimate) for timing in timings):
        row, column = (task.num_threads, task.env or "", task.row_name), task.description or "time"
        if (row, column) in cells:
            raise ValueError(
                f"row {task.row_name!r}, column {task.description!r} has two tasks; give them "
                "other sub_labels or descriptions"
            )
        cells[row, column] = found
    rows = sorted(dict.fromkeys(row for row, _ in cells), key=lambda row: row[:2])
    threads, envs, names = zip(*rows, strict=True)
    unit = select_unit(min(found.centre for found in cells.values()))
    columns = [Column(heading="", cells=names)]
    if len(set(envs)) > 1:
        columns.insert(0, Column(heading="environment", cells=[x or UNSPECIFIED for x in envs]))
    if set(threads) != {1}:
        columns.insert(0, number_column("threads", list(map(str, threads))))
    for name in dict.fromkeys(column for _, column in cells):
        columns += _timed(name, [cells.get((row, name)) for row in rows], unit)
    heading = "" if label is None else one_line(label, CELL_CHARS)
    blocks = (
        Table.of(*columns, about=heading),
        Paragraph(text=f"Times are in {unit.word} ({unit.symbol})."),
        Facts(lines=tuple(_legend(list(cells.values())))),
    )
    return Section(name=heading, heading=heading or "Timings", lead="", blocks=blocks)


def _timed(name: str, found: Sequence[Spread | None], unit: Unit) -> list[Column]:
    """Medians, their intervals and numbers of launches, as far as there are any."""
    columns = [
        number_column(name, ["" if x is None else _in_unit(x.centre, unit) for x in found]),
        Column(heading="", cells=["" if x is None else _interval(x, unit) for x in found]),
    ]
    if any(x is not None and x.launch_count > 1 for x in found):
        counts = ["" if x is None else f"n={x.launch_count}" for x in found]
        columns.append(Column(heading="", cells=counts))
    return columns[:1] + [each for each in columns[1:] if any(each.cells)]


def _interval(found: Spread, unit: Unit) -> str:
    if found.low is not None and found.high is not None:
        return f"[{_in_unit(found.low, unit)}, {_in_unit(found.high, unit)}]"
    return f"({', '.join(_in_unit(x, unit) for x in found.both)})" if found.both else ""


def _in_unit(seconds: float, unit: Unit) -> str:
    return f"{seconds / unit.size_s:.1f}"


def _legend(found: Sequence[Spread]) -> Iterator[tuple[str, str]]:
    if any(each.low is not None for each in found):
        several = any(each.launch_count > 1 for each in found)
        over = "over n launches; n=1: within one launch" if several else "within one launch"
        yield (
            "[low, high]",
            f"95 % interval of the median {over}, another launch may differ by more.",
        )
    if any(each.both for each in found):
        yield "(x, y)", "the two launches, too few for an interval."
