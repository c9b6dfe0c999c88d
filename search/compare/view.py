"""A comparison of two sides as text and as JSON: the verdict, its reason and the values."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import takewhile

from rich.text import Text

from evaluator.timing.decision import Comparison, Verdict
from evaluator.timing.screening.decide import Judgement
from records.errors import StudyError
from search.compare.compare import ComparisonRow, Comparisons, Reading
from search.views.format import (
    ABSENT,
    REASONS,
    disturbed_words,
    format_confidence,
    format_duration,
    format_number,
    format_percent,
)
from search.views.terminal import TerminalColumn, number_column, page_cells, table_lines

LEAST_DIFFERENCE = 1.1
"""Ratio below which a third decimal is shown."""
PLOT_CELLS = 60
COLOURS = {
    Verdict.FAST: "green",
    Verdict.SLOW: "red",
    Verdict.SAME: "blue",
    Verdict.UNDECIDED: "yellow",
    Verdict.UNKNOWN: "yellow",
}
MISSING = "n/a"


class Display(StrEnum):
    """How much a table shows of each row."""

    SIMPLE = "simple"
    INTERVALS = "intervals"
    EXPLAIN = "explain"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What to show: rows whose values differ by less than the threshold are only counted."""

    display: Display = Display.INTERVALS
    threshold_percent: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.threshold_percent < math.inf:
            raise StudyError(
                f"--threshold-diff {self.threshold_percent}: give a percentage of at least 0"
            )

    def shows(self, change: float | None) -> bool:
        """Whether a row with this relative change is in the table; one without a change is."""
        return change is None or abs(change) * 100 >= self.threshold_percent

    def hidden_lines(self, count: int) -> Iterator[str]:
        """How many rows are not in the table; nothing where all are."""
        if count:
            yield f"not shown: {count} that differ by less than {self.threshold_percent:g} %"


def comparison_lines(found: Comparisons, view: View, *, unicode: bool) -> Iterator[str | Text]:
    """Who A and B are, the verdict as text, and their values; styled for a terminal."""
    for side, party in (("A", found.a), ("B", found.b)):
        yield f"{side}: {party.name}" + (f"  {party.settings}" if party.settings else "")
    if len(found.lines) == 1:
        yield from _one(found.lines[0], found, view.display, unicode=unicode)
    else:
        yield from _several(found, view)
    for side, names in (("A", found.only_a), ("B", found.only_b)):
        for name in names:
            yield f"{MISSING}: {name}, measured for {side} only"
    for caveat in found.caveats:
        yield f"caveat: {caveat}"


def counts_line(counts: Mapping[Verdict, int]) -> str:
    """How many rows have which verdict."""
    words = [f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict]]
    return f"verdicts: {', '.join(words) or 'nothing was measured on both sides'}"


def coloured_table(
    columns: Sequence[TerminalColumn], verdicts: Sequence[Verdict]
) -> Iterator[str | Text]:
    """The columns side by side, each row in the colour of its verdict, and an empty line."""
    heading, *lines = table_lines(columns, page_cells())
    yield heading
    yield from (Text(line, COLOURS[each]) for line, each in zip(lines, verdicts, strict=True))
    yield ""


def verdict_words(compared: ComparisonRow, of: Comparisons) -> str:
    """The verdict with the ratio and its interval, as far as there are any."""
    found = compared.comparison
    if found.verdict is Verdict.UNKNOWN:
        return f"unknown, {why_words(compared, of)}"
    if found.ratio is None:
        return "undecided"
    ratio = ratio_words(found.ratio, of)
    evidence = _evidence(found, of)
    match found.verdict:
        case Verdict.FAST | Verdict.SLOW:
            return f"B is {ratio} than A{evidence}"
        case Verdict.SAME:
            return f"B and A are the same in practice: B is {ratio} than A{evidence}"
        case Verdict.UNDECIDED:
            return f"undecided: B looks {ratio} than A{evidence}"


