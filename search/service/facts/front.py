"""The front of a study as charts need it: trials by several numbers, and which no other beats."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evaluator.metrics.registry import ALIASES
from evaluator.objective import Scoring, scoring_of
from evaluator.readings import metrics_read
from records.errors import StudyError
from records.outlines import Scored
from records.rows import StudyRow
from records.store import Store
from records.trial import MetricValue, Score
from search.disturbed import counted
from search.finding import ended_with
from search.front import Member, front_over, unbeaten
from search.report_page.thinning import thinned
from search.service.facts.history import MOST_POINTS, Axis, Interval, axis_of, outline_words
from search.service.facts.repeats import outlines_of, reached_again, repeats_of
from search.words.trial import one_line

OTHER_AXES = ("peak_memory", "rank_count")
"""What a trial takes, against which an only objective is drawn."""
NAME_CHARS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A trial by its value on each axis; on the front with intervals where it was launched again.

    `words` say it in a line.
    """

    ordinal: int
    values: tuple[Interval, ...]
    on_front: bool
    is_limited: bool
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFront:
    """Trials by several numbers, with those that no other beats in all of them.

    `is_asked` where the axes are the objectives of the study; else its one objective is shown
    against what trials take. No points where there is nothing to trade.
    """

    axes: tuple[Axis, ...]
    points: tuple[FrontPoint, ...]
    is_asked: bool
    shown: int
    total: int


def study_front(row: StudyRow, records: Store, against: str | None = None) -> StudyFront:
    """The objectives against each other, or the only one against the metric `against`.

    Without one it is the first thing that trials take of which less costs something. Raises
    `StudyError` where no trial has that metric.
    """
    scoring = scoring_of(row.study)
    if against is None and scoring.more:
        return _asked_front(row, scoring, records)
    if against is not None:
        found = _traded(row, scoring, against, records)
        if found is None:
            name = one_line(against, NAME_CHARS)
            raise StudyError(f"no measured trial of study {row.id} has a metric {name!r}")
        return found
    for name in OTHER_AXES:
        found = None if name == scoring.expression.text else _traded(row, scoring, name, records)
        if found is not None and sum(point.on_front for point in found.points) > 1:
            return found
    return StudyFront(axes=(axis_of(scoring),), points=(), is_asked=False, shown=0, total=0)


def _asked_front(row: StudyRow, scoring: Scoring, records: Store) -> StudyFront:
    scores = records.scores(row.id)
    own = _own_values(scores, row, scoring, records)
    finding = ended_with(row)
    if finding is not None:
        members = finding.front
    else:
        known = {ordinal: values for ordinal, values in own.items() if scores[ordinal].leads}
        members = front_over(known, counted(repeats_of(row, records), row.study.measure), scoring)
    front = {member.ordinal: _reached(member) for member in members}
    again = reached_again(row, records)
    own |= {n: (again[n].centre, *values[1:]) for n, values in own.items() if n in again}
    return StudyFront(
        axes=tuple(map(axis_of, scoring.objectives)),
        points=(points := _points(row, own, front, records)),
        is_asked=True,
        shown=len(points),
        total=len(own),
    )


def _reached(member: Member) -> tuple[Interval, ...]:
    values = (each.value for each in member.reached)
    return tuple(Interval(centre=one.centre, low=one.low, high=one.high) for one in values)


def _own_values(
    scores: Mapping[int, Scored], row: StudyRow, scoring: Scoring, records: Store
) -> dict[int, tuple[float, ...]]:
    """What each trial reached in each objective by its own launch; none of one that lacks any."""
    if scoring.needs_seed:
        first = records.first_measured(row.id)
        scoring = scoring.against(() if first is None else (first.outcome,))
    names = {m.name for one in scoring.more for m in metrics_read(one.expression).values()}
    metrics = records.named_values(row.id, sorted(names))
    own: dict[int, tuple[float, ...]] = {}
    for ordinal, scored in scores.items():
        values = [
            MetricValue(name=name, value=told.value, unit=told.unit, better="lower", version=1)
            for name, told in metrics.get(ordinal, {}).items()
        ]
        found = [one.score(values) for one in scoring.more]
        others = tuple(score.value for score in found if isinstance(score, Score))
        if len(others) == len(found):
            own[ordinal] = (scored.value, *others)
    return own


def _traded(row: StudyRow, scoring: Scoring, name: str, records: Store) -> StudyFront | None:
    """The objective against a metric of which less is better; None where no trial has it."""
    metric = ALIASES.get(name, name)
    told, scores = records.named_values(row.id, (metric,)), records.scores(row.id)
    again = reached_again(row, records)
    own = {
        n: (again[n].centre if n in again else s.value, told[n][metric].value)
        for n, s in scores.items()
        if n in told
    }
    if not own:
        return None
    unit = told[min(own)][metric].unit
    sign = 1 if scoring.lower_is_better else -1
    kept = unbeaten({n: (sign * v, taken) for n, (v, taken) in own.items() if scores[n].leads})
    points = _points(row, own, {n: _once(own[n]) for n in kept}, records)
    return StudyFront(
        axes=(axis_of(scoring), Axis(name=name, unit=unit, lower_is_better=True)),
        points=points,
        is_asked=False,
        shown=len(points),
        total=len(own),
    )


def _once(values: Sequence[float]) -> tuple[Interval, ...]:
    return tuple(Interval(centre=value, low=None, high=None) for value in values)


def _points(
    row: StudyRow,
    own: Mapping[int, tuple[float, ...]],
    front: Mapping[int, tuple[Interval, ...]],
    records: Store,
) -> tuple[FrontPoint, ...]:
    """What is drawn: the front as far as there is room, and some of the others where many are."""
    members = thinned([n for n in own if n in front], lambda _: False, MOST_POINTS // 2)
    known = set(members)
    others = thinned([n for n in own if n not in front], lambda _: False, MOST_POINTS // 2)
    return tuple(
        FrontPoint(
            ordinal=each.ordinal,
            values=front.get(each.ordinal) or _once(own[each.ordinal]),
            on_front=each.ordinal in known,
            is_limited=each.is_limited,
            words=outline_words(each),
        )
        for each in outlines_of(row, records, [*members, *others])
    )
