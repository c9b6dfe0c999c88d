"""An nvbench comparison as text tables, JSON and a Python script that loads the samples.

Times have three decimals of the largest unit that they fill; leading digits that the numbers of a
cell share are written once. The script holds texts of result files only as ASCII literals.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from rich import box
from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from evaluator.timing.decision import Verdict
from evaluator.timing.intervals.decide import Judgement, Reason
from evaluator.timing.intervals.estimate import Estimate, is_time, relative_difference
from records.errors import StudyError
from search.views.format import one_line
from search.views.terminal import TerminalColumn, number_column

if TYPE_CHECKING:
    from evaluator.timing.nvbench.compare import BenchmarkSection, ComparedFiles, StateRow
    from evaluator.timing.nvbench.read import SampleFile


NOT_AVAILABLE: Final = "n/a"
_UNITS: Final = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
_DECIMALS: Final = 3
_LEAST_COMMON_DIGITS: Final = 2


def time_cells(estimates: Sequence[Estimate]) -> list[str]:
    """The centres."""
    return [_time(each.centre) if is_time(each.centre) else NOT_AVAILABLE for each in estimates]


def span_cells(estimates: Sequence[Estimate]) -> list[str]:
    """Widths of the intervals over their centres."""
    return [
        NOT_AVAILABLE
        if each.interval is None
        else f"{each.interval.width / each.interval.centre:.1%}"
        for each in estimates
    ]


def interval_cells(estimates: Sequence[Estimate]) -> list[str]:
    """The centres with what is below and above them: `19.944 [-0.564, +0.564] us`."""
    cells = [_around(each) for each in estimates]
    centres = max((len(cell.centre) for cell in cells if cell), default=0)
    spreads = max((len(cell.spread) for cell in cells if cell and cell.one_unit), default=0)
    return [cell.padded(centres, spreads) if cell else NOT_AVAILABLE for cell in cells]


def bound_cells(estimates: Sequence[Estimate]) -> list[str]:
    """Lower bound, centre and upper bound: `[9.1 / 10.2 / 10.3] ms`, `1.4[34 / 46 / 58] ms`."""
    cells = [_bounds(each) for each in estimates]
    plain = [cell.numbers for cell in cells if cell and not cell.common]
    widths = [max(map(len, place)) for place in zip(*plain, strict=True)]
    return [
        cell.padded(widths) if cell else text
        for cell, text in zip(cells, time_cells(estimates), strict=True)
    ]


def noise_cells(estimates: Sequence[Estimate]) -> list[str]:
    """Noise over the centre."""
    return [NOT_AVAILABLE if each.noise is None else f"{each.noise:.2%}" for each in estimates]


def difference_cell(difference: float | None) -> str:
    """A relative difference with its sign."""
    return NOT_AVAILABLE if difference is None else f"{difference:+.1%}"


def change_cell(verdict: Verdict, guaranteed: float | None) -> str:
    """The least change that a claim stands for, empty where nothing is claimed."""
    signs = {Verdict.FAST: "<=", Verdict.SLOW: ">="}
    if guaranteed is None or verdict not in signs:
        return ""
    return f"{signs[verdict]} {guaranteed:+.1%}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Around:
    """A centre and its interval relative to it, empty without one, each in its unit."""

    centre: str
    unit: str
    spread: str
    spread_unit: str

    @property
    def one_unit(self) -> bool:
        return self.unit == self.spread_unit

    def padded(self, centre_chars: int, spread_chars: int) -> str:
        if not self.one_unit:
            return f"{self.centre} {self.unit} {self.spread} {self.spread_unit}"
        spread = f"{self.spread:>{spread_chars}} " if spread_chars else ""
        return f"{self.centre:>{centre_chars}} {spread}{self.unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """Three numbers of one unit without the digits that they have in common."""

    common: str
    numbers: tuple[str, ...]
    unit: str

    def padded(self, widths: Sequence[int]) -> str:
        aligned = self.numbers
        if not self.common:
            aligned = tuple(map(str.rjust, self.numbers, widths))
        return f"{self.common}[{' / '.join(aligned)}] {self.unit}"


def _around(estimate: Estimate) -> _Around | None:
    if not is_time(estimate.centre):
        return None
    unit, unit_s = _unit(estimate.centre)
    centre = f"{estimate.centre / unit_s:.{_DECIMALS}f}"
    interval = estimate.interval
    if interval is None:
        return _Around(centre=centre, unit=unit, spread="", spread_unit=unit)
    deltas = (interval.lower - interval.centre, interval.upper - interval.centre)
    spread_unit, spread_unit_s = _unit(*deltas)
    # As fine as the centre is shown, in the unit of the spread.
    decimals = max(0, _DECIMALS + round(math.log10(spread_unit_s / unit_s)))
    low, high = (f"{delta / spread_unit_s:+.{decimals}f}" for delta in deltas)
    return _Around(centre=centre, unit=unit, spread=f"[{low}, {high}]", spread_unit=spread_unit)


def _bounds(estimate: Estimate) -> _Bounds | None:
    interval = estimate.interval
    if interval is None:
        return None
    times = (interval.lower, interval.centre, interval.upper)
    unit, unit_s = _unit(*times)
    texts = [f"{time / unit_s:.{_DECIMALS}f}" for time in times]
    # Each number keeps a digit of its own.
    common = _common_start(texts)[: min(map(len, texts)) - 1]
    whole, point, fraction = common.partition(".")
    if not (point and fraction and len(whole + fraction) >= _LEAST_COMMON_DIGITS):
        common = ""
    numbers = tuple(text.removeprefix(common) for text in texts)
    return _Bounds(common=common, numbers=numbers, unit=unit)


def _time(seconds: float) -> str:
    unit, unit_s = _unit(seconds)
    return f"{seconds / unit_s:.{_DECIMALS}f} {unit}"


def _unit(*seconds: float) -> tuple[str, float]:
    """The greatest unit that the longest of these times fills, and its length in seconds."""
    longest = max(map(abs, seconds))
    return next((unit for unit in _UNITS if longest >= unit[1]), _UNITS[-1])


def _common_start(texts: Sequence[str]) -> str:
    places = zip(*texts, strict=False)
    return "".join(place[0] for place in takewhile(lambda place: len({*place}) == 1, places))


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

    def rows(self, section: "BenchmarkSection") -> "tuple[StateRow, ...]":
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


def row_facts(section: "BenchmarkSection", row: "StateRow") -> dict[str, object]:
    """One row as JSON takes it, times in seconds."""
    judgement, change = row.judgement, row.judgement.change
    return {
        "benchmark": section.benchmark,
        "state": row.candidate.name,
        "axes": {axis.name: axis.value for axis in row.candidate.axes},
        "occurrence": row.occurrence,
        "occurrence_count": row.occurrence_count,
        "reference_file": str(section.reference.path),
        "candidate_file": str(section.candidate.path),
        "reference_device": section.reference_device and section.reference_device.id,
        "candidate_device": section.candidate_device and section.candidate_device.id,
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


def _tables(found: "ComparedFiles", view: View) -> Iterator[tuple[str, list[TerminalColumn]]]:
    """Heading and columns of each table that has rows; the last column is the status."""
    several_files = len({section.candidate.path for section in found.sections}) > 1
    for section in found.sections:
        if rows := view.rows(section):
            names = [section.candidate.path.name] if several_files else []
            heading = ", ".join([*names, section.benchmark, *_device_words(section)])
            yield _cell(heading), [*_axis_columns(section, rows), *_judged(rows, view.display)]


def _device_words(section: "BenchmarkSection") -> list[str]:
    """The devices of a table, once if they are the same on both sides."""
    devices = (section.reference_device, section.candidate_device)
    words = [f"[{each.id}] {each.name}" for each in devices if each is not None]
    return [" vs. ".join(dict.fromkeys(words))] if words else []


def _axis_columns(section: "BenchmarkSection", rows: "Sequence[StateRow]") -> list[TerminalColumn]:
    places = [{axis.name: axis.shown for axis in row.candidate.axes} for row in rows]
    names = dict.fromkeys([*section.axis_names, *(name for at in places for name in at)])
    return [
        TerminalColumn(
            heading=_cell(name), cells=[_cell(at.get(name, "")) for at in places], yielding=True
        )
        for name in names
    ]


def _judged(rows: "Sequence[StateRow]", display: Display) -> list[TerminalColumn]:
    judgements = [row.judgement for row in rows]
    old = [each.reference or Estimate(centre=None) for each in judgements]
    new = [each.candidate or Estimate(centre=None) for each in judgements]
    differences = [difference_cell(_centre_difference(each)) for each in judgements]
    match display:
        case Display.SIMPLE:
            own = [
                number_column("Ref", time_cells(old)),
                number_column("Ref Span", span_cells(old)),
                number_column("Cmp", time_cells(new)),
                number_column("Cmp Span", span_cells(new)),
                number_column("%C Diff", differences),
            ]
        case Display.INTERVALS:
            own = [
                number_column("Ref", interval_cells(old)),
                number_column("Cmp", interval_cells(new)),
            ]
        case Display.EXPLAIN:
            own = [
                number_column("Ref [Lo / Ce / Hi]", bound_cells(old)),
                number_column("Cmp [Lo / Ce / Hi]", bound_cells(new)),
                number_column("Ref Noise", noise_cells(old)),
                number_column("Cmp Noise", noise_cells(new)),
                TerminalColumn(heading="Reason", cells=[each.reason.short for each in judgements]),
            ]
    changes = [change_cell(each.verdict, each.guaranteed) for each in judgements]
    statuses = [STATUS_WORDS[each.verdict] for each in judgements]
    return [
        *own,
        number_column("Change", changes),
        TerminalColumn(heading="Status", cells=statuses),
    ]


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


def _markdown(columns: Sequence[TerminalColumn]) -> list[str]:
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


_HEAD: Final = '''\
# BULK-BEGIN
"""Raw samples of compared benchmark states: `load(ROWS[0])` reads those of the first row."""

import numpy as np

'''
_LOADER: Final = '''

def read(path, count):
    """The samples of a file, float32; None where a row has no such file."""
    if path is None:
        return None
    samples = np.fromfile(path, dtype="<f4")
    if len(samples) != count:
        raise ValueError(f"{path!r} holds {len(samples)} samples, not {count}")
    return samples


def load(row):
    """Times in seconds and clock rates in hertz of both sides of a row."""
    return {
        name: read(row[f"{name}_file"], row[f"{name}_count"])
        for name in ("reference_times", "reference_clocks", "candidate_times", "candidate_clocks")
    }
# BULK-END
'''


def bulk_script(found: "ComparedFiles", view: View) -> str:
    """The program for the rows that `view` shows, in their order."""
    rows = [
        (section, place, row)
        for section in found.sections
        for place, row in enumerate(view.rows(section))
    ]
    entries = "".join(_entry(index, *each) for index, each in enumerate(rows))
    return f"{_HEAD}ROWS = [\n{entries}]\n{_LOADER}"


def _entry(index: int, section: "BenchmarkSection", table_index: int, row: "StateRow") -> str:
    facts: dict[str, object] = {
        "row_index": index,
        "table_row_index": table_index,
        "status": STATUS_WORDS[row.judgement.verdict],
        **row_facts(section, row),
        **_file("reference_times", row.reference.times),
        **_file("reference_clocks", row.reference.clocks),
        **_file("candidate_times", row.candidate.times),
        **_file("candidate_clocks", row.candidate.clocks),
    }
    items = "".join(f"        {name!a}: {value!a},\n" for name, value in facts.items())
    return f"    {{\n{items}    }},\n"


def _file(name: str, file: "SampleFile | None") -> dict[str, object]:
    path = None if file is None else file.path
    return {
        f"{name}_file": None if path is None else str(path),
        f"{name}_count": None if file is None else file.count,
    }
