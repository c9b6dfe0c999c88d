"""Read a store: studies, trials, policies and what belongs to them. Nothing here writes.

Lists and outlines come from columns, so that a page over 100,000 trials parses none of them. Trials
and repeats never change; each is parsed once.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from records.codec import from_fields, from_json
from records.errors import CodecError, StoreError, StudyError, shown
from records.llm_exchange import SUBMITTED, LlmExchange, ModelUse, TokenUsage
from records.machine import Machine
from records.store.artifacts import Artifacts
from records.store.database import Database, store_errors
from records.store.rows import (
    ComputedMetric,
    PendingTrial,
    Row,
    SearchRun,
    StudyCounts,
    StudyRow,
    to_config,
    to_study_row,
)
from records.store.schema import ADMISSIBLE
from records.study import MEASURE
from records.trial import Config, FailureKind, History, MetricValue, Policy, Repeat, Trial

T = TypeVar("T")
StudyColumn = Literal["created_at", "name", "objective", "trials"]
ARCHIVED = "coalesce(json_extract(labels, '$.archived'), 0)"
"""Whether a study is archived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOutline:
    """A policy that a study tried, without its text; the rest is of the trial that had it first."""

    digest: str
    author: str
    parent: str | None
    rationale: str
    first_trial: int
    trial_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """How a trial of a policy ended: with a value, or by a failure."""

    ordinal: int
    value: float | None
    unit: str
    failure: FailureKind | None
    was_asked: bool = False
    """Whether a model was asked for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyQuery:
    """A page of studies, by default the newest first.

    `text` is searched for in their ids, names and objectives. With a `status` only those that have
    it; `among` have it and `except_for` do not, whatever status is recorded. `archived` is whether
    they are archived, None for both.
    """

    text: str | None = None
    status: str | None = None
    among: Sequence[str] = ()
    except_for: Sequence[str] = ()
    tag: str | None = None
    archived: bool | None = None
    sort: StudyColumn = "created_at"
    descending: bool = True
    limit: int = 50
    offset: int = 0

    def where(self) -> tuple[str, list[str | int]]:
        """A condition on `studies`, and its arguments."""
        parts, arguments = ["1"], list[str | int]()
        if self.text:
            places = ("id", "name", "objective")
            parts.append(f"({' or '.join(f'instr(lower({place}), ?)' for place in places)})")
            arguments += [self.text.lower()] * len(places)
        if self.status is not None:
            parts.append(
                "(id in (select value from json_each(?))"
                " or (status = ? and id not in (select value from json_each(?))))"
            )
            arguments += [json.dumps([*self.among]), self.status, json.dumps([*self.except_for])]
        if self.tag is not None:
            parts.append("? in (select value from json_each(labels, '$.tags'))")
            arguments.append(self.tag)
        if self.archived is not None:
            parts.append(f"{'' if self.archived else 'not '}{ARCHIVED}")
        return " and ".join(parts), arguments

    @property
    def order(self) -> str:
        """The order; of equal names, objectives or trial counts the newest first."""
        direction = "desc" if self.descending else "asc"
        if self.sort == "created_at":
            return f"created_at {direction}, id {direction}"
        column = {"name": "lower(name)", "trials": "trial_count"}.get(self.sort, self.sort)
        return f"{column} {direction}, created_at desc, id desc"


COLUMNS = {
    "ordinal": "t.ordinal",
    "score": "t.score_cost",
    "author": "t.author",
    "status": "t.status",
    "kind": "t.failure_kind",
    "started_at": "t.started_at",
}
KNOB, METRIC = "config.", "metric."


def score_cost(costs: Mapping[int, float]) -> tuple[str, list[str | int]]:
    """The cost of each of `trials t`, and its arguments: by these where they name the trial."""
    if not costs:
        return COLUMNS["score"], []
    known = json.dumps({str(ordinal): cost for ordinal, cost in costs.items()})
    return f"""coalesce(json_extract(?, '$."' || t.ordinal || '"'), {COLUMNS["score"]})""", [known]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialQuery:
    """A page of the trials of a study.

    `sort` is one of `COLUMNS`, `config.KNOB` or `metric.NAME`; a lower cost sorts as a lower score.
    `costs` are those of repeated trials, which count before that of their first
    launch. `text` is searched for in the configuration and in the message of a failure.
    """

    sort: str = "ordinal"
    descending: bool = False
    status: Literal["measured", "failed"] | None = None
    kind: FailureKind | None = None
    author: str | None = None
    text: str | None = None
    limit: int = 100
    offset: int = 0
    costs: Mapping[int, float] = field(default_factory=dict)

    def where(self, study_id: str) -> tuple[str, list[str | int]]:
        """A condition on `trials t`, and its arguments."""
        parts, arguments = ["t.study_id = ?"], list[str | int]([study_id])
        if self.status is not None:  # in the words of an index
            parts.append(f"t.failure_kind is {'not ' if self.status == 'failed' else ''}null")
        exact = {"t.failure_kind": self.kind, "t.author": self.author}
        for column, value in exact.items():
            if value is not None:
                parts.append(f"{column} = ?")
                arguments.append(str(value))
        if self.text:
            parts.append("(instr(lower(t.config), ?) or instr(lower(t.message), ?))")
            arguments += [self.text.lower()] * 2
        return " and ".join(parts), arguments

    @property
    def is_whole(self) -> bool:
        """Whether every trial of the study is of that kind."""
        return not (self.status or self.kind or self.author or self.text)

    def order(self) -> tuple[str, list[str | int]]:
        """The order, and its arguments: what lacks the value comes last, ties by ordinal."""
        expression, arguments = self._sorted_by()
        direction = "desc" if self.descending else "asc"
        if expression == COLUMNS["ordinal"]:
            return f"{expression} {direction}", arguments
        return f"{expression} {direction} nulls last, t.ordinal {direction}", arguments

    def _sorted_by(self) -> tuple[str, list[str | int]]:
        if self.sort == "score":
            return score_cost(self.costs)
        if self.sort in COLUMNS:
            return COLUMNS[self.sort], []
        if self.sort.startswith(KNOB) and '"' not in self.sort:
            return "json_extract(t.config, ?)", [f'$."{self.sort.removeprefix(KNOB)}"']
        if self.sort.startswith(METRIC):
            return (
                "(select m.value from newest_metrics m where m.study_id = t.study_id"
                " and m.ordinal = t.ordinal and m.name = ?)",
                [self.sort.removeprefix(METRIC)],
            )
        raise StudyError(
            f"cannot sort by {shown(self.sort)}; known are {', '.join(COLUMNS)}, config.KNOB "
            "and metric.NAME"
        )


PICKS = 4
"""Trials of a run at most: its best, its worst, one that breaks a limit, one that failed."""
_OF_RUNS = (
    f"select ordinal, min(score_cost) from trials where study_id = ? and {ADMISSIBLE}",
    f"select ordinal, max(score_cost) from trials where study_id = ? and {ADMISSIBLE}",
    "select min(ordinal) as ordinal from trials where study_id = ? and failure_kind is not null",
)
_LIMITED = (
    "select min(ordinal) as ordinal from trials where study_id = ? and score_cost is not null"
    " and coalesce(score_broken, '[]') != '[]'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutline:
    """A trial without what was measured in it: `value` is its score, None where it failed.

    It is that of its first launch unless the reader replaces it; then `launch_count` says so.
    """

    ordinal: int
    author: str
    config: Config | None
    value: float | None
    cost: float | None
    unit: str
    is_limited: bool
    failure: FailureKind | None
    started_at: str
    launch_count: int = 1

    @property
    def leads(self) -> bool:
        """Whether it may lead: it was measured and breaks no limit."""
        return self.cost is not None and not self.is_limited


@dataclass(frozen=True, slots=True)
class TrialScore:
    """What a trial scored; `leads` where it breaks no limit, so that it may lead."""

    value: float
    leads: bool


SHOWN_IDS = 5
MACHINE_BYTES = 16 << 20
"""More than any description takes, with every package that is installed."""
_TRIALS = "select t.trial from trials t"


@dataclass(slots=True, kw_only=True)
class ParseCache:
    """What was parsed of the study that was read last, and up to which rows of which database."""

    study_id: str = ""
    inode: int | None = None
    history: History = field(default_factory=History)
    last_trial: int = 0
    repeats: tuple[Repeat, ...] = ()
    last_repeat: int = 0


class StoredRecords:
    """The read side of a store; every question may raise `StoreError`."""

    root: Path
    artifacts: Artifacts
    _db: Database
    _parsed: ParseCache
    _most_parsed: int | None

    def studies(self, limit: int | None = None, offset: int = 0) -> tuple[StudyRow, ...]:
        """All studies, newest first, or a page of them."""
        select = "select * from studies order by created_at desc, id desc limit ? offset ?"
        return self._studies(select, -1 if limit is None else limit, offset)

    def study_count(self) -> int:
        """How many studies there are."""
        return self._number("select count(*) from studies")

    def study_page(self, query: StudyQuery) -> tuple[tuple[StudyRow, ...], int]:
        """Some of the studies, and how many match."""
        where, values = query.where()
        page = f"order by {query.order} limit ? offset ?"
        found = self._studies(
            f"select * from studies where {where} {page}", *values, query.limit, query.offset
        )
        return found, self._number(f"select count(*) from studies where {where}", *values)

    def tags(self, most: int) -> tuple[str, ...]:
        """The tags that studies have, in alphabetical order, `most` of them."""
        select = "select distinct value from studies, json_each(labels, '$.tags') order by value"
        return self._firsts(f"{select} limit ?", most)

    def statuses(self, study_ids: Sequence[str]) -> dict[str, str]:
        """The recorded status of each of these studies that exists."""
        select = "select id, status from studies where id in (select value from json_each(?))"
        return dict(self._tuples(select, json.dumps([*study_ids])))

    def begun_studies(self) -> tuple[str, ...]:
        """Studies whose search began and never ended, perhaps because its process was killed."""
        return self._firsts("select id from studies where status = 'running' order by id")

    def find(self, prefix: str) -> StudyRow:
        """The one study whose id starts with `prefix`, or the newest search for an empty one.

        What was imported is someone else's until it is named, so it is never the newest.
        """
        if not prefix:
            found = self._studies(
                "select * from studies where strategy != ? and json_extract(study, '$.origin')"
                f" is null and not {ARCHIVED} order by created_at desc, id desc limit 1",
                MEASURE,
            )
            if not found and self.study_count():
                raise StudyError(
                    f"every study in {self.root} was imported or measured for a replay; give the "
                    "id of the one you mean, from `cclsearch list`"
                )
        else:
            select = (
                "select * from studies where id >= ? and substr(id, 1, ?) = ? order by id limit ?"
            )
            found = self._studies(select, prefix, len(prefix), prefix, SHOWN_IDS + 1)
        if not found:
            wanted = f"no study {prefix!r} in {self.root}; see `cclsearch list`"
            none = f"no studies in {self.root}; next: cclsearch run --objective step_time"
            raise StudyError(wanted if prefix else none)
        # The whole id sorts before every longer one.
        if len(found) > 1 and found[0].id != prefix:
            ids = ", ".join(row.id for row in found[:SHOWN_IDS])
            raise StudyError(f"{prefix!r} fits several studies: {ids}; give more of the id")
        return found[0]

    def counts(self, study_id: str) -> StudyCounts:
        """Counts of a study, without reading its trials."""
        counts = self._read(
            StudyCounts,
            "select trial_count as trials, measured_count as measured, launch_count as launches,"
            " repeat_count as repeats from studies where id = ?",
            study_id,
        )
        return counts[0] if counts else StudyCounts()

    def runs(self, study_id: str) -> tuple[SearchRun, ...]:
        """Every run of a study's search, oldest first; none where it is not known."""
        return self._records(
            SearchRun, "select run from runs where study_id = ? order by rowid", study_id
        )

    def node_s(self, study_id: str) -> float | None:
        """How long all runs of a study held nodes, in seconds times nodes; None if not counted."""
        (node_s,) = self._firsts(
            "select sum(run ->> '$.node_s') from runs where study_id = ?", study_id
        )
        return None if node_s is None else float(node_s)

    def pending(self, study_id: str) -> tuple[PendingTrial, ...]:
        """The trials that were begun and never finished, oldest first."""
        return self._records(
            PendingTrial,
            "select pending from pending_trials where study_id = ? order by ordinal",
            study_id,
        )

    def history(self, study_id: str) -> History:
        """All finished trials of a study, oldest first."""
        with self._db.atomic():  # of one database, should it be replaced meanwhile
            parsed = self._parsed_of(study_id)
            select = "select rowid, trial from trials where study_id = ? and rowid > ?"
            rows = self._tuples(select, study_id, parsed.last_trial)
        if rows:
            trials = (*parsed.history.trials, *(from_json(Trial, text) for _, text in rows))
            parsed.history = History(tuple(sorted(trials, key=lambda trial: trial.ordinal)))
            parsed.last_trial = max(row for row, _ in rows)
        self._forget_many(parsed)
        return parsed.history

    def trial(self, study_id: str, ordinal: int) -> Trial | None:
        """One finished trial, or None."""
        return self._first("t.ordinal = ?", study_id, ordinal)

    def trial_page(self, study_id: str, query: TrialQuery) -> tuple[tuple[Trial, ...], int]:
        """Some of the finished trials of a study, and how many there are of that kind."""
        where, values = query.where(study_id)
        order, sorted_by = query.order()
        if query.is_whole:
            total = self.counts(study_id).trials
        else:
            total = self._number(f"select count(*) from trials t where {where}", *values)
        # Sorted without what trials hold, which is read of this page alone.
        select = f"select t.ordinal from trials t where {where} order by {order} limit ? offset ?"
        ordinals = self._firsts(select, *values, *sorted_by, query.limit, query.offset)
        page = self._records(
            Trial,
            f"{_TRIALS} where t.study_id = ? and t.ordinal in (select value from json_each(?))",
            study_id,
            json.dumps(ordinals),
        )
        trials = {trial.ordinal: trial for trial in page}
        return tuple(trials[ordinal] for ordinal in ordinals), total

    def policy_outlines(
        self, study_id: str, limit: int, offset: int
    ) -> tuple[tuple[PolicyOutline, ...], int]:
        """Some policies of a study, in the order of their first trials, and how many it has."""
        outlines = self._read(
            PolicyOutline,
            "select t.policy_digest as digest, t.author, t.trial ->> '$.policy.parent' as parent,"
            " t.rationale, f.first_trial, f.trial_count from (select min(ordinal) as first_trial,"
            " count(*) as trial_count from trials where study_id = ? group by policy_digest"
            " order by first_trial limit ? offset ?) f join trials t on t.study_id = ?"
            " and t.ordinal = f.first_trial order by f.first_trial",
            study_id,
            limit,
            offset,
            study_id,
        )
        count = "select count(distinct policy_digest) from trials where study_id = ?"
        return outlines, self._number(count, study_id)

    def policy_results(
        self, study_id: str, digests: Sequence[str], most: int
    ) -> Mapping[str, tuple[PolicyResult, ...]]:
        """How the first `most` trials of each of these policies ended."""
        found: dict[str, tuple[PolicyResult, ...]] = {}
        rows = self._rows(
            "select t.policy_digest, t.ordinal, t.score_value as value,"
            " coalesce(t.score_unit, '') as unit, t.failure_kind as failure,"
            " t.trial ->> 'exchange' is not null as was_asked from (select ordinal,"
            " row_number() over (partition by policy_digest order by ordinal) as place from trials"
            " where study_id = ? and policy_digest in (select value from json_each(?))) f"
            " join trials t on t.study_id = ? and t.ordinal = f.ordinal"
            " where f.place <= ? order by t.ordinal",
            study_id,
            json.dumps([*digests]),
            study_id,
            most,
        )
        for row in rows:
            digest = str(row["policy_digest"])
            found[digest] = (*found.get(digest, ()), from_fields(PolicyResult, row))
        return found

    def policy_trial_count(self, study_id: str, digest: str) -> int:
        """How many trials of a study had a policy."""
        return self._number(
            "select count(*) from trials where study_id = ? and policy_digest = ?", study_id, digest
        )

    def policy(self, study_id: str, digest: str) -> Policy | None:
        """A policy as the first trial of a study had it; None where none had."""
        found = self._first("t.policy_digest = ? order by t.ordinal", study_id, digest)
        return found.policy if found else None

    def best(self, study_id: str) -> Trial | None:
        """The trial with the lowest cost of those that break no limit, the earliest of equals."""
        return self._first(f"{ADMISSIBLE} order by score_cost, ordinal", study_id)

    def first_measured(self, study_id: str) -> Trial | None:
        """The earliest trial with a score, which objectives name as the seed."""
        return self._first("t.score_cost is not null order by t.ordinal", study_id)

    def leading(self, study_id: str, count: int) -> tuple[int, ...]:
        """The `count` best trials of those that break no limit, the best first."""
        which = f"study_id = ? and {ADMISSIBLE} order by score_cost, ordinal limit ?"
        return self._firsts(f"select ordinal from trials where {which}", study_id, count)

    def latest(self, study_id: str, count: int) -> tuple[Trial, ...]:
        """The last `count` trials of a study, oldest first."""
        select = f"{_TRIALS} where t.study_id = ? order by t.ordinal desc limit ?"
        return self._records(Trial, select, study_id, count)[::-1]

    def failures(self, study_id: str) -> dict[FailureKind, int]:
        """How many trials failed by each kind of failure, the most frequent first."""
        found = self._tuples(
            "select failure_kind, count(*) as found from trials where study_id = ?"
            " and failure_kind is not null group by failure_kind order by found desc, failure_kind",
            study_id,
        )
        return {FailureKind(kind): count for kind, count in found}

    def repeats(self, study_id: str) -> tuple[Repeat, ...]:
        """All re-measuring launches of a study, in the order of launches."""
        with self._db.atomic():
            parsed = self._parsed_of(study_id)
            which = "study_id = ? and rowid > ? order by rowid"
            rows = self._tuples(
                f"select rowid, repeat from repeats where {which}", study_id, parsed.last_repeat
            )
        if rows:
            repeats = (*parsed.repeats, *(from_json(Repeat, text) for _, text in rows))
            # Sorting is stable: launches of one place stay in the order of their rows.
            parsed.repeats = tuple(sorted(repeats, key=lambda r: (r.series, r.round, r.position)))
            parsed.last_repeat, _ = rows[-1]
        self._forget_many(parsed)
        return parsed.repeats

    def computed_metrics(
        self, study_id: str, ordinal: int | None = None
    ) -> Mapping[int, tuple[ComputedMetric, ...]]:
        """What was computed afterwards of each trial, or of one: every version of every metric."""
        found: dict[int, list[ComputedMetric]] = defaultdict(list)
        which, values = _of_trials(study_id, ordinal)
        select = f"select * from computed_metrics where {which} order by ordinal, name, version"
        for row in self._rows(select, *values):
            found[int(row["ordinal"] or 0)].append(from_fields(ComputedMetric, row))
        return {ordinal: tuple(metrics) for ordinal, metrics in found.items()}

    def metric_values(
        self, study_id: str, ordinal: int | None = None, *, names: Iterable[str] | None = None
    ) -> Mapping[int, tuple[MetricValue, ...]]:
        """The newest values of metrics, measured or computed, by trial and then by name.

        All those of each trial that has any, or of one trial, or only those of these `names`.
        """
        which, arguments = _of_trials(study_id, ordinal)
        if names is not None:
            which += " and name in (select value from json_each(?))"
            arguments.append(json.dumps([*names]))
        found: dict[int, list[MetricValue]] = defaultdict(list)
        select = "select ordinal, name, value, unit, better, version from newest_metrics"
        where = f"where {which} and value is not null order by ordinal, name"
        for number, name, value, unit, better, version in self._tuples(
            f"{select} {where}", *arguments
        ):
            metric = MetricValue(name=name, value=value, unit=unit, better=better, version=version)
            found[number].append(metric)
        return {number: tuple(metrics) for number, metrics in found.items()}

    def metric_definitions(self) -> tuple[tuple[str, int, str], ...]:
        """Name, version and digest of all definitions, not our own, that computed metrics."""
        select = "select distinct name, version, definition from computed_metrics"
        return tuple(self._tuples(f"{select} where definition is not null order by name, version"))

    def stamp(self, study_id: str) -> tuple[int, int]:
        """What changes with every change of a study's records: entries and bytes of its journal."""
        _, entry_count, byte_count = self._stamp("where study_id = ?", study_id)
        return entry_count, byte_count

    def stamp_of_all(self) -> tuple[int, int, int]:
        """What changes with every change of any study: how many, their entries and bytes."""
        return self._stamp("")

    def file_bytes(self, study_id: str) -> int:
        """How much the kept files of a study's trials take, before they are packed."""
        return self._number("select sum(size_bytes) from artifacts where study_id = ?", study_id)

    def ordinals(self, study_id: str, limit: int, offset: int) -> tuple[int, ...]:
        """Ordinals of some of the finished trials, in their order."""
        select = "select ordinal from trials where study_id = ? order by ordinal limit ? offset ?"
        return self._firsts(select, study_id, limit, offset)

    def sampled_ordinals(
        self, study_id: str, most: int, *, limited: bool = True
    ) -> tuple[int, ...]:
        """Ordinals of about `most` trials that keep the shape of all, oldest first.

        Of every run of trials that share a mark the best, the worst and a failure stay, so that the
        curve of the best so far keeps its shape; and the first and the last of all. `limited` is
        whether the study has limits that trials may break.
        """
        ends = "select min(ordinal), max(ordinal) from trials where study_id = ?"
        ((first, last),) = self._tuples(ends, study_id)
        if first is None:
            return ()
        width = -(-(last + 1) * PICKS // most)
        found = {first, last}
        for select in (*_OF_RUNS, *([_LIMITED] if limited else [])):
            found.update(self._firsts(f"{select} group by ordinal / ?", study_id, width))
        return tuple(sorted(found))

    def outlines(
        self, study_id: str, ordinals: Iterable[int] | None = None
    ) -> tuple[TrialOutline, ...]:
        """Finished trials of a study in outline, oldest first: these, or all."""
        which, arguments = "study_id = ?", [study_id]
        if ordinals is not None:
            which += " and ordinal in (select value from json_each(?))"
            arguments.append(json.dumps([*ordinals]))
        rows = self._rows(
            "select ordinal, author, config, score_value as value, score_cost as cost,"
            " coalesce(score_unit, '') as unit, coalesce(score_broken, '[]') != '[]' as is_limited,"
            f" failure_kind as failure, started_at from trials where {which} order by ordinal",
            *arguments,
        )
        return tuple(
            from_fields(TrialOutline, {**row, "config": to_config(row["config"])}) for row in rows
        )

    def scores(self, study_id: str) -> Mapping[int, TrialScore]:
        """The score of every measured trial, by its ordinal."""
        found = self._tuples(
            "select ordinal, score_value, coalesce(score_broken, '[]') = '[]' from trials"
            " where study_id = ? and score_cost is not null order by ordinal",
            study_id,
        )
        return {ordinal: TrialScore(value, bool(leads)) for ordinal, value, leads in found}

    def ranks(
        self, study_id: str, ordinals: Iterable[int], costs: Mapping[int, float]
    ) -> Mapping[int, int]:
        """The place of each of these trials among all that may lead, 0 for the best.

        `costs` are those of repeated trials. Equals are in the order of their trials.
        """
        cost, arguments = score_cost(costs)
        select = (
            "select ordinal, place from (select t.ordinal, row_number() over"
            f" (order by {cost}, t.ordinal) - 1 as place from trials t where t.study_id = ?"
            f" and {ADMISSIBLE}) where ordinal in (select value from json_each(?))"
        )
        return dict(self._tuples(select, *arguments, study_id, json.dumps([*ordinals])))

    def exchange(self, digest: str) -> LlmExchange:
        """A stored LLM exchange."""
        text = self.artifacts.read(digest)
        return from_json(LlmExchange, text.decode("utf-8", "surrogatepass"))

    def machine(self, digest: str) -> Machine | None:
        """The machine of a launch; None where its description is not kept here."""
        if self.artifacts.size(digest) is None:
            return None
        text = self.artifacts.read(digest, MACHINE_BYTES).decode("utf-8", "replace")
        try:
            return from_json(Machine, text)
        except CodecError as error:
            raise StoreError(f"artifact {digest} describes no machine: {error}") from error

    def model_uses(self, study_id: str) -> tuple[ModelUse, ...]:
        """What each model was asked in a study, and what it used; in alphabetical order."""
        # SQLite takes a bare column from the row of the maximum: the last turn's.
        rows = self._rows(
            "select model, count(*) as turn_count, sum(result = ?) as policy_count,"
            " sum(request_count) as request_count, sum(input_tokens) as input_tokens,"
            " sum(output_tokens) as output_tokens, sum(cache_read_tokens) as cache_read_tokens,"
            " sum(cache_write_tokens) as cache_write_tokens, result as last_result, max(ordinal)"
            " from exchanges where study_id = ? group by model order by model",
            SUBMITTED,
            study_id,
        )
        return tuple(from_fields(ModelUse, {**row, "usage": row}) for row in rows)

    def turn_usages(self, study_id: str) -> tuple[TokenUsage, ...]:
        """What each turn of a model used in a study, oldest first."""
        return self._read(
            TokenUsage, "select * from exchanges where study_id = ? order by ordinal", study_id
        )

    def last_submission(self, study_id: str) -> tuple[int, str] | None:
        """The last trial that a model proposed, and the digest of that conversation."""
        found = self._tuples(
            "select ordinal, digest from exchanges where study_id = ? and result = ?"
            " order by ordinal desc limit 1",
            study_id,
            SUBMITTED,
        )
        return next(((int(ordinal), str(digest)) for ordinal, digest in found), None)

    def _stamp(self, where: str, *arguments: str) -> tuple[int, int, int]:
        sums = "count(*), coalesce(sum(entry_count), 0), coalesce(sum(byte_count), 0)"
        ((count, entries, bytes_),) = self._tuples(
            f"select {sums} from journals {where}", *arguments
        )
        return count, entries, bytes_

    def _first(self, condition: str, study_id: str, *arguments: str | int) -> Trial | None:
        select = f"{_TRIALS} where t.study_id = ? and {condition} limit 1"
        return next(iter(self._records(Trial, select, study_id, *arguments)), None)

    def _records(self, kind: type[T], sql: str, *arguments: str | int) -> tuple[T, ...]:
        """Values of `kind` from the JSON in the first column of every row."""
        return tuple(from_json(kind, text) for text in self._firsts(sql, *arguments))

    def _parsed_of(self, study_id: str) -> ParseCache:
        if (self._parsed.study_id, self._parsed.inode) != (study_id, self._db.inode):
            self._parsed = ParseCache(study_id=study_id, inode=self._db.inode)
        return self._parsed

    def _forget_many(self, parsed: ParseCache) -> None:
        """Keep at most `most_parsed`: in a service every thread would keep a study."""
        count = len(parsed.history) + len(parsed.repeats)
        if self._most_parsed is not None and count > self._most_parsed:
            self._parsed = ParseCache()

    def _read(self, kind: type[T], sql: str, *arguments: str | int) -> tuple[T, ...]:
        return tuple(from_fields(kind, row) for row in self._rows(sql, *arguments))

    def _studies(self, sql: str, *arguments: str | int) -> tuple[StudyRow, ...]:
        return tuple(map(to_study_row, self._rows(sql, *arguments)))

    def _firsts(self, sql: str, *arguments: str | int) -> tuple[Any, ...]:
        """The first column of every row."""
        return tuple(first for first, *_ in self._tuples(sql, *arguments))

    def _number(self, sql: str, *arguments: str | int) -> int:
        """The one number that a statement selects, 0 for null."""
        (number,) = self._firsts(sql, *arguments)
        return number or 0

    def _rows(self, sql: str, *arguments: str | int) -> list[Row]:
        with store_errors(self.root, "read"):
            return list(self._db.query(sql, arguments))

    def _tuples(self, sql: str, *arguments: str | int) -> list[Any]:
        with store_errors(self.root, "read"):
            return self._db.execute(sql, arguments).fetchall()


def _of_trials(study_id: str, ordinal: int | None) -> tuple[str, list[str | int]]:
    """A condition on the trials of a study, or on one, and its arguments."""
    if ordinal is None:
        return "study_id = ?", [study_id]
    return "study_id = ? and ordinal = ?", [study_id, ordinal]
