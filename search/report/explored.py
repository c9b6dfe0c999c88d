"""The charts of a study: its history, Pareto front and parallel coordinates, as data and drawn.

The data are columns of the records and never a whole history, so a study of a hundred thousand
trials costs no more than what is drawn.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Final, Self

from evaluator.metrics.registry import ALIASES
from evaluator.objective import Scoring, metrics_read, scoring_of
from evaluator.timing.decision import Spread, spread
from records.errors import StudyError
from records.store.queries import TrialOutline, TrialScore
from records.store.rows import StudyRow
from records.store.store import Store
from records.study import Study, Value, choices_of
from records.trial import Config, History, Repeat, Score, Trial
from search.loop.leader import FrontMember, counted, front_over, own_values, unbeaten
from search.loop.study_result import best_result, final_result, leader_of, repeated_values
from search.views.charts import (
    Ended,
    Ends,
    Panel,
    Point,
    Series,
    TriedConfig,
    TriedKnob,
    parallel_chart,
    xy_chart,
)
from search.views.document import thin
from search.views.format import format_number, line_words, one_line
from search.views.svg import ChartAxis, Shape

MOST_REPEATS = 5000
"""The repeats of a study are read only up to this number: each is read in full."""
MOST_POINTS = 2000
MOST_AXES = 11
MOST_LINES = 300
TIP_CHARS = 300
LABEL_CHARS = 60
DRAWN_OBJECTIVES = 2
OTHER_AXES = ("peak_memory", "rank_count")
"""What a single objective is drawn against, where trials have it."""
NAME_CHARS = 80
MIB = 2.0**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What a number is, and which way is better."""

    name: str
    unit: str
    lower_is_better: bool

    @classmethod
    def of(cls, scoring: Scoring) -> Self:
        """An objective as an axis."""
        text, unit = scoring.expression.text, scoring.unit
        return cls(name=text, unit=unit, lower_is_better=scoring.lower_is_better)

    @property
    def shown(self) -> Self:
        """The axis in the unit that `Interval.shown` converts to."""
        return replace(self, unit="MiB") if self.unit == "bytes" else self

    @property
    def label(self) -> str:
        """Its name with its unit."""
        unit = f" ({self.unit})" if self.unit else ""
        return f"{one_line(self.name, LABEL_CHARS)}{unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPoint:
    """A trial: its value, null where it failed; `words` describe it in one line."""

    ordinal: int
    value: float | None
    ended: Ended
    started_at: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value with its interval, which is null for a single launch."""

    centre: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, spread: Spread) -> Self:
        """The value over launches, and its interval."""
        return cls(centre=spread.centre, low=spread.low, high=spread.high)

    @property
    def ends(self) -> Ends | None:
        """The interval, as charts take it."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def shown(self, axis: Axis) -> "Interval":
        """The same in the unit that people read it in."""
        size = MIB if axis.unit == "bytes" else 1.0
        low, high = (None if end is None else end / size for end in (self.low, self.high))
        return Interval(centre=self.centre / size, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class BestSoFar:
    """A trial that was better than all before it."""

    ordinal: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyHistory:
    """The trials of a study in their order, `shown` of `total` of them.

    `best` is the trial that won or leads, `best_again` its result over all its launches.
    """

    axis: Axis
    points: tuple[HistoryPoint, ...]
    best_so_far: tuple[BestSoFar, ...]
    best: int | None
    best_again: Interval | None
    shown: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A trial by its value on each axis; on the front with intervals where it was repeated.

    `words` describe it in one line.
    """

    ordinal: int
    values: tuple[Interval, ...]
    on_front: bool
    is_limited: bool
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFront:
    """Trials by several numbers, with those that no other beats in all of them.

    `is_multi_objective` where the axes are the objectives of the study; else its objective is shown
    against another metric. There are no points where there is nothing to trade.
    """

    axes: tuple[Axis, ...]
    points: tuple[FrontPoint, ...]
    is_multi_objective: bool
    shown: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyKnobs:
    """What was tried, as parallel coordinates; no lines where nothing was varied."""

    axis: Axis
    knobs: tuple[TriedKnob, ...]
    lines: tuple[TriedConfig, ...]
    best: int | None
    shown: int
    total: int


def study_history(row: StudyRow, records: Store) -> StudyHistory:
    """Return every trial in order, thin where there are too many to be drawn."""
    axis, leader = Axis.of(scoring_of(row.study)), leader_of(row, records)
    found, again = _sample(row, records, MOST_POINTS, 1), repeat_spreads(row, records)
    sign = 1 if axis.lower_is_better else -1
    led: list[BestSoFar] = []
    for each in found:
        if each.value is None or not each.leads:
            continue
        if not led or sign * each.value < sign * led[-1].value:
            led.append(BestSoFar(ordinal=each.ordinal, value=each.value))
    result = best_result(row, leader, records)
    return StudyHistory(
        axis=axis,
        points=tuple(
            HistoryPoint(
                ordinal=each.ordinal,
                value=each.value,
                ended=_ended(each),
                started_at=each.started_at,
                words=_outline_words(each, again),
            )
            for each in found
        ),
        best_so_far=tuple(led),
        best=None if leader is None else leader.ordinal,
        best_again=Interval.of(result) if result is not None and result.launch_count > 1 else None,
        shown=len(found),
        total=records.counts(row.id).trials,
    )


def study_front(row: StudyRow, records: Store, against: str | None = None) -> StudyFront:
    """Return the objectives against each other, or the only one against the metric `against`.

    Without `against` that is the first of `OTHER_AXES` with a trade-off. Raises `StudyError` where
    no trial has that metric.
    """
    scoring = scoring_of(row.study)
    if against is not None:
        found = _traded(row, scoring, against, records)
        if found is None:
            name = one_line(against, NAME_CHARS)
            raise StudyError(f"no measured trial of study {row.id} has a metric {name!r}")
        return found
    if scoring.more:
        return _asked_front(row, scoring, records)
    for name in OTHER_AXES:
        found = None if name == scoring.expression.text else _traded(row, scoring, name, records)
        if found is not None and sum(point.on_front for point in found.points) > 1:
            return found
    return _front(row, (Axis.of(scoring),), {}, {}, records)


def history_front(scoring: Scoring, history: History, members: Sequence[FrontMember]) -> StudyFront:
    """Return the measured trials of a history by two objectives; `members` are on the front.

    Raises StudyError where there are not two objectives, or nothing was measured.
    """
    if len(scoring.objectives) != DRAWN_OBJECTIVES:
        raise StudyError(
            f"a front is drawn over two objectives, and there are {len(scoring.objectives)}; "
            "give two with --objective A --objective B"
        )
    if not members:
        raise StudyError("no trial is on the front; nothing to draw")
    front = {member.ordinal: _reached(member) for member in members}
    points = tuple(
        FrontPoint(
            ordinal=trial.ordinal,
            values=front.get(trial.ordinal) or _once(values),
            on_front=trial.ordinal in front,
            is_limited=bool(trial.score and trial.score.broken),
            words=one_line(f"trial {trial.ordinal}: {trial.config}", TIP_CHARS),
        )
        for trial in history.measured
        if (values := own_values(trial, scoring)) is not None
    )
    return StudyFront(
        axes=tuple(map(Axis.of, scoring.objectives)),
        points=points,
        is_multi_objective=True,
        shown=len(points),
        total=len(points),
    )


def study_knobs(row: StudyRow, records: Store) -> StudyKnobs:
    """Return configurations as lines: all, or the best and some of the others."""
    leader, sample = leader_of(row, records), _sample(row, records, MOST_LINES, MOST_LINES // 2)
    found = [each for each in sample if each.config is not None]
    again = repeat_spreads(row, records)
    ranks = records.ranks(row.id, [each.ordinal for each in found], _costs(row, again))
    last = max(1, max(ranks.values(), default=1))
    tried = _varied(row.study, [each.config for each in found if each.config is not None])
    knobs = tuple(TriedKnob(name=name, choices=choices) for name, choices in tried)
    return StudyKnobs(
        axis=Axis.of(scoring_of(row.study)),
        knobs=knobs,
        lines=tuple(_tried(each, knobs, ranks, last, again) for each in found) if knobs else (),
        best=None if leader is None else leader.ordinal,
        shown=len(found) if knobs else 0,
        total=records.counts(row.id).trials,
    )


def are_too_many(row: StudyRow, store: Store) -> bool:
    """Return whether pages do without the repeats of a study."""
    return store.counts(row.id).repeats > MOST_REPEATS


def repeats_of(row: StudyRow, store: Store) -> tuple[Repeat, ...]:
    """Return the repeats of a study; none where there are too many."""
    return () if are_too_many(row, store) else store.repeats(row.id)


def repeat_spreads(row: StudyRow, store: Store) -> Mapping[int, Spread]:
    """Return the result of each repeated trial over all launches that count.

    It is the number that the terminal shows; see `search.loop.leader.supported_values`.
    """
    if are_too_many(row, store):
        return {}
    return {ordinal: spread(values) for ordinal, values in repeated_values(row, store).items()}


def repeat_costs(row: StudyRow, store: Store) -> Mapping[int, float]:
    """Return the costs of repeated trials, lower is better."""
    return _costs(row, repeat_spreads(row, store))


def spread_of_trial(trial: Trial, again: Mapping[int, Spread]) -> Spread | None:
    """Return the result of a trial over all its launches; None without a score."""
    if trial.score is None:
        return None
    return again.get(trial.ordinal) or spread([trial.score.value])


def outlines_of(
    row: StudyRow, store: Store, ordinals: Iterable[int] | None = None
) -> tuple[TrialOutline, ...]:
    """Return finished trials in outline, oldest first, with results over all launches."""
    again = repeat_spreads(row, store)
    costs = _costs(row, again)
    return tuple(
        replace(
            each,
            value=again[each.ordinal].centre,
            cost=costs[each.ordinal],
            launch_count=again[each.ordinal].launch_count,
        )
        if each.value is not None and each.ordinal in again
        else each
        for each in store.outlines(row.id, ordinals)
    )


MARKS: Final[Mapping[Ended, tuple[str, Shape]]] = {
    "measured": ("measured", "dot"),
    "breaks a limit": ("limited", "cross"),
    "failed": ("failure", "tick"),
}
"""Colour and shape of the trials that ended so."""


def _by_end(ended: Ended, points: Sequence[Point]) -> Series:
    kind, shape = MARKS[ended]
    return Series(name=ended, kind=kind, points=points, shape=shape)


def draw_history(found: StudyHistory, most: int = MOST_POINTS, links: str = "") -> str:
    """Draw every trial in order, or the best so far and `most` others; empty without a value.

    Marks lead to `links` followed by their trial, unless it is empty.
    """
    if not any(point.value is not None for point in found.points):
        return ""
    led = [Point(x=each.ordinal, y=each.value) for each in found.best_so_far]
    leading = {each.ordinal for each in found.best_so_far}
    shown = thin(found.points, lambda each: each.ordinal in leading, most)
    by_end: dict[Ended, list[Point]] = {ended: [] for ended in MARKS}
    for each in shown:
        link = links and f"{links}{each.ordinal}"
        point = Point(x=each.ordinal, y=each.value, tip=each.words, link=link)
        by_end[each.ended].append(point)
    label, end = found.axis.label, shown[-1].ordinal + 0.5
    best = Series(name="best so far", kind="best", points=led, shape=None, path="step", until=end)
    return xy_chart(
        Panel(
            series=[best, *starmap(_by_end, by_end.items()), *_repeated_best(found, links)],
            x=ChartAxis(label="trial", kind="whole"),
            y=ChartAxis(label=label),
        ),
        title=f"{label} of every trial",
        about=f"{len(shown)} trials in order, {len(by_end['failed'])} without a value",
    )


def _repeated_best(found: StudyHistory, links: str) -> Iterator[Series]:
    again, best = found.best_again, found.best
    if again is None or best is None:
        return
    ends = " to ".join(map(format_number, again.ends or ()))
    value = f"{format_number(again.centre)}{f' ({ends})' if ends else ''}"
    tip, link = f"trial {best} over all its launches: {value}", links and f"{links}{best}"
    points = [Point(x=best, y=again.centre, y_ends=again.ends, tip=tip, link=link)]
    yield Series(name="best, repeated", kind="best", points=points, shape="large dot", is_main=True)


def draw_fronts(front: StudyFront, links: str = "") -> Iterator[tuple[str, str]]:
    """Yield charts of the main axis against each other one, each with its description.

    Marks lead to `links` followed by their trial, unless it is empty.
    """
    for place in range(1, len(front.axes)) if front.points else ():
        # What a trial costs is the x-axis, as readers expect; several objectives keep their order.
        order = (0, place) if front.is_multi_objective else (place, 0)
        x, y = (front.axes[n].shown.label for n in order)
        yield f"{y} against {x}", _draw_front(front, order, links)


def _draw_front(front: StudyFront, order: tuple[int, int], links: str) -> str:
    """Draw all trials, those on the front named; between two of it only the worse is known."""
    points = [(each, _front_point(each, front, order, links)) for each in front.points]
    members = sorted((point for of, point in points if of.on_front), key=lambda each: each.x)
    others = [(of.is_limited, point) for of, point in points if not of.on_front]
    x, y = (
        f"{axis.shown.label}, {'lower' if axis.lower_is_better else 'higher'} is better"
        for axis in (front.axes[n] for n in order)
    )
    series = [
        _by_end("measured", [point for is_limited, point in others if not is_limited]),
        _by_end("breaks a limit", [point for is_limited, point in others if is_limited]),
        Series(
            name="Pareto front",
            kind="best",
            points=members,
            shape="large dot",
            path="step" if len(front.axes) == DRAWN_OBJECTIVES else "",
            is_main=True,
        ),
    ]
    return xy_chart(
        Panel(series=series, x=ChartAxis(label=x), y=ChartAxis(label=y)),
        title=f"{y} against {x}",
        about=f"{len(points)} trials, {len(members)} on the Pareto front",
        height=340.0,
    )


def draw_knobs(found: StudyKnobs, links: str = "") -> str | None:
    """Draw configurations as lines; None where nothing was varied."""
    if len(found.knobs) < 2 or len(found.lines) < 2:
        return None
    return parallel_chart(found.knobs, found.lines, found.best, found.axis.label, links)


def _front_point(of: FrontPoint, front: StudyFront, order: tuple[int, int], links: str) -> Point:
    x, y = (of.values[n].shown(front.axes[n]) for n in order)
    return Point(
        x=x.centre,
        y=y.centre,
        x_ends=x.ends,
        y_ends=y.ends,
        name=str(of.ordinal) if of.on_front else "",
        tip=of.words,
        link=links and f"{links}{of.ordinal}",
        trial=of.ordinal,
    )


def _costs(row: StudyRow, again: Mapping[int, Spread]) -> Mapping[int, float]:
    sign = scoring_of(row.study).sign if again else 1
    return {ordinal: sign * found.centre for ordinal, found in again.items()}


def _outline_words(of: TrialOutline, again: Mapping[int, Spread]) -> str:
    """Describe a trial in one line, as the tip of its mark."""
    config = "" if of.config is None else f": {of.config}"
    if of.value is None:
        kind = "" if of.failure is None else f", {of.failure.value.replace('_', ' ')}"
        return one_line(f"trial {of.ordinal} failed{kind}{config}", TIP_CHARS)
    limited = ", breaks a limit" if of.is_limited else ""
    value = line_words(again.get(of.ordinal) or spread([of.value]), of.unit)
    return one_line(f"trial {of.ordinal}, {value}{limited}{config}", TIP_CHARS)


def _ended(of: TrialOutline) -> Ended:
    if of.value is None:
        return "failed"
    return "breaks a limit" if of.is_limited else "measured"


def _sample(row: StudyRow, records: Store, most: int, leading: int) -> Sequence[TrialOutline]:
    """Return all trials, or of many the first `leading` and a sample of the same shape."""
    if records.counts(row.id).trials <= most:
        return outlines_of(row, records)
    limited = bool(row.study.limits)
    sample = records.sampled_ordinals(row.id, most - leading, limited=limited)
    return outlines_of(row, records, {*sample, *records.leading(row.id, leading)})


def _asked_front(row: StudyRow, scoring: Scoring, records: Store) -> StudyFront:
    scores = records.scores(row.id)
    own = _own_values(scores, row, scoring, records)
    finding = final_result(row)
    if finding is not None:
        members = finding.front
    else:
        known = {ordinal: values for ordinal, values in own.items() if scores[ordinal].leads}
        members = front_over(known, counted(repeats_of(row, records), row.study.measure), scoring)
    front = {member.ordinal: _reached(member) for member in members}
    again = repeat_spreads(row, records)
    own |= {n: (again[n].centre, *values[1:]) for n, values in own.items() if n in again}
    axes = tuple(map(Axis.of, scoring.objectives))
    return _front(row, axes, own, front, records, is_multi_objective=True)


def _reached(member: FrontMember) -> tuple[Interval, ...]:
    return tuple(Interval.of(each.value) for each in member.reached)


def _own_values(
    scores: Mapping[int, TrialScore], row: StudyRow, scoring: Scoring, records: Store
) -> dict[int, tuple[float, ...]]:
    """Return the first result of each trial in each objective; skip trials that lack any."""
    if scoring.needs_seed:
        first = records.first_measured(row.id)
        scoring = scoring.against(() if first is None else (first.outcome,))
    names = {m.name for one in scoring.more for m in metrics_read(one.expression).values()}
    metrics = records.metric_values(row.id, names=names)
    own: dict[int, tuple[float, ...]] = {}
    for ordinal, scored in scores.items():
        found = [one.score(metrics.get(ordinal, ())) for one in scoring.more]
        others = tuple(score.value for score in found if isinstance(score, Score))
        if len(others) == len(found):
            own[ordinal] = (scored.value, *others)
    return own


def _traded(row: StudyRow, scoring: Scoring, name: str, records: Store) -> StudyFront | None:
    """Return the objective against a metric, lower is better; None where no trial has it."""
    metric = ALIASES.get(name, name)
    told, scores = records.metric_values(row.id, names=[metric]), records.scores(row.id)
    again = repeat_spreads(row, records)
    own = {
        n: (again[n].centre if n in again else s.value, told[n][0].value)
        for n, s in scores.items()
        if n in told
    }
    if not own:
        return None
    unit = told[min(own)][0].unit
    sign = 1 if scoring.lower_is_better else -1
    kept = unbeaten({n: (sign * v, taken) for n, (v, taken) in own.items() if scores[n].leads})
    axes = (Axis.of(scoring), Axis(name=name, unit=unit, lower_is_better=True))
    return _front(row, axes, own, {n: _once(own[n]) for n in kept}, records)


def _once(values: Sequence[float]) -> tuple[Interval, ...]:
    return tuple(Interval(centre=value, low=None, high=None) for value in values)


def _front(
    row: StudyRow,
    axes: tuple[Axis, ...],
    own: Mapping[int, tuple[float, ...]],
    front: Mapping[int, tuple[Interval, ...]],
    records: Store,
    *,
    is_multi_objective: bool = False,
) -> StudyFront:
    """Return the front, and a sample of the other trials where there are many."""
    again = repeat_spreads(row, records)
    members = thin([n for n in own if n in front], lambda _: False, MOST_POINTS // 2)
    others = thin([n for n in own if n not in front], lambda _: False, MOST_POINTS // 2)
    points = tuple(
        FrontPoint(
            ordinal=each.ordinal,
            values=front.get(each.ordinal) or _once(own[each.ordinal]),
            on_front=each.ordinal in front,
            is_limited=each.is_limited,
            words=_outline_words(each, again),
        )
        for each in outlines_of(row, records, [*members, *others])
    )
    return StudyFront(
        axes=axes,
        points=points,
        is_multi_objective=is_multi_objective,
        shown=len(points),
        total=len(own),
    )


def _tried(
    of: TrialOutline,
    knobs: Sequence[TriedKnob],
    ranks: Mapping[int, int],
    last: int,
    again: Mapping[int, Spread],
) -> TriedConfig:
    config = {} if of.config is None else of.config.values
    return TriedConfig(
        ordinal=of.ordinal,
        places=tuple(
            knob.choices.index(config[knob.name]) if knob.name in config else None for knob in knobs
        ),
        value=of.value,
        rank=ranks[of.ordinal] / last if of.ordinal in ranks else None,
        ended=_ended(of),
        words=_outline_words(of, again),
    )


def _varied(study: Study, configs: Sequence[Config]) -> list[tuple[str, tuple[Value, ...]]]:
    """Return knobs of which several values were tried, with these in their order."""
    found: list[tuple[str, tuple[Value, ...]]] = []
    for dimension in study.space.dimensions:
        name = dimension.name
        tried = {config.values.get(name) for config in configs}
        if len(tried) < 2:
            continue
        try:
            known = choices_of(dimension)
        except StudyError:
            known = ()
        others = sorted((v for v in tried if v is not None and v not in known), key=str)
        values = (*(choice for choice in known if choice in tried), *others)
        found.append((name, values))
    return found[:MOST_AXES]
