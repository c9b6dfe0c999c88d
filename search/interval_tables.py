"""What the comparison of result files found: tables for terminals and for pipes, and JSON."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from rich import box
from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from evaluator.timing.interval.estimates import Estimate, is_time, relative_difference
from evaluator.timing.interval.judgement import Judgement, Reason
from evaluator.timing.verdict import Verdict
from records.errors import StudyError
from search.interval_cells import (
    bound_cells,
    change_cell,
    difference_cell,
    interval_cells,
    noise_cells,
    span_cells,
    time_cells,
)
from search.tables import Column, numbers
from search.words.trial import one_line

if TYPE_CHECKING:
    from evaluator.timing.nvbench.compare import ComparedFiles, Row, Section

NAME_CHARS: Final = 80
STATUS_WORDS: Final[Mapping[Verdict, str]] = {
    Verdict.FAST: "FAST",
    Verdict.SLOW: "SLOW",
    Verdict.SAME: "SAME",
    Verdict.UNDECIDED: "AMBG",
    Verdict.UNKNOWN: "????",
}
_COLOURS: Final[Mapping[str, str]] = {
    "FAST": "green",
    "SLOW": "red",
    "SAME": "blue",
    "AMBG": "bright_black",
    "????": "yellow",
}


class Display(StrEnum):
    """How much a table tells of each row."""

    SIMPLE = "simple"
    INTERVALS = "intervals"
    EXPLAIN = "explain"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What to show: rows whose centres differ by less than the threshold are only counted."""

    display: Display = Display.INTERVALS
    threshold_percent: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.threshold_percent < math.inf:
            raise StudyError(
                f"--threshold-diff {self.threshold_percent}: give a percentage of at least 0"
            )

    def rows(self, section: "Section") -> "tuple[Row, ...]":
        """Rows of the section's table; those without a difference are in every table."""
        differences = [_centre_difference(row.judgement) for row in section.rows]
        return tuple(
            row
            for row, difference in zip(section.rows, differences, strict=True)
            if difference is None or abs(difference) * 100 >= self.threshold_percent
        )


def report_lines(found: "ComparedFiles", view: View) -> list[str]:
    """Tables and summary as Markdown."""
    lines = list[str]()
    for heading, columns in _tables(found, view):
        lines += [f"# {heading}", "", *_markdown(columns), ""]
    return [*lines, "# summary", "", *summary_lines(found, view)]


def report_renderables(found: "ComparedFiles", view: View) -> Iterator[RenderableType]:
    """Tables and summary for a terminal, the verdicts in colours."""
    for heading, columns in _tables(found, view):
        yield Text(heading, style="bold")
        table = Table(box=box.SIMPLE)
        for column in columns:
            table.add_column(
                Text(column.heading), justify=column.align, no_wrap=not column.yielding
            )
        for cells in zip(*(column.cells for column in columns), strict=True):
            status = Text(cells[-1], style=_COLOURS[cells[-1]])
            table.add_row(*(Text(cell) for cell in cells[:-1]), status)
        yield table
    yield from map(Text, summary_lines(found, view))


def summary_lines(found: "ComparedFiles", view: View) -> list[str]:
    """How many rows have which verdict, hidden ones too, and why it is none."""
    judgements = [row.judgement for row in found.rows]
    counts = Counter(each.verdict for each in judgements)
    unsure = [each for each in judgements if each.verdict is Verdict.UNDECIDED]
    shown = [row for section in found.sections for row in view.rows(section)]
    lines = [
        f"- total: {len(judgements)}",
        f"  - unchanged: {counts[Verdict.SAME]}",
        f"  - improvement: {counts[Verdict.FAST]}",
        f"  - regression: {counts[Verdict.SLOW]}",
        f"  - ambiguous: {len(unsure)}",
        *_reason_lines(unsure),
        f"  - unknown: {counts[Verdict.UNKNOWN]}",
    ]
    if len(shown) < len(judgements):
        hidden = len(judgements) - len(shown)
        lines.append(f"- not shown, below {view.threshold_percent:g} %: {hidden}")
    if view.display is Display.EXPLAIN:
        lines += _legend_lines({row.judgement.reason for row in shown})
    return lines


def comparison_facts(found: "ComparedFiles") -> dict[str, object]:
    """All rows, counts and warnings, as JSON takes them."""
    counts = Counter(row.judgement.verdict for row in found.rows)
    return {
        "rows": [row_facts(section, row) for section in found.sections for row in section.rows],
        "counts": {verdict.value: counts[verdict] for verdict in Verdict},
        "warnings": list(found.warnings),
    }


def row_facts(section: "Section", row: "Row") -> dict[str, object]:
    """One row as JSON takes it, times in seconds."""
    group, pair, judgement = section.group, row.pair, row.judgement
    change = judgement.change
    return {
        "benchmark": group.benchmark,
        "state": pair.candidate.name,
        "axes": {axis.name: axis.value for axis in pair.candidate.axes},
        "occurrence": pair.occurrence,
        "occurrence_count": pair.occurrence_count,
        "reference_file": str(group.reference.path),
        "candidate_file": str(group.candidate.path),
        "reference_device": group.reference_device and group.reference_device.id,
        "candidate_device": group.candidate_device and group.candidate_device.id,
        "verdict": judgement.verdict.value,
        "reason": judgement.reason.value,
        "message": judgement.message,
        "family": judgement.family.value,
        "reference": _estimate_facts(judgement.reference),
        "candidate": _estimate_facts(judgement.candidate),
        "difference_s": _finite(change.difference_s) if change else None,
        "relative_change": _finite(change.relative) if change else None,
    }


