"""What comparing two sides gave, as lines for people."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

from rich.text import Text

from evaluator.timing.interval.judgement import Judgement
from evaluator.timing.verdict import Verdict
from search.comparing.compared import Compared, Comparisons, Reading
from search.comparing.plots import LINES, PLAIN, interval_plot
from search.comparing.verdicts import (
    confidence,
    interval_words,
    ratio_words,
    verdict_words,
    why_words,
)
from search.interval_tables import Display, View
from search.tables import Column, numbers, page_cells, table_lines
from search.words.comparison import percent
from search.words.quantities import ABSENT, duration
from search.words.trial import number

PLOT_CELLS = 60
COLOURS = {Verdict.FAST: "green", Verdict.SLOW: "red", Verdict.SAME: "blue"}
MISSING = "n/a"


def comparison_lines(found: Comparisons, view: View, *, unicode: bool) -> Iterator[str | Text]:
    """Who A and B are, the verdict in words, and their values; styled for a terminal."""
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


def _one(
    compared: Compared, of: Comparisons, display: Display, *, unicode: bool
) -> Iterator[str | Text]:
    verdict = compared.comparison.verdict
    colour = COLOURS.get(verdict, "yellow")
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
        Column(heading="", cells=list(sides)),
        numbers("value", [amount(each.centre, of.unit) for each in readings]),
        Column(
            heading=f"{confidence(of)} interval",
            cells=[_interval(each, of.unit) for each in readings],
        ),
        numbers("launches", [str(each.launch_count) for each in readings]),
        *([numbers("steps", steps)] if len(steps) == len(readings) else []),
    ]
    yield from table_lines(columns, page_cells())


def _quantity(name: str, of: Comparisons) -> str:
    whose = "" if name == of.quantity else f" of {name}"
    return f"{of.quantity}{whose}, {'lower' if of.lower_is_better else 'higher'} is better"


def _plot(readings: Sequence[Reading], of: Comparisons, *, unicode: bool) -> Iterator[str]:
    width = min(page_cells() - 3, PLOT_CELLS)
    drawn = interval_plot(readings, width, LINES if unicode else PLAIN)
    for side, line in zip("AB", drawn, strict=True):
        yield f"{side}  {line}"
    ends = [x for r in readings for x in (r.low, r.centre, r.high) if x is not None]
    low, high = amount(min(ends), of.unit), amount(max(ends), of.unit)
    yield f"   {low}{high:>{max(width - len(low), len(high) + 1)}}"


def _rounds(compared: Compared, of: Comparisons) -> Iterator[str]:
    pairs = compared.pairs
    columns = [
        Column(heading="round", cells=[pair.round for pair in pairs], yielding=True),
        numbers("A", [amount(pair.a, of.unit) for pair in pairs]),
        numbers("B", [amount(pair.b, of.unit) for pair in pairs]),
        numbers("B over A", [f"{pair.b / pair.a:.3f}" if pair.a else ABSENT for pair in pairs]),
    ]
    yield from table_lines(columns, page_cells())


def _reach(compared: Compared, of: Comparisons) -> Iterator[str]:
    """What the rounds could have shown."""
    found = compared.comparison
    if found.detectable is not None and found.noise is not None:
        rounds = max(of.rule.max_rounds if of.rule.look_often else 0, found.round_count)
        yield (
            f"could tell: {rounds} rounds show differences from {percent(found.detectable - 1)} "
            f"in four of five cases; a round's ratio varies by {percent(found.noise)}"
        )


def _screening_words(judgement: Judgement) -> str:
    word = {
        Verdict.FAST: "B looks faster",
        Verdict.SLOW: "B looks slower",
        Verdict.SAME: "they look the same",
    }.get(judgement.verdict, "they do not tell")
    return f"{word} ({judgement.message}); one launch of each, so no proof"


def _several(of: Comparisons, view: View) -> Iterator[str | Text]:
    """How many points have which verdict, and a line for each, coloured by it."""
    told = [f"{count} {verdict}" for verdict, count in of.counts.items() if count]
    yield f"verdicts: {', '.join(told) or 'nothing was measured on both sides'}"
    shown = [
        line
        for line in of.lines
        if line.change is None or abs(line.change) * 100 >= view.threshold_percent
    ]
    if len(shown) < len(of.lines):
        hidden = len(of.lines) - len(shown)
        yield f"not shown: {hidden} that differ by less than {view.threshold_percent:g} %"
    if shown:
        around, short = _short_names([line.name for line in of.lines])
        names = [short[line.name] for line in shown]
        yield from ("", _quantity(around, of))
        heading, *lines = table_lines(_columns(names, shown, of, view.display), page_cells())
        yield heading
        for line, compared in zip(lines, shown, strict=True):
            yield Text(line, COLOURS.get(compared.comparison.verdict, ""))
        yield ""
    reasons = {line.comparison.reason: why_words(line, of) for line in shown}
    for reason, words in reasons.items():
        yield f"{reason}: {words}"
    if len(of.lines) > 1:
        yield (
            f"fast and slow are corrected for {len(of.lines)} comparisons (Holm); each interval "
            "stands for its own"
        )


def _columns(
    names: Sequence[str], lines: Sequence[Compared], of: Comparisons, display: Display
) -> list[Column]:
    interval = display is not Display.SIMPLE
    columns = [
        Column(heading="", cells=names, yielding=True),
        numbers("A", [amount(x.a.centre, of.unit) if x.a else ABSENT for x in lines]),
        numbers("B", [amount(x.b.centre, of.unit) if x.b else ABSENT for x in lines]),
        Column(heading="B is", cells=[_ratio_cell(x, of, interval=interval) for x in lines]),
        Column(heading="verdict", cells=[line.comparison.verdict for line in lines]),
    ]
    if display is Display.EXPLAIN:
        rounds = [str(line.comparison.round_count) for line in lines]
        reasons = [line.comparison.reason for line in lines]
        columns += [numbers("rounds", rounds), Column(heading="reason", cells=reasons)]
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
    """Words that all texts begin with; each keeps one of its own."""
    least = min(len(words) for words in texts) - 1
    places = zip(*(words[:least] for words in texts), strict=True)
    return len(list(takewhile(lambda words: len(set(words)) == 1, places)))


def _ratio_cell(line: Compared, of: Comparisons, *, interval: bool) -> str:
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
    return f"{number(value)} {unit}".rstrip() if seconds is None else duration(value * seconds)
