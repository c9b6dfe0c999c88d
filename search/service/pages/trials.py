"""Trial table.

A table of trials: which columns it has, and what it says of each trial.

What part of a table of trials is asked for, as the address of a page says it.

The table of the trials of a study, as a page and for spreadsheets.
"""

import io
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from evaluator.objective import scoring_of
from evaluator.timing.decision import Spread
from records.errors import StudyError
from records.store.queries import KNOB, METRIC, TrialQuery
from records.store.rows import StudyRow
from records.store.store import Store
from records.study import Dimension, choices_of
from records.trial import Failed, FailureKind, Measured, MetricValue, Trial
from search.report.analysis import SHOWN_FIRST
from search.service.access import Reader, TheService
from search.service.api.studies import disturbed_in, study_short
from search.service.api.trials import attachment
from search.service.data import (
    are_too_many,
    disturbed_trials,
    repeat_costs,
    repeat_spreads,
    spread_of_trial,
)
from search.service.pages.base import page
from search.service.service import Service
from search.transfer.entry import trial_documents
from search.transfer.tables import StudyExport, write_csv
from search.views.document import metric_words
from search.views.format import NO_CONFIG, author, centre_words, one_line, remarks, support_words
from search.views.machine import Disturbed

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
    again, disturbed = repeat_spreads(row, store), disturbed_trials(trials, row, store)
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
                _line(trial, spread_of_trial(trial, again), metrics.get(trial.ordinal, ()), shown),
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
        told: Sequence[str] = sorted(scoring_of(row.study).shown_metrics)
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


ColumnChoice = Annotated[str, Field(max_length=120)]


class TrialTableQuery(BaseModel):
    """Filters, order, columns and place in a table of trials; a form leaves empty what is not set.

    `columns` are `config.KNOB` and `metric.NAME`; without any the page chooses.
    """

    sort: Annotated[str, Field(max_length=120)] = "ordinal"
    order: Literal["up", "down"] = "up"
    status: Literal["", "measured", "failed"] = ""
    kind: FailureKind | Literal[""] = ""
    author: Annotated[str, Field(max_length=100)] = ""
    text: Annotated[str, Field(max_length=200)] = ""
    columns: Annotated[list[ColumnChoice], Field(max_length=200)] = Field(default_factory=list)
    limit: Annotated[int, Field(ge=1, le=500)] = 100
    offset: Annotated[int, Field(ge=0, le=10**9)] = 0

    @property
    def is_filtered(self) -> bool:
        """Whether it asks for some of the trials only."""
        return bool(self.status or self.kind or self.author or self.text)

    def query(self, *, limit: int | None = None, offset: int | None = None) -> TrialQuery:
        """The same as a question to the store."""
        return TrialQuery(
            sort=self.sort,
            descending=self.order == "down",
            status=self.status or None,
            kind=self.kind or None,
            author=self.author or None,
            text=self.text or None,
            limit=self.limit if limit is None else limit,
            offset=self.offset if offset is None else offset,
        )

    def address(self, **changes: str | int) -> str:
        """The query string that asks for the same with these changes, from the first row on."""
        asked = {**self.model_dump(mode="json", exclude_defaults=True), "offset": 0, **changes}
        return "?" + urlencode({k: v for k, v in asked.items() if v not in ("", 0)}, doseq=True)

    @property
    def paged(self) -> str:
        """The beginning of the query string of another page, which ends with its offset."""
        asked = self.address()
        return asked if asked == "?" else f"{asked}&"

    def sorted_by(self, column: str) -> str:
        """The query string that sorts by a column: the other way round where it is already."""
        turned = self.sort == column and self.order == "up"
        return self.address(sort=column, order="down" if turned else "up")

    def direction(self, column: str) -> str | None:
        """How the table is sorted by a column, in the words of ARIA; None where it is not."""
        if self.sort != column:
            return None
        return "ascending" if self.order == "up" else "descending"


router = APIRouter(include_in_schema=False)

CSV_ROWS = 5000

Asked = Annotated[TrialTableQuery, Query()]


@router.get("/studies/{study_id}/trials")
def trials(
    request: Request, study_id: str, service: TheService, _caller: Reader, asked: Asked
) -> Response:
    """The trials of a study, filtered, sorted and paged by the address."""
    row = service.study(study_id)
    study = study_short(row, service)
    found, total = service.records.trial_page(row.id, _query(row, asked, service))
    return page(
        request,
        "trials.html",
        disturbed=disturbed_in(row, service),
        study=study,
        tab="trials",
        asked=asked,
        total=total,
        most_csv=CSV_ROWS,
        table=trial_table(row, found, service.records, asked.columns, study.best_trial),
        kinds=[kind.value for kind in service.records.failures(row.id)],
        authors=sorted({trial.policy.author for trial in found}),
    )


@router.get("/studies/{study_id}/trials.csv")
def trials_as_csv(study_id: str, service: TheService, _caller: Reader, asked: Asked) -> Response:
    """The first rows of the same for a spreadsheet, with every column of an export."""
    row, records = service.study(study_id), service.records
    query = replace(_query(row, asked, service), limit=CSV_ROWS, offset=0)
    found, _ = records.trial_page(row.id, query)
    metrics = {
        trial.ordinal: records.metric_values(row.id, trial.ordinal).get(trial.ordinal, ())
        for trial in found
    }
    documents = trial_documents(StudyExport(row=row, trials=found, repeats=(), metrics=metrics))
    written = io.BytesIO()
    write_csv(documents, written)
    return Response(
        written.getvalue(),
        media_type="text/csv; charset=utf-8",
        headers={"content-disposition": attachment(f"{row.id}-trials.csv")},
    )


def _query(row: StudyRow, asked: TrialTableQuery, service: Service) -> TrialQuery:
    """What is asked, with what counts of trials that were launched again where that sorts them."""
    query = asked.query()
    if query.sort != "score":
        return query
    return replace(query, costs=repeat_costs(row, service.records))