def why_words(compared: ComparisonRow, of: Comparisons) -> str:
    """Why the verdict is what it is."""
    found = compared.comparison
    if compared.detail is not None:
        return compared.detail
    match found.reason:
        case "paired_interval_clears_band":
            return f"the whole interval is beyond the margin of {format_percent(of.rule.margin)}"
        case "paired_interval_inside_band":
            return f"the whole interval is within the margin of {format_percent(of.rule.margin)}"
        case "too_few_rounds":
            return f"too few rounds to decide, {found.round_count} of {of.rule.min_rounds} needed"
        case reason:
            return REASONS.get(reason, reason.replace("_", " "))


def ratio_words(ratio: float, of: Comparisons) -> str:
    """What B takes over what A takes, as how much faster or slower B is."""
    faster, slower = ("faster", "slower") if of.is_time else ("better", "worse")
    return f"{times(max(ratio, 1 / ratio))} {faster if ratio < 1 else slower}"


def interval_words(found: Comparison, of: Comparisons) -> str | None:
    """The interval of a ratio; each end says its direction where they differ."""
    if found.ratio_low is None or found.ratio_high is None:
        return None
    low, high = found.ratio_low, found.ratio_high
    if low < 1 < high:
        return f"{ratio_words(low, of)} to {ratio_words(high, of)}"
    ends = sorted(max(end, 1 / end) for end in (low, high))
    return f"{times(ends[0])} to {times(ends[1])}"


def times(ratio: float) -> str:
    """A ratio of at least 1."""
    return f"{ratio:.{3 if ratio < LEAST_DIFFERENCE else 2}f}x"


def _evidence(found: Comparison, of: Comparisons) -> str:
    interval = interval_words(found, of)
    if interval is None:
        return ""
    rounds = f"{found.round_count} interleaved rounds"
    rounds += disturbed_words(found.disturbed_count, found.round_count)
    return f" ({format_confidence(of.rule.alpha)} interval {interval}, {rounds})"


def comparisons_facts(found: Comparisons) -> Mapping[str, object]:
    """Everything that was found, as JSON takes it; what does not exist is null.

    A ratio is what B takes over what A takes, below 1 where B is better.
    """
    return {
        "a": asdict(found.a),
        "b": asdict(found.b),
        "quantity": found.quantity,
        "unit": found.unit,
        "lower_is_better": found.lower_is_better,
        "margin": found.rule.margin,
        "alpha": found.rule.alpha,
        "correction": "holm",
        "rows": [_line_facts(line, found) for line in found.lines],
        "counts": {verdict.value: count for verdict, count in found.counts.items()},
        "only_a": found.only_a,
        "only_b": found.only_b,
        "caveats": found.caveats,
        "next": found.next_steps,
    }


def _line_facts(line: ComparisonRow, of: Comparisons) -> Mapping[str, object]:
    return {
        "name": line.name,
        **asdict(line.comparison),
        "words": verdict_words(line, of),
        "why": why_words(line, of),
        "change": line.change,
        "a": asdict(line.a) if line.a else None,
        "b": asdict(line.b) if line.b else None,
        "rounds": [asdict(pair) for pair in line.pairs],
        "screening": _screening_facts(line.screening) if line.screening else None,
    }


def _screening_facts(judgement: Judgement) -> Mapping[str, object]:
    return {
        "verdict": judgement.verdict,
        "reason": judgement.reason,
        "message": judgement.message,
        "relative_change": judgement.change.relative if judgement.change else None,
    }


def interval_plot(readings: Sequence[Reading], width: int, marks: str) -> list[str]:
    """One line for each reading: its interval around its centre, or the centre alone.

    The first place of `width` is the least of all values, the last the greatest; `marks` are the
    start, line, centre and end of an interval.
    """
    start_mark, line_mark, centre_mark, end_mark = tuple(marks)
    values = [x for each in readings for x in (each.low, each.centre, each.high) if x is not None]
    low, scale = min(values), max(values) - min(values)

    def place(value: float) -> int:
        return round((value - low) / scale * (width - 1)) if scale > 0 else width // 2

    lines = []
    for each in readings:
        drawn = [" "] * width
        if each.low is not None and each.high is not None:
            start, end = place(each.low), place(each.high)
            drawn[start : end + 1] = line_mark * (end + 1 - start)
            drawn[start], drawn[end] = start_mark, end_mark
        drawn[place(each.centre)] = centre_mark
        lines.append("".join(drawn).rstrip())
    return lines


