"""Group submissions that did the same work, and rank each group by one metric."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from evaluator.metrics.base import PUBLISHED_SCORE, Better, Metric
from evaluator.metrics.registry import ALIASES, loaded_metrics
from evaluator.timing.decision import Spread
from records.codec import from_json
from records.errors import StudyError, suggestion
from records.store.rows import StudyRow
from records.store.store import Store
from records.trial import Measured, MetricValue, Trial
from search.leaderboard.submission import Mark, Reading, Submission, Work
from search.loop.study_result import StudyResult, best_result, leader_of
from search.views.format import format_count, format_flags, remarks

USUAL: Final = ("step_time", "bus_bandwidth", "tokens_per_s")
"""What groups are ranked by unless another is asked for: the first that most submissions have."""
FIRST: Final = (
    *USUAL,
    *("mfu", "peak_memory", "ttft", "tpot"),
    *("exposed_communication_fraction", "compute_comm_overlap"),
)
"""Columns that come before the others."""
BYTES: Final = "bytes"
"""A unit that each value replaces with its own: KiB, MiB, GiB."""


Ends: TypeAlias = tuple[float, float]
"""The best and the worst that a submission may be, where lower is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A metric with its unit."""

    name: str
    unit: str
    better: Better

    @property
    def heading(self) -> str:
        """Name, unit and which way is better."""
        unit = f" [{self.unit}]" if self.unit and self.unit != BYTES else ""
        return f"{self.name}{unit} {self.arrow}"

    @property
    def arrow(self) -> str:
        """Which way is better."""
        return "↑" if self.better == "higher" else "↓"

    def of(self, submission: Submission) -> Reading | None:
        """What a submission has in this column: nothing where its value has another unit."""
        reading = submission.readings.get(self.name)
        return reading if reading is not None and reading.unit == self.unit else None

    def value(self, submission: Submission) -> float | None:
        """Its value in this column, if it has one."""
        reading = self.of(submission)
        return None if reading is None else reading.value


@dataclass(frozen=True, slots=True)
class Ranked:
    """A submission in its group; `rank` is None where it has no value with an interval.

    It is one more than the number shown to be better, so that submissions without a significant
    difference share one. A submission without an interval is listed where its value is.
    """

    rank: int | None
    submission: Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Submissions that did the same work, best first; `by` is None where nothing ranks them."""

    work: Work
    by: Column | None
    ranked: tuple[Ranked, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaderboard:
    """All groups, the largest first, and every column that any of them has."""

    groups: tuple[Group, ...]
    columns: tuple[Column, ...]
    notes: tuple[str, ...] = ()
    """What was left out, and why."""


def leaderboard(
    submissions: Sequence[Submission],
    by: str | None,
    metrics: Sequence[str],
    notes: Sequence[str] = (),
) -> Leaderboard:
    """Group and rank; `metrics` are the columns to show, all of them where it is empty.

    Raises `StudyError` for a metric that no submission has.
    """
    known = {name for each in submissions for name in each.readings}
    for name in (*([by] if by is not None else []), *metrics):
        if name not in known:
            raise StudyError(f"no submission has metric {name!r}; {suggestion(name, list(known))}")
    columns = _columns(submissions)
    together: dict[tuple[object, ...], list[Submission]] = defaultdict(list)
    for each in submissions:
        together[each.work.key].append(each)
    groups = [_group(found, columns, by) for found in together.values()]
    ranked_by = {group.by.name for group in groups if group.by is not None}
    shown = [each for each in columns if not metrics or each.name in {*metrics, *ranked_by}]
    order = {name: place for place, name in enumerate(metrics)}
    return Leaderboard(
        groups=tuple(sorted(groups, key=lambda group: (-len(group.ranked), group.work.title))),
        columns=tuple(sorted(shown, key=lambda each: order.get(each.name, len(order)))),
        notes=tuple(notes),
    )


def _columns(submissions: Iterable[Submission]) -> list[Column]:
    """Every metric in each of its units that has a value anywhere, the most frequent first."""
    count: Counter[tuple[str, str, Better]] = Counter()
    for submission in submissions:
        for name, reading in submission.readings.items():
            if reading.value is not None:
                count[name, reading.unit, reading.better] += 1
    first = {name: place for place, name in enumerate(FIRST)}
    order = sorted(count, key=lambda key: (first.get(key[0], len(first)), -count[key], key))
    columns: dict[tuple[str, str], Column] = {}
    for name, unit, better in order:
        columns.setdefault((name, unit), Column(name=name, unit=unit, better=better))
    return list(columns.values())


def _group(found: Sequence[Submission], columns: Sequence[Column], by: str | None) -> Group:
    column = _ranking_column(found, columns, by)
    work = found[0].work
    if column is None:
        ranked = [Ranked(None, each) for each in sorted(found, key=lambda each: each.name)]
        return Group(work=work, by=None, ranked=tuple(ranked))
    sign = 1 if column.better == "lower" else -1
    costs, ends, sure = dict[int, float](), dict[int, Ends](), dict[int, Ends]()
    for place, each in enumerate(found):
        value, reading = column.value(each), column.of(each)
        if value is None or reading is None or reading.ends is None:
            continue
        costs[place] = sign * value
        low, high = reading.ends
        ends[place] = (low, high) if sign == 1 else (-high, -low)
        if reading.has_interval:
            sure[place] = ends[place]
    places, ranks = _ranks(ends), _ranks(sure)
    order = sorted(costs, key=lambda place: (places[place], costs[place], found[place].name))
    rest = sorted((n for n in range(len(found)) if n not in costs), key=lambda n: found[n].name)
    ranked = [Ranked(ranks.get(place), found[place]) for place in (*order, *rest)]
    return Group(work=work, by=column, ranked=tuple(ranked))


def _ranks(ends: Mapping[int, Ends]) -> dict[int, int]:
    """One more than how many end before each begins."""
    worst = sorted(worst for _, worst in ends.values())
    return {place: 1 + bisect_left(worst, best) for place, (best, _) in ends.items()}


def _ranking_column(
    found: Sequence[Submission], columns: Sequence[Column], by: str | None
) -> Column | None:
    """The column asked for, or the usual one that most submissions of the group have."""
    names = (by,) if by is not None else USUAL
    fitting = [column for column in columns if column.name in names]
    counts = {c: sum(c.value(each) is not None for each in found) for c in fitting}
    best = max(fitting, key=lambda c: (counts[c], -names.index(c.name)), default=None)
    return best if best is not None and counts[best] else None


def study_submission(row: StudyRow, store: Store, known: Mapping[str, Metric]) -> Submission | None:
    """The best trial of a study; None where none was measured within its limits.

    `known` are the metrics of today by name.
    """
    finding = from_json(StudyResult, row.summary) if row.summary else None
    trial = leader_of(row, store)
    if trial is None or not isinstance(trial.outcome, Measured):
        return None
    confirmed = finding is not None and finding.winner == trial.ordinal
    values = store.metric_values(row.id, trial.ordinal).get(trial.ordinal, ())
    readings, result = _readings(row, trial.outcome, values, known), best_result(row, trial, store)
    readings |= _objective(row, result, readings)
    measurement = trial.outcome.measurement
    ranks = len(measurement.step_times_s) or None
    return Submission(
        name=row.id,
        source=row.study.name,
        work=Work.of(row.study.workload, measurement.tokens_per_step),
        machine=row.study.environment.accelerator,
        rank_count=ranks,
        software=measurement.torch_version or "",
        settings=format_flags(trial.config) if trial.config is not None else "",
        readings=readings,
        launch_count=1 if result is None else result.launch_count,
        ties=tuple(f"trial {n}" for n in finding.ties) if finding is not None and confirmed else (),
        marks=tuple(_marks(row, trial, values, known)),
    )


def _readings(
    row: StudyRow,
    outcome: Measured,
    values: Iterable[MetricValue],
    known: Mapping[str, Metric],
) -> dict[str, Reading]:
    """What was measured or computed, and why other metrics have no value."""
    found = {
        each.name: Reading(unit=each.unit, better=each.better, value=each.value, launch_count=1)
        for each in values
    }
    for name, why in outcome.absent.items():
        if name in known:
            absent = Reading(unit=known[name].unit, better=known[name].better, absent=why)
            found.setdefault(name, absent)
    if row.study.origin is not None:  # what another tool called its score means nothing elsewhere
        found.pop(PUBLISHED_SCORE, None)
    return found


def _objective(
    row: StudyRow, result: Spread | None, readings: Mapping[str, Reading]
) -> dict[str, Reading]:
    """The objective by all launches that count, where it is a metric and no expression."""
    text = row.study.objective.expression.strip()
    name = text if text in readings else ALIASES.get(text, text)
    if result is None or name not in readings:
        return {}
    by_all = replace(
        readings[name],
        value=result.centre,
        absent=None,
        low=result.low,
        high=result.high,
        launch_count=result.launch_count,
    )
    return {name: by_all}


def _marks(
    row: StudyRow,
    trial: Trial,
    values: Sequence[MetricValue],
    known: Mapping[str, Metric],
) -> Iterator[Mark]:
    """What to keep in mind of the search and its samples, and what is out of date."""
    if not row.study.searched_elsewhere and row.status != "finished":
        words = "its search has not ended: the best so far was not confirmed"
        yield Mark(name="unfinished", words=words)
    yield from (Mark(name="caveat", words=words) for words in remarks(trial))
    older = [
        each
        for each in values
        if each.name in known and 0 < each.version < known[each.name].version
    ]
    if older:
        named = ", ".join(each.name for each in older)
        command = f"cclsearch metrics compute --study {row.id}"
        yield Mark(name="older_definition", words=f"{named}: a newer version exists; `{command}`")


MOST_NAMED: Final = 5

SubmissionOf: TypeAlias = Callable[[StudyRow, Store, Mapping[str, Metric]], Submission | None]
"""Makes or looks up the submission of a study."""


def gather_submissions(
    store: Store,
    studies: Sequence[str],
    workload: str | None,
    on_study: Callable[[int], None],
    submission_of: SubmissionOf = study_submission,
) -> tuple[list[Submission], tuple[str, ...]]:
    """Submissions of this work, and what was left out.

    Of all studies that are not archived, where none is named.

    `on_study` is called with the number of studies read so far. Raises `StudyError` for a study
    that does not exist.
    """
    submissions, without = list[Submission](), list[str]()
    known, _ = loaded_metrics()
    named = [store.find(study) for study in studies]
    listed = named or [row for row in store.studies() if not row.labels.archived]
    for count, row in enumerate(listed):
        on_study(count)
        if workload is not None and not Work.of(row.study.workload, None).is_called(workload):
            continue
        submission = submission_of(row, store, known)
        if submission is None:
            without.append(row.id)
        else:
            submissions.append(submission)
    return submissions, tuple(_left_out(without))


def _left_out(studies: Sequence[str]) -> Iterator[str]:
    if studies:
        more = f" and {len(studies) - MOST_NAMED} more" if len(studies) > MOST_NAMED else ""
        yield (
            f"left out {format_count(len(studies), 'study', 'studies')} without a measured trial "
            f"within its limits: {'; '.join(studies[:MOST_NAMED])}{more}"
        )
