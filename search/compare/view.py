"""A comparison of two sides as a document and as JSON: the verdict, its reason and the values."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from itertools import takewhile
from typing import Final

from evaluator.timing.decision import Comparison, Verdict
from search.compare.compare import ComparisonRow, Comparisons, Reading
from search.views.document import (
    Block,
    Column,
    Document,
    Facts,
    Paragraph,
    Section,
    Table,
    Tone,
    number_column,
)
from search.views.format import (
    ABSENT,
    REASONS,
    comparison_words,
    format_confidence,
    format_duration,
    format_number,
    format_percent,
    interval_words,
    ratio_words,
)

MISSING = "n/a"
TONES: Final[Mapping[Verdict, Tone]] = {
    Verdict.FAST: "fast",
    Verdict.SLOW: "slow",
    Verdict.SAME: "same",
    Verdict.UNDECIDED: "open",
    Verdict.UNKNOWN: "open",
}


class Display(StrEnum):
    """How much a table shows of each row."""

    INTERVALS = "intervals"
    EXPLAIN = "explain"


def counts_words(counts: Mapping[Verdict, int]) -> str:
    """Return how many rows have which verdict."""
    words = [f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict]]
    return ", ".join(words) or "nothing was measured on both sides"


def comparison_document(found: Comparisons, display: Display = Display.INTERVALS) -> Document:
    """Return who A and B are, the verdict and what it was taken from, and what to do next."""
    show = _one if len(found.lines) == 1 else _several
    sides = (("A", found.a, found.only_a), ("B", found.b, found.only_b))
    names = tuple((which, f"{side.name}  {side.settings}".rstrip()) for which, side, _ in sides)
    only = ((MISSING, f"{name}, measured for {which} only") for which, _, o in sides for name in o)
    caveats = (("caveat", words) for words in found.caveats)
    steps = (("next", command) for command in found.next_steps)
    blocks = (
        Facts(lines=names),
        *show(found, display),
        Facts(lines=(*only, *caveats, *steps)),
    )
    section = Section(
        name="comparison", heading="Comparison", lead="", blocks=without_empty(blocks)
    )
    return Document(title=f"{found.a.name} and {found.b.name}", lead="", sections=(section,))


def without_empty(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """Return the blocks that hold anything."""
    return tuple(block for block in blocks if not isinstance(block, Facts) or block.lines)


def verdict_words(compared: ComparisonRow, of: Comparisons) -> str:
    """The verdict about B against A, with the ratio and its interval as far as there are any."""
    why = why_words(compared, of)
    return comparison_words(compared.comparison, names=("B", "A"), is_time=of.is_time, why=why)


def why_words(compared: ComparisonRow, of: Comparisons) -> str:
    """Why the verdict is what it is."""
    found = compared.comparison
    if compared.detail is not None:
        return compared.detail
    match found.reason:
        case "paired_interval_clears_band" if of.rule.claim_margin == 0:
            return "the whole interval lies on one side of 1"
        case "paired_interval_clears_band":
            return f"the whole interval is beyond the margin of {format_percent(of.rule.margin)}"
        case "paired_interval_inside_band":
            return f"the whole interval is within the margin of {format_percent(of.rule.margin)}"
        case "too_few_rounds":
            return f"too few rounds to decide, {found.round_count} of {of.rule.min_rounds} needed"
        case reason:
            return REASONS.get(reason, reason.replace("_", " "))


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
    }


def _one(of: Comparisons, display: Display) -> Iterator[Block]:
    """The verdict on the only line, and its evidence."""
    (compared,) = of.lines
    verdict = compared.comparison.verdict
    yield Facts(lines=(("verdict", verdict_words(compared, of)),), tone=TONES[verdict])
    if verdict not in {Verdict.UNKNOWN, Verdict.UNDECIDED}:
        yield Facts(lines=(("why", why_words(compared, of)),))
    sides = {side: each for side, each in (("A", compared.a), ("B", compared.b)) if each}
    if sides:
        yield _values(compared.name, sides, of)
    if compared.pairs and display is Display.EXPLAIN:
        yield _rounds(compared, of)
    yield Facts(lines=tuple(_reach(compared, of)))


def _values(name: str, sides: Mapping[str, Reading], of: Comparisons) -> Table:
    readings = list(sides.values())
    steps = [str(each.step_count) for each in readings if each.step_count is not None]
    return Table.of(
        Column(heading="", cells=list(sides)),
        number_column("value", [amount(each.centre, of.unit) for each in readings]),
        Column(
            heading=f"{format_confidence(of.rule.alpha)} interval",
            cells=[_interval(each, of.unit) for each in readings],
        ),
        number_column("launches", [str(each.launch_count) for each in readings]),
        *([number_column("steps", steps)] if len(steps) == len(readings) else []),
        about=_quantity(name, of),
    )


def _quantity(name: str, of: Comparisons) -> str:
    whose = "" if name == of.quantity else f" of {name}"
    return f"{of.quantity}{whose}, {'lower' if of.lower_is_better else 'higher'} is better"


def _rounds(compared: ComparisonRow, of: Comparisons) -> Table:
    pairs = compared.pairs
    ratios = [f"{pair.b / pair.a:.3f}" if pair.a else ABSENT for pair in pairs]
    return Table.of(
        Column(heading="round", cells=[pair.round for pair in pairs], yielding=True),
        number_column("A", [amount(pair.a, of.unit) for pair in pairs]),
        number_column("B", [amount(pair.b, of.unit) for pair in pairs]),
        number_column("B over A", ratios),
    )


def _reach(compared: ComparisonRow, of: Comparisons) -> Iterator[tuple[str, str]]:
    """What the rounds could have shown."""
    found = compared.comparison
    if found.detectable is not None and found.noise is not None:
        rounds = max(of.rule.max_rounds if of.rule.look_often else 0, found.round_count)
        yield (
            "sensitivity",
            f"{rounds} rounds detect differences of {format_percent(found.detectable - 1)} in 80 % "
            f"of cases; the ratio of a round varies by {format_percent(found.noise)}",
        )


def _several(of: Comparisons, display: Display) -> Iterator[Block]:
    """How many points have which verdict, and a row for each, in its tone."""
    yield Facts(lines=(("verdicts", counts_words(of.counts)),))
    yield _points(of, display)
    reasons = {line.comparison.reason: why_words(line, of) for line in of.lines}
    yield Facts(lines=tuple(reasons.items()))
    yield Paragraph(
        text=f"fast and slow are corrected for {len(of.lines)} comparisons (Holm); each interval "
        "stands for its own"
    )


def _points(of: Comparisons, display: Display) -> Table:
    lines = of.lines
    around, names = _short_names([line.name for line in lines])
    compared = [line.comparison for line in lines]
    columns = [
        Column(heading="", cells=[names[line.name] for line in lines], yielding=True),
        number_column("A", [amount(x.a.centre, of.unit) if x.a else ABSENT for x in lines]),
        number_column("B", [amount(x.b.centre, of.unit) if x.b else ABSENT for x in lines]),
        Column(heading="B is", cells=[_ratio_cell(each, of) for each in compared]),
        Column(heading="verdict", cells=[each.verdict for each in compared]),
    ]
    if display is Display.EXPLAIN:
        columns += [
            number_column("rounds", [str(each.round_count) for each in compared]),
            Column(heading="reason", cells=[each.reason for each in compared]),
        ]
    tones = [TONES[each.verdict] for each in compared]
    return Table.of(*columns, about=_quantity(around, of), tones=tones)


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


def _ratio_cell(found: Comparison, of: Comparisons) -> str:
    """How B differs from A, with its interval where that is known."""
    if found.ratio is None:
        return ABSENT
    ends = interval_words(found, is_time=of.is_time)
    return ratio_words(found.ratio, is_time=of.is_time) + (f" ({ends})" if ends else "")


def _interval(reading: Reading, unit: str) -> str:
    if reading.low is None or reading.high is None:
        one = reading.launch_count == 1
        return "unknown from one launch" if one else f"none from {reading.launch_count} launches"
    return f"{amount(reading.low, unit)} to {amount(reading.high, unit)}"


def amount(value: float, unit: str) -> str:
    """A value in the unit that a person reads it in."""
    seconds = {"s": 1.0, "us": 1e-6}.get(unit)
    if seconds is None:
        return f"{format_number(value)} {unit}".rstrip()
    return format_duration(value * seconds)