def _one(
    compared: ComparisonRow, of: Comparisons, display: Display, *, unicode: bool
) -> Iterator[str | Text]:
    verdict = compared.comparison.verdict
    colour = COLOURS[verdict]
    yield Text(f"verdict: {verdict_words(compared, of)}", f"bold {colour}")
    if verdict is not Verdict.UNKNOWN:
        yield f"why: {why_words(compared, of)}"
    sides = {side: each for side, each in (("A", compared.a), ("B", compared.b)) if each}
    if sides:
        yield from ("", *_values(compared.name, sides, of), "")
    if len(sides) > 1 and display is not Display.SIMPLE:
        yield from (*_plot(list(sides.values()), of, unicode=unicode), "")
    if compared.pairs and display is Display.EXPLAIN:
        yield from (*_rounds(compared, of), "")
    yield from _reach(compared, of)
    if compared.screening is not None:
        yield f"steps alone: {_screening_words(compared.screening)}"


def _values(name: str, sides: Mapping[str, Reading], of: Comparisons) -> Iterator[str]:
    yield _quantity(name, of)
    readings = list(sides.values())
    steps = [str(each.step_count) for each in readings if each.step_count is not None]
    columns = [
        TerminalColumn(heading="", cells=list(sides)),
        number_column("value", [amount(each.centre, of.unit) for each in readings]),
        TerminalColumn(
            heading=f"{format_confidence(of.rule.alpha)} interval",
            cells=[_interval(each, of.unit) for each in readings],
        ),
        number_column("launches", [str(each.launch_count) for each in readings]),
        *([number_column("steps", steps)] if len(steps) == len(readings) else []),
    ]
    yield from table_lines(columns, page_cells())


def _quantity(name: str, of: Comparisons) -> str:
    whose = "" if name == of.quantity else f" of {name}"
    return f"{of.quantity}{whose}, {'lower' if of.lower_is_better else 'higher'} is better"


def _plot(readings: Sequence[Reading], of: Comparisons, *, unicode: bool) -> Iterator[str]:
    width = min(page_cells() - 3, PLOT_CELLS)
    drawn = interval_plot(readings, width, "├─●┤" if unicode else "|-o|")
    for side, line in zip("AB", drawn, strict=True):
        yield f"{side}  {line}"
    ends = [x for r in readings for x in (r.low, r.centre, r.high) if x is not None]
    low, high = amount(min(ends), of.unit), amount(max(ends), of.unit)
    yield f"   {low}{high:>{max(width - len(low), len(high) + 1)}}"


def _rounds(compared: ComparisonRow, of: Comparisons) -> Iterator[str]:
    pairs = compared.pairs
    columns = [
        TerminalColumn(heading="round", cells=[pair.round for pair in pairs], yielding=True),
        number_column("A", [amount(pair.a, of.unit) for pair in pairs]),
        number_column("B", [amount(pair.b, of.unit) for pair in pairs]),
        number_column(
            "B over A", [f"{pair.b / pair.a:.3f}" if pair.a else ABSENT for pair in pairs]
        ),
    ]
    yield from table_lines(columns, page_cells())


def _reach(compared: ComparisonRow, of: Comparisons) -> Iterator[str]:
    """What the rounds could have shown."""
    found = compared.comparison
    if found.detectable is not None and found.noise is not None:
        rounds = max(of.rule.max_rounds if of.rule.look_often else 0, found.round_count)
        yield (
            f"sensitivity: {rounds} rounds detect differences of "
            f"{format_percent(found.detectable - 1)} in 80 % of cases; "
            f"the ratio of a round varies by {format_percent(found.noise)}"
        )


