"""What pages and the API show of a study beside its trials: results, charts, exports, caches.

Charts read columns of the records and never a whole history, so a study of a hundred thousand
trials costs no more than what is drawn.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import BoundedSemaphore
from typing import BinaryIO, Literal, TypeAlias

from evaluator.metrics.base import Metric
from evaluator.metrics.registry import ALIASES
from evaluator.objective import Scoring, metrics_read, scoring_of
from evaluator.timing.decision import Spread, spread
from evaluator.timing.intervals.estimate import read_thresholds
from records.errors import StudyError
from records.store.queries import TrialOutline, TrialScore
from records.store.rows import StudyRow
from records.store.store import Store
from records.study import Value
from records.trial import Config, MetricValue, Repeat, Score, Trial
from search.compare.compare import Comparisons, Terms, compare_trials
from search.compare.sides import TrialSide
from search.leaderboard.entries import Submission
from search.leaderboard.ranking import (
    Leaderboard,
    gather_submissions,
    leaderboard,
    study_submission,
)
from search.loop.finding import best_result, final_finding, leader_of, repeated_values
from search.loop.leader import FrontMember, counted, front_over, unbeaten
from search.loop.learned import LearnedConstraint
from search.report.data import learned_for
from search.report.question import MOST_LINES, varied
from search.report.report import study_report
from search.service.cache import VersionedCache
from search.settings import installed_version
from search.transfer.bundle import SUFFIX
from search.transfer.export import ExportRequest, export
from search.transfer.tables import Omissions
from search.views.charts import Ended
from search.views.document import thin
from search.views.format import format_number, one_line
from search.views.html import render_html
from search.views.machine import Disturbed, disturbed_among

MOST_REPEATS = 5000
"""Pages read the repeats of a study only up to this number: each is read in full."""
MOST_POINTS = 2000
TIP_CHARS = 300
OTHER_AXES = ("peak_memory", "rank_count")
"""What a single objective is drawn against, where trials have it."""
NAME_CHARS = 80
MOST_DRAWN = 16
MOST_STUDIES = 5000
MOST_BOARDS = 8
MOST_TRIALS = 20_000
MOST_FILE_BYTES = 4 << 30
"""Size of the files that a bundle may hold."""
WAIT_S = 20.0
MOST_WAITING = 2
"""Each takes one of the few threads meanwhile."""

Form: TypeAlias = Literal["jsonl", "csv", "parquet", "bundle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What a number is, and which way is better."""

    name: str
    unit: str
    lower_is_better: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value with its interval, which is null for a single launch."""

    centre: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPoint:
    """A trial: its value, null where it failed; `words` describe it in one line."""

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
class TriedKnob:
    """An axis of parallel coordinates: the values that were tried, in their order."""

    name: str
    choices: tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedConfig:
    """A configuration as a line: the place of its choice on each axis, null where it sets none.

    `rank` is its place among all that may lead, 0 for the best and 1 for the worst.
    """

    ordinal: int
    places: tuple[int | None, ...]
    value: float | None
    rank: float | None
    ended: Ended
    words: str


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
    axis, leader = _axis(scoring_of(row.study)), leader_of(row, records)
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
                ended=_ended(each),
                started_at=each.started_at,
                words=_outline_words(each),
            )
            for each in found
        ),
        best_so_far=tuple(led),
        best=None if leader is None else leader.ordinal,
        best_again=_again(row, leader, records),
        shown=len(found),
        total=records.counts(row.id).trials,
    )


def study_front(row: StudyRow, records: Store, against: str | None = None) -> StudyFront:
    """Return the objectives against each other, or the only one against the metric `against`.

    Without `against` that is the first of `OTHER_AXES` with a trade-off. Raises `StudyError` where
    no trial has that metric.
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
    return StudyFront(axes=(_axis(scoring),), points=(), is_multi_objective=False, shown=0, total=0)