def _finite(bounds: tuple[float, float]) -> list[float] | None:
    """Both bounds; None where times lie too far apart for a number."""
    return list(bounds) if all(map(math.isfinite, bounds)) else None


def _estimate_facts(estimate: Estimate | None) -> dict[str, float | None] | None:
    if estimate is None:
        return None
    interval = estimate.interval
    return {
        "centre_s": estimate.centre if is_time(estimate.centre) else None,
        "lower_s": interval.lower if interval else None,
        "upper_s": interval.upper if interval else None,
        "noise": estimate.noise,
    }


def _tables(found: "ComparedFiles", view: View) -> Iterator[tuple[str, list[Column]]]:
    """Heading and columns of each table that has rows; the last column is the status."""
    several_files = len({section.group.candidate.path for section in found.sections}) > 1
    for section in found.sections:
        if rows := view.rows(section):
            names = [section.group.candidate.path.name] if several_files else []
            heading = ", ".join([*names, section.group.benchmark, *_device_words(section)])
            yield _cell(heading), [*_axis_columns(section, rows), *_judged(rows, view.display)]


def _device_words(section: "Section") -> list[str]:
    """The devices of a table, once if they are the same on both sides."""
    devices = (section.group.reference_device, section.group.candidate_device)
    words = [f"[{each.id}] {each.name}" for each in devices if each is not None]
    return [" vs. ".join(dict.fromkeys(words))] if words else []


def _axis_columns(section: "Section", rows: "Sequence[Row]") -> list[Column]:
    places = [{axis.name: axis.shown for axis in row.pair.candidate.axes} for row in rows]
    names = dict.fromkeys([*section.group.axis_names, *(name for at in places for name in at)])
    return [
        Column(heading=_cell(name), cells=[_cell(at.get(name, "")) for at in places], yielding=True)
        for name in names
    ]


def _judged(rows: "Sequence[Row]", display: Display) -> list[Column]:
    judgements = [row.judgement for row in rows]
    old = [each.reference or Estimate(centre=None) for each in judgements]
    new = [each.candidate or Estimate(centre=None) for each in judgements]
    differences = [difference_cell(_centre_difference(each)) for each in judgements]
    match display:
        case Display.SIMPLE:
            own = [
                numbers("Ref", time_cells(old)),
                numbers("Ref Span", span_cells(old)),
                numbers("Cmp", time_cells(new)),
                numbers("Cmp Span", span_cells(new)),
                numbers("%C Diff", differences),
            ]
        case Display.INTERVALS:
            own = [numbers("Ref", interval_cells(old)), numbers("Cmp", interval_cells(new))]
        case Display.EXPLAIN:
            own = [
                numbers("Ref [Lo / Ce / Hi]", bound_cells(old)),
                numbers("Cmp [Lo / Ce / Hi]", bound_cells(new)),
                numbers("Ref Noise", noise_cells(old)),
                numbers("Cmp Noise", noise_cells(new)),
                Column(heading="Reason", cells=[each.reason.short for each in judgements]),
            ]
    changes = [change_cell(each.verdict, each.guaranteed) for each in judgements]
    statuses = [STATUS_WORDS[each.verdict] for each in judgements]
    return [*own, numbers("Change", changes), Column(heading="Status", cells=statuses)]


def _centre_difference(judgement: Judgement) -> float | None:
    """Candidate's centre over the reference's, relative to the smaller; None without both."""
    sides = (judgement.candidate, judgement.reference)
    new, old = (None if side is None else side.centre for side in sides)
    return relative_difference(new, old) if is_time(new) and is_time(old) else None


def _reason_lines(judgements: Sequence[Judgement]) -> list[str]:
    """Reasons by how often, each with the message of its worst case."""
    worst = dict[Reason, Judgement]()
    for each in judgements:
        if each.reason not in worst or each.severity > worst[each.reason].severity:
            worst[each.reason] = each
    counts = Counter(each.reason for each in judgements)
    return [
        f"    - {reason}: {count} ({worst[reason].message})"
        for reason, count in counts.most_common()
    ]


def _legend_lines(reasons: Collection[Reason]) -> list[str]:
    """What the codes of a table stand for that do not say it themselves."""
    return [
        f"- {reason.short} = {reason.value}"
        for reason in sorted(reasons, key=lambda each: each.short)
        if reason.short != reason.value.replace("_", "-")
    ]


def _markdown(columns: Sequence[Column]) -> list[str]:
    widths = [max(map(cell_len, (each.heading, *each.cells))) for each in columns]
    rule = [
        f"{'-' * (cells + 1)}{':' if each.align == 'right' else '-'}"
        for each, cells in zip(columns, widths, strict=True)
    ]
    rows = [
        [each.heading for each in columns],
        *zip(*(each.cells for each in columns), strict=True),
    ]
    texts = [
        " | ".join(
            _padded(text, cells, each.align)
            for text, cells, each in zip(row, widths, columns, strict=True)
        )
        for row in rows
    ]
    return [f"| {texts[0]} |", f"|{'|'.join(rule)}|", *(f"| {text} |" for text in texts[1:])]


def _padded(text: str, cells: int, align: str) -> str:
    blank = " " * (cells - cell_len(text))
    return blank + text if align == "right" else text + blank


def _cell(text: str) -> str:
    """Text of a file as a table can hold it."""
    return one_line(text, NAME_CHARS).replace("|", "/")