def _screening_words(judgement: Judgement) -> str:
    word = {
        Verdict.FAST: "B looks faster",
        Verdict.SLOW: "B looks slower",
        Verdict.SAME: "they look the same",
    }.get(judgement.verdict, "they do not show a difference")
    return f"{word} ({judgement.message}); one launch of each, which proves nothing"


def _several(of: Comparisons, view: View) -> Iterator[str | Text]:
    """How many points have which verdict, and a line for each, coloured by it."""
    shown = [line for line in of.lines if view.shows(line.change)]
    yield counts_line(of.counts)
    yield from view.hidden_lines(len(of.lines) - len(shown))
    if shown:
        around, short = _short_names([line.name for line in of.lines])
        names = [short[line.name] for line in shown]
        yield from ("", _quantity(around, of))
        columns = _columns(names, shown, of, view.display)
        yield from coloured_table(columns, [line.comparison.verdict for line in shown])
    reasons = {line.comparison.reason: why_words(line, of) for line in shown}
    for reason, words in reasons.items():
        yield f"{reason}: {words}"
    if len(of.lines) > 1:
        yield (
            f"fast and slow are corrected for {len(of.lines)} comparisons (Holm); each interval "
            "stands for its own"
        )


def _columns(
    names: Sequence[str], lines: Sequence[ComparisonRow], of: Comparisons, display: Display
) -> list[TerminalColumn]:
    interval = display is not Display.SIMPLE
    columns = [
        TerminalColumn(heading="", cells=names, yielding=True),
        number_column("A", [amount(x.a.centre, of.unit) if x.a else ABSENT for x in lines]),
        number_column("B", [amount(x.b.centre, of.unit) if x.b else ABSENT for x in lines]),
        TerminalColumn(
            heading="B is", cells=[_ratio_cell(x, of, interval=interval) for x in lines]
        ),
        TerminalColumn(heading="verdict", cells=[line.comparison.verdict for line in lines]),
    ]
    if display is Display.EXPLAIN:
        rounds = [str(line.comparison.round_count) for line in lines]
        reasons = [line.comparison.reason for line in lines]
        columns += [
            number_column("rounds", rounds),
            TerminalColumn(heading="reason", cells=reasons),
        ]
    return columns


def _short_names(names: Sequence[str]) -> tuple[str, Mapping[str, str]]:
    """What all names begin and end with, once, and what is between in each of them."""
    words = [name.split() for name in names]
    begin = _common_count(words)
    rest = [each[begin:] for each in words]
    end = _common_count([each[::-1] for each in rest])
    around = [*words[0][:begin], "...", *rest[0][len(rest[0]) - end :]]
    return " ".join(around), {
        name: " ".join(each[: len(each) - end]) for name, each in zip(names, rest, strict=True)
    }


def _common_count(texts: Sequence[Sequence[str]]) -> int:
    """Words that all texts begin with; each keeps at least one."""
    least = min(len(words) for words in texts) - 1
    places = zip(*(words[:least] for words in texts), strict=True)
    return len(list(takewhile(lambda words: len(set(words)) == 1, places)))


def _ratio_cell(line: ComparisonRow, of: Comparisons, *, interval: bool) -> str:
    """How B differs from A, with its interval where that is known."""
    found = line.comparison
    if found.ratio is None:
        return ABSENT
    ends = interval_words(found, of) if interval else None
    return ratio_words(found.ratio, of) + (f" ({ends})" if ends else "")


def _interval(reading: Reading, unit: str) -> str:
    if reading.low is None or reading.high is None:
        one = reading.launch_count == 1
        return "unknown from one launch" if one else f"none from {reading.launch_count} launches"
    return f"{amount(reading.low, unit)} to {amount(reading.high, unit)}"


def amount(value: float, unit: str) -> str:
    """A value in the unit that a person reads it in."""
    seconds = {"s": 1.0, "us": 1e-6}.get(unit)
    return (
        f"{format_number(value)} {unit}".rstrip()
        if seconds is None
        else format_duration(value * seconds)
    )
