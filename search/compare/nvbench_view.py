"""An nvbench comparison as a document and as JSON."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from evaluator.timing.decision import Verdict
from evaluator.timing.nvbench.compare import BenchmarkSection, ComparedFiles, StateRow
from evaluator.timing.screening.decide import Judgement
from evaluator.timing.screening.estimate import Estimate, is_time, relative_difference
from search.compare.view import MISSING, TONES, Display, counts_words
from search.views.document import (
    Block,
    Column,
    Document,
    Facts,
    Section,
    Table,
    number_column,
)
from search.views.format import format_duration, format_percent, one_line

NAME_CHARS: Final = 80


def nvbench_document(found: ComparedFiles, display: Display = Display.INTERVALS) -> Document:
    """Return a table for each benchmark, then how many states have which verdict."""
    several_files = len({section.candidate.path for section in found.sections}) > 1
    tables: list[Block] = []
    for section in found.sections:
        rows = section.rows
        if rows:
            names = [section.candidate.path.name] if several_files else []
            about = ", ".join([*names, section.benchmark, *_device_words(section)])
            tables.append(
                Table.of(
                    *_axis_columns(section, rows),
                    *_columns(rows, display),
                    about=one_line(about, NAME_CHARS),
                    tones=[TONES[row.judgement.verdict] for row in rows],
                )
            )
    blocks = (*tables, Facts(lines=tuple(_summary(found, display))))
    whole = Section(name="comparison", heading="Comparison", lead="", blocks=blocks)
    return Document(title="Comparison of nvbench results", lead="", sections=(whole,))


def _summary(found: ComparedFiles, display: Display) -> Iterator[tuple[str, str]]:
    """How many rows have which verdict, and why it is none."""
    judgements = [row.judgement for row in found.rows]
    yield "verdicts", counts_words(Counter(each.verdict for each in judgements))
    undecided = [each for each in judgements if each.verdict is Verdict.UNDECIDED]
    worst = {each.reason: each for each in sorted(undecided, key=lambda each: each.severity)}
    for reason, count in Counter(each.reason for each in undecided).most_common():
        yield "undecided", f"{count} {reason} ({worst[reason].message})"
    if display is Display.EXPLAIN:
        reasons = {each.reason for each in judgements}
        for reason in sorted(reasons, key=lambda each: each.short):
            if reason.short != reason.value.replace("_", "-"):
                yield reason.short, reason.value


def comparison_facts(found: ComparedFiles) -> dict[str, object]:
    """All rows, counts and warnings, as JSON takes them."""
    counts = Counter(row.judgement.verdict for row in found.rows)
    return {
        "rows": [row_facts(section, row) for section in found.sections for row in section.rows],
        "counts": {verdict.value: counts[verdict] for verdict in Verdict},
        "warnings": list(found.warnings),
    }


def row_facts(section: BenchmarkSection, row: StateRow) -> dict[str, object]:
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
    """Both bounds; None where a bound overflows."""
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


def _device_words(section: BenchmarkSection) -> list[str]:
    """The devices of a table, once if they are the same on both sides."""
    devices = (section.reference_device, section.candidate_device)
    words = [f"[{each.id}] {each.name}" for each in devices if each is not None]
    return [" vs. ".join(dict.fromkeys(words))] if words else []


def _axis_columns(section: BenchmarkSection, rows: Sequence[StateRow]) -> list[Column]:
    places = [{axis.name: axis.shown for axis in row.candidate.axes} for row in rows]
    names = dict.fromkeys([*section.axis_names, *(name for at in places for name in at)])
    return [
        Column(
            heading=one_line(name, NAME_CHARS),
            cells=[one_line(at.get(name, ""), NAME_CHARS) for at in places],
            yielding=True,
        )
        for name in names
    ]


def _columns(rows: Sequence[StateRow], display: Display) -> Iterator[Column]:
    """Both sides, the difference of their centres and the least difference that is certain."""
    judgements = [row.judgement for row in rows]
    sides = {
        "A": [each.reference or Estimate(centre=None) for each in judgements],
        "B": [each.candidate or Estimate(centre=None) for each in judgements],
    }
    for side, estimates in sides.items():
        yield number_column(side, [_time(each.centre) for each in estimates])
        yield Column(heading="interval", cells=[_interval(x) for x in estimates])
        if display is Display.EXPLAIN:
            yield number_column("noise", [_percent(each.noise) for each in estimates])
    yield number_column("change", [_percent(_centre_difference(x), "+") for x in judgements])
    yield number_column("at least", [_percent(each.guaranteed, "+", "") for each in judgements])
    yield Column(heading="verdict", cells=[each.verdict for each in judgements])
    if display is Display.EXPLAIN:
        yield Column(heading="reason", cells=[each.reason.short for each in judgements])


def _time(seconds: float | None) -> str:
    return format_duration(seconds) if is_time(seconds) else MISSING


def _interval(estimate: Estimate) -> str:
    found = estimate.interval
    return f"{_time(found.lower)} to {_time(found.upper)}" if found else MISSING


def _percent(share: float | None, sign: str = "", absent: str = MISSING) -> str:
    return absent if share is None else format_percent(share, sign)


def _centre_difference(judgement: Judgement) -> float | None:
    """Candidate's centre over the reference's, relative to the smaller; None without both."""
    sides = (judgement.candidate, judgement.reference)
    new, old = (None if side is None else side.centre for side in sides)
    return relative_difference(new, old) if is_time(new) and is_time(old) else None
