"""A study as charts need it: its trials in their order, of many only those that tell.

Everything comes from columns of the records, none of it from a whole history, so that a study of
a hundred thousand trials costs no more than what is drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from evaluator.objective import Scoring, scoring_of
from records.outlines import Outline
from records.rows import StudyRow
from records.store import Store
from records.trial import Trial
from search.finding import best_result, leader_of
from search.service.facts.repeats import outlines_of
from search.words.trial import number, one_line

MOST_POINTS = 2000
TIP_CHARS = 300

Ended: TypeAlias = Literal["measured", "breaks a limit", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What a number says, and which way is better."""

    name: str
    unit: str
    lower_is_better: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value with its interval, which is null where one launch was all."""

    centre: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPoint:
    """A trial: its value, null where it failed; `words` say it in a line."""

    ordinal: int
    value: float | None
    ended: Ended
    started_at: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BestSoFar:
    """A trial that was better than all before it."""

    ordinal: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyHistory:
    """The trials of a study in their order, `shown` of `total` of them.

    `best` is the trial that won or leads, `best_again` what it reached over all its launches.
    """

    axis: Axis
    points: tuple[HistoryPoint, ...]
    best_so_far: tuple[BestSoFar, ...]
    best: int | None
    best_again: Interval | None
    shown: int
    total: int


def study_history(row: StudyRow, records: Store) -> StudyHistory:
    """Every trial in order, thinned where there are more than can be told apart."""
    axis, leader = axis_of(scoring_of(row.study)), leader_of(row, records)
    found = _shown(row, records)
    sign = 1 if axis.lower_is_better else -1
    led: list[BestSoFar] = []
    for each in found:
        if each.value is None or not each.leads:
            continue
        if not led or sign * each.value < sign * led[-1].value:
            led.append(BestSoFar(ordinal=each.ordinal, value=each.value))
    return StudyHistory(
        axis=axis,
        points=tuple(
            HistoryPoint(
                ordinal=each.ordinal,
                value=each.value,
                ended=ended(each),
                started_at=each.started_at,
                words=outline_words(each),
            )
            for each in found
        ),
        best_so_far=tuple(led),
        best=None if leader is None else leader.ordinal,
        best_again=_again(row, leader, records),
        shown=len(found),
        total=records.counts(row.id).trials,
    )


def axis_of(scoring: Scoring) -> Axis:
    """An objective as an axis."""
    return Axis(
        name=scoring.expression.text, unit=scoring.unit, lower_is_better=scoring.lower_is_better
    )


def outline_words(of: Outline) -> str:
    """A trial in a line, for whoever points at its mark."""
    config = "" if of.config is None else f": {of.config}"
    if of.value is None:
        kind = "" if of.failure is None else f", {of.failure.value.replace('_', ' ')}"
        return one_line(f"trial {of.ordinal} failed{kind}{config}", TIP_CHARS)
    limited = ", breaks a limit" if of.is_limited else ""
    value = f"{number(of.value)} {of.unit}".rstrip()
    value += f" in {of.launch_count} launches" if of.launch_count > 1 else ""
    return one_line(f"trial {of.ordinal}, {value}{limited}{config}", TIP_CHARS)


def ended(of: Outline) -> Ended:
    """How a trial ended, as charts mark it."""
    if of.value is None:
        return "failed"
    return "breaks a limit" if of.is_limited else "measured"


def _shown(row: StudyRow, records: Store) -> Sequence[Outline]:
    """All trials where they are few, else those that keep the shape of all, and who leads."""
    if records.counts(row.id).trials <= MOST_POINTS:
        return outlines_of(row, records)
    telling = records.telling(row.id, MOST_POINTS, limited=bool(row.study.limits))
    return outlines_of(row, records, {*telling, *records.leading(row.id, 1)})


def _again(row: StudyRow, leader: Trial | None, records: Store) -> Interval | None:
    result = best_result(row, leader, records)
    if result is None or result.launch_count < 2:
        return None
    return Interval(centre=result.centre, low=result.low, high=result.high)