def study_knobs(row: StudyRow, records: Store) -> StudyKnobs:
    """Return configurations as lines: all, or the best and some of the others."""
    total, leader = records.counts(row.id).trials, leader_of(row, records)
    ordinals = None
    if total > MOST_LINES:
        half = MOST_LINES // 2
        spread = records.sampled_ordinals(row.id, half, limited=bool(row.study.limits))
        ordinals = {*records.leading(row.id, half), *spread}
    found = [each for each in outlines_of(row, records, ordinals) if each.config is not None]
    ranks = records.ranks(row.id, [each.ordinal for each in found], repeat_costs(row, records))
    last = max(1, max(ranks.values(), default=1))
    tried = varied(row.study, [each.config for each in found if each.config is not None])
    knobs = tuple(TriedKnob(name=name, choices=choices) for name, choices in tried)
    return StudyKnobs(
        axis=_axis(scoring_of(row.study)),
        knobs=knobs,
        lines=tuple(_tried(each, knobs, ranks, last) for each in found) if knobs else (),
        best=None if leader is None else leader.ordinal,
        shown=len(found) if knobs else 0,
        total=total,
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


def disturbed_study(row: StudyRow, store: Store) -> Disturbed | None:
    """Count the disturbed launches of a study; None for none, or for too many launches."""
    counts = store.counts(row.id)
    if counts.trials + counts.repeats > MOST_REPEATS:
        return None
    launches = (*store.history(row.id), *store.repeats(row.id))
    return disturbed_among(launch.outcome for launch in launches)


def disturbed_trials(
    trials: Iterable[Trial], row: StudyRow, store: Store
) -> Mapping[int, Disturbed]:
    """Count the disturbed launches of each of these trials that has any."""
    launches = {trial.ordinal: [trial.outcome] for trial in trials}
    for repeat in repeats_of(row, store):
        if repeat.ordinal in launches:
            launches[repeat.ordinal].append(repeat.outcome)
    found = {ordinal: disturbed_among(outcomes) for ordinal, outcomes in launches.items()}
    return {ordinal: each for ordinal, each in found.items() if each is not None}


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


def compare_recorded(a: TrialSide, b: TrialSide) -> Comparisons:
    """Judge trial B against trial A; raise `StudyError` where they are one trial."""
    return compare_trials(a, b, Terms(thresholds=read_thresholds(None, None)))


def knob_values(configs: Sequence[Config | None]) -> dict[str, tuple[Value | None, ...]]:
    """Return each knob, in alphabetical order, with its value in each configuration, or None."""
    values = [{} if config is None else config.values for config in configs]
    return {
        knob: tuple(each.get(knob) for each in values)
        for knob in sorted({knob for each in values for knob in each})
    }


class ChartData:
    """The data of charts, made once for each state of the records."""

    def __init__(self) -> None:
        self._histories = VersionedCache[StudyHistory](MOST_DRAWN)
        self._fronts = VersionedCache[StudyFront](MOST_DRAWN)
        self._knobs = VersionedCache[StudyKnobs](MOST_DRAWN)

    def history(self, row: StudyRow, records: Store) -> StudyHistory:
        """See `study_history`."""
        stamp = records.stamp(row.id)
        return self._histories.get(row.id, stamp, lambda: study_history(row, records))

    def front(self, row: StudyRow, records: Store, against: str | None = None) -> StudyFront:
        """See `study_front`."""
        stamp, key = records.stamp(row.id), (row.id, against)
        return self._fronts.get(key, stamp, lambda: study_front(row, records, against))

    def knobs(self, row: StudyRow, records: Store) -> StudyKnobs:
        """See `study_knobs`."""
        return self._knobs.get(row.id, records.stamp(row.id), lambda: study_knobs(row, records))


class LeaderboardCache:
    """Leaderboards, made again where a study has changed."""

    def __init__(self) -> None:
        self._submissions = VersionedCache[Submission | None](MOST_STUDIES)
        self._boards = VersionedCache[Leaderboard](MOST_BOARDS)

    def board(
        self,
        records: Store,
        *,
        by: str | None = None,
        workload: str | None = None,
        metrics: Sequence[str] = (),
    ) -> Leaderboard:
        """Rank all studies, or those of a workload, `by` a metric, with these metrics or all.

        Raise `StudyError` for a metric that no study has.
        """

        def made() -> Leaderboard:
            found, notes = gather_submissions(
                records, (), (), workload, lambda _count: None, self._submission
            )
            return leaderboard(found, by, metrics, notes)

        asked = (by, workload, tuple(metrics))
        return self._boards.get(asked, records.stamp_of_all(), made)

    def _submission(
        self, row: StudyRow, records: Store, known: Mapping[str, Metric]
    ) -> Submission | None:
        return self._submissions.get(
            row.id, records.stamp(row.id), lambda: study_submission(row, records, known)
        )


class BusyError(StudyError):
    """Too many exports and reports were requested before."""


class StudyWriter:
    """Reads whole studies for exports and reports, one at a time; few requests may wait."""

    def __init__(self) -> None:
        self._turns = BoundedSemaphore(1)
        self._room = BoundedSemaphore(1 + MOST_WAITING)

    def exported(self, root: Path, row: StudyRow, form: Form, leaving: Omissions) -> BinaryIO:
        """Return an export as an unnamed open file; raise as `export` does."""
        with self._records(root, row) as records:
            if form == "bundle" and not leaving.all_but_metrics:
                size = records.file_bytes(row.id)
                if size > MOST_FILE_BYTES:
                    raise StudyError(
                        f"study {row.id} has {size} bytes of files, too many for one request; "
                        f"`cclsearch export {row.id} --format bundle` has no limit"
                    )
            path = _empty_folder(root) / f"study{SUFFIX if form == 'bundle' else f'.{form}'}"
            request = ExportRequest(
                form=form,
                to=path,
                trial=None,
                leaving=leaving,
                given={},
                made_by=installed_version(),
                force=True,
                allow_missing=True,
                incomplete=False,
            )
            export(row, records, request, None)
            file = path.open("rb")
            path.unlink()
            return file

    def reported(self, root: Path, row: StudyRow) -> str:
        """Return the report of a study as one HTML page."""
        with self._records(root, row) as records:
            return render_html(study_report(row, records, ""))

    def learned(self, root: Path, row: StudyRow) -> tuple[LearnedConstraint, ...]:
        """Return the constraints that the failures of a study show."""
        with self._records(root, row) as records:
            return learned_for(row.study, records.history(row.id))

    @contextmanager
    def _records(self, root: Path, row: StudyRow) -> Iterator[Store]:
        """Open separate records, so that what is read is not cached."""
        with self._turn(), closing(Store(root)) as records:
            count = records.counts(row.id).trials
            if count > MOST_TRIALS:
                raise StudyError(
                    f"study {row.id} has {count} trials, more than {MOST_TRIALS}; use "
                    "`cclsearch export` or `cclsearch report` where its records are"
                )
            yield records

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with ExitStack() as held:
            for lock, wait_s in ((self._room, 0.0), (self._turns, WAIT_S)):
                if not lock.acquire(timeout=wait_s):
                    raise BusyError("other exports or reports are being made; try again later")
                held.callback(lock.release)
            yield


def _costs(row: StudyRow, again: Mapping[int, Spread]) -> Mapping[int, float]:
    sign = scoring_of(row.study).sign if again else 1
    return {ordinal: sign * found.centre for ordinal, found in again.items()}


def _axis(scoring: Scoring) -> Axis:
    """Return an objective as an axis."""
    return Axis(
        name=scoring.expression.text, unit=scoring.unit, lower_is_better=scoring.lower_is_better
    )


def _outline_words(of: TrialOutline) -> str:
    """Describe a trial in one line, as the tip of its mark."""
    config = "" if of.config is None else f": {of.config}"
    if of.value is None:
        kind = "" if of.failure is None else f", {of.failure.value.replace('_', ' ')}"
        return one_line(f"trial {of.ordinal} failed{kind}{config}", TIP_CHARS)
    limited = ", breaks a limit" if of.is_limited else ""
    value = f"{format_number(of.value)} {of.unit}".rstrip()
    value += f" in {of.launch_count} launches" if of.launch_count > 1 else ""
    return one_line(f"trial {of.ordinal}, {value}{limited}{config}", TIP_CHARS)


def _ended(of: TrialOutline) -> Ended:
    if of.value is None:
        return "failed"
    return "breaks a limit" if of.is_limited else "measured"


def _shown(row: StudyRow, records: Store) -> Sequence[TrialOutline]:
    """Return all trials where they are few, else a sample with the same shape, and the leader."""
    if records.counts(row.id).trials <= MOST_POINTS:
        return outlines_of(row, records)
    sample = records.sampled_ordinals(row.id, MOST_POINTS, limited=bool(row.study.limits))
    return outlines_of(row, records, {*sample, *records.leading(row.id, 1)})


def _again(row: StudyRow, leader: Trial | None, records: Store) -> Interval | None:
    result = best_result(row, leader, records)
    if result is None or result.launch_count < 2:
        return None
    return Interval(centre=result.centre, low=result.low, high=result.high)


def _asked_front(row: StudyRow, scoring: Scoring, records: Store) -> StudyFront:
    scores = records.scores(row.id)
    own = _own_values(scores, row, scoring, records)
    finding = final_finding(row)
    if finding is not None:
        members = finding.front
    else:
        known = {ordinal: values for ordinal, values in own.items() if scores[ordinal].leads}
        members = front_over(known, counted(repeats_of(row, records), row.study.measure), scoring)
    front = {member.ordinal: _reached(member) for member in members}
    again = repeat_spreads(row, records)
    own |= {n: (again[n].centre, *values[1:]) for n, values in own.items() if n in again}
    return StudyFront(
        axes=tuple(map(_axis, scoring.objectives)),
        points=(points := _points(row, own, front, records)),
        is_multi_objective=True,
        shown=len(points),
        total=len(own),
    )


def _reached(member: FrontMember) -> tuple[Interval, ...]:
    values = (each.value for each in member.reached)
    return tuple(Interval(centre=one.centre, low=one.low, high=one.high) for one in values)


def _own_values(
    scores: Mapping[int, TrialScore], row: StudyRow, scoring: Scoring, records: Store
) -> dict[int, tuple[float, ...]]:
    """Return the first result of each trial in each objective; skip trials that lack any."""
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
    """Return the objective against a metric, lower is better; None where no trial has it."""
    metric = ALIASES.get(name, name)
    told, scores = records.named_values(row.id, (metric,)), records.scores(row.id)
    again = repeat_spreads(row, records)
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
        axes=(_axis(scoring), Axis(name=name, unit=unit, lower_is_better=True)),
        points=points,
        is_multi_objective=False,
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
    """Return the points to draw: the front, and a sample of the others where there are many."""
    members = thin([n for n in own if n in front], lambda _: False, MOST_POINTS // 2)
    known = set(members)
    others = thin([n for n in own if n not in front], lambda _: False, MOST_POINTS // 2)
    return tuple(
        FrontPoint(
            ordinal=each.ordinal,
            values=front.get(each.ordinal) or _once(own[each.ordinal]),
            on_front=each.ordinal in known,
            is_limited=each.is_limited,
            words=_outline_words(each),
        )
        for each in outlines_of(row, records, [*members, *others])
    )


def _tried(
    of: TrialOutline, knobs: Sequence[TriedKnob], ranks: Mapping[int, int], last: int
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
        words=_outline_words(of),
    )


def _empty_folder(root: Path) -> Path:
    """Return the folder of exports, without what a killed process left there."""
    folder = root / "service" / "exports"
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.iterdir():
        left.unlink(missing_ok=True)
    return folder
