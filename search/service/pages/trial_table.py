"""A table of trials: which columns it has, and what it says of each trial."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from evaluator.objective import scoring_of
from evaluator.timing.spread import Spread
from records.choices import choices_of
from records.errors import StudyError
from records.rows import StudyRow
from records.store import Store
from records.study import Dimension
from records.trial import Failed, Measured, MetricValue, Trial
from records.trial_pages import KNOB, METRIC
from search.report_page.cells import metric_words
from search.report_page.trials import SHOWN_FIRST
from search.service.facts.repeats import are_too_many, disturbed_trials, reached_again, reached_by
from search.words.condition import Disturbed
from search.words.trial import NO_CONFIG, author, centre_words, one_line, remarks, support_words

MOST_KNOBS, MOST_METRICS = 8, 4
CAUSE_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A knob or a metric; `key` is what the table is sorted by."""

    key: str
    name: str
    is_shown: bool
    is_number: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A trial in the table: a cell for each column that is shown, empty where it has no value."""

    ordinal: int
    status: str
    author: str
    score: str
    cells: tuple[str, ...]
    remarks: str
    support: str = ""
    """How many launches its score is of, and their interval where they have one."""
    is_best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Some trials of a study, and the columns that there are for them."""

    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    objective: str
    is_first_only: bool = False
    """Whether launches that were made again are too many to be read."""

    @property
    def shown(self) -> tuple[Column, ...]:
        """The columns that are shown."""
        return tuple(column for column in self.columns if column.is_shown)


def trial_table(
    row: StudyRow, trials: Sequence[Trial], store: Store, asked: Sequence[str], best: int | None
) -> Table:
    """The table of these trials with the columns asked for, or with those that tell most."""
    again, disturbed = reached_again(row, store), disturbed_trials(trials, row, store)
    metrics = {
        trial.ordinal: store.metric_values(row.id, trial.ordinal).get(trial.ordinal, ())
        for trial in trials
        if isinstance(trial.outcome, Measured)
    }
    columns = _columns(row, trials, metrics, asked)
    shown = [column for column in columns if column.is_shown]
    return Table(
        columns=columns,
        lines=tuple(
            replace(
                _line(trial, reached_by(trial, again), metrics.get(trial.ordinal, ()), shown),
                is_best=trial.ordinal == best,
                remarks=remarks_of(trial, disturbed.get(trial.ordinal)),
            )
            for trial in trials
        ),
        objective=one_line(row.study.objective.expression, 60),
        is_first_only=are_too_many(row, store),
    )


def _columns(
    row: StudyRow,
    trials: Sequence[Trial],
    metrics: Mapping[int, Sequence[MetricValue]],
    asked: Sequence[str],
) -> tuple[Column, ...]:
    configs = [trial.config.values for trial in trials if trial.config is not None]
    dimensions = {dimension.name: dimension for dimension in row.study.space.dimensions}
    knobs = dict.fromkeys([*dimensions, *(name for config in configs for name in config)])
    names = sorted({value.name for values in metrics.values() for value in values})
    own = [key.removeprefix(METRIC) for key in asked if key.startswith(METRIC)]
    names += [name for name in own if name not in names]
    chosen = set(asked) or {*_telling_knobs(dimensions), *_telling_metrics(row, metrics)}
    numbers = {
        name
        for name in knobs
        if all(not isinstance(config.get(name, 0), str | bool) for config in configs)
    }
    return (
        *(_column(KNOB, name, chosen, is_number=name in numbers) for name in knobs),
        *(_column(METRIC, name, chosen, is_number=True) for name in names),
    )


def _column(kind: str, name: str, chosen: set[str], *, is_number: bool) -> Column:
    key = f"{kind}{name}"
    return Column(key=key, name=name, is_shown=key in chosen, is_number=is_number)


def _telling_knobs(dimensions: Mapping[str, Dimension]) -> Iterator[str]:
    """Knobs that can be set one way or another; the first of very many."""
    varied = [name for name, dimension in dimensions.items() if _is_varied(dimension)]
    yield from (f"{KNOB}{name}" for name in varied[:MOST_KNOBS])


def _is_varied(dimension: Dimension) -> bool:
    try:
        return len(choices_of(dimension)) > 1
    except StudyError:  # a record from elsewhere, which does not list what could be chosen
        return True


def _telling_metrics(row: StudyRow, metrics: Mapping[int, Sequence[MetricValue]]) -> Iterator[str]:
    """What objectives and limits are made of, then what people ask for first and trials differ in.

    Of one trial alone all that is asked for first.
    """
    found: dict[str, set[float]] = defaultdict(set)
    for value in chain.from_iterable(metrics.values()):
        found[value.name].add(value.value)
    varied = [name for name in found if len(found[name]) > 1 or len(metrics) < 2]
    own = row.study.objective.expression
    try:
        told: Sequence[str] = sorted(scoring_of(row.study).told_metrics)
    except StudyError:
        told = ()
    shown = [name for name in told if name in found]
    shown += [name for name in SHOWN_FIRST if name in varied and name not in (own, *shown)]
    yield from (f"{METRIC}{name}" for name in shown[:MOST_METRICS])


def _line(
    trial: Trial,
    reached: Spread | None,
    metrics: Sequence[MetricValue],
    shown: Sequence[Column],
) -> Line:
    config = {} if trial.config is None else trial.config.values
    unit = trial.score.unit if trial.score else ""
    told = {f"{METRIC}{value.name}": metric_words(value) for value in metrics}
    told |= {f"{KNOB}{name}": str(value) for name, value in config.items()}
    return Line(
        ordinal=trial.ordinal,
        status=trial.outcome.status,
        author=author(trial),
        score="" if reached is None else centre_words(reached, unit),
        support="" if reached is None else support_words(reached),
        cells=tuple(told.get(column.key, "") for column in shown),
        remarks="",
    )


def remarks_of(trial: Trial, disturbed: Disturbed | None) -> str:
    """Why a trial failed, or what to keep in mind about its result."""
    if isinstance(trial.outcome, Failed):
        where = "" if trial.config is not None else f" {NO_CONFIG}"
        return one_line(f"{trial.outcome.kind}: {trial.outcome.message}{where}", CAUSE_CHARS)
    found = [] if disturbed is None else [disturbed.count_words]
    return one_line("; ".join((*found, *remarks(trial))), CAUSE_CHARS)
