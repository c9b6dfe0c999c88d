"""What can be asked of a store: studies, trials and what belongs to them, read from its rows.

Trials and repeated launches never change, so that each is parsed once. Nothing here writes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from records.artifacts import Artifacts
from records.codec import from_json
from records.computed import ComputedMetric
from records.connection import Database
from records.database import refusals
from records.errors import CodecError, StoreError, StudyError
from records.exchange import SUBMITTED, Exchange, ModelUse, Usage
from records.history import History
from records.machine import Machine
from records.metric_rows import computed_metrics, metric_definitions, metric_values
from records.outlines import OutlinedRecords
from records.policy_outlines import PolicyRecords
from records.rows import (
    Counts,
    Intent,
    Row,
    Run,
    StudyRow,
    to_counts,
    to_intent,
    to_model_use,
    to_policy,
    to_repeat,
    to_run,
    to_study,
    to_trial,
    to_usage,
)
from records.study import MEASURE
from records.study_pages import ListedStudies
from records.trial import FailureKind, MetricValue, Policy, Repeat, Trial
from records.trial_pages import TrialQuery
from records.views import ADMISSIBLE

SHOWN_IDS = 5
MACHINE_BYTES = 16 << 20
"""More than any description takes, with every package that is installed."""
_TRIALS = (
    "select t.rowid, t.*, p.source from trials t join policies p on p.digest = t.policy_digest"
)


@dataclass(slots=True, kw_only=True)
class Parsed:
    """What was parsed of the study that was read last, and up to which rows."""

    study_id: str = ""
    history: History = field(default_factory=History)
    last_trial: int = 0
    repeats: tuple[Repeat, ...] = ()
    last_repeat: int = 0


class StoredRecords(ListedStudies, OutlinedRecords, PolicyRecords):
    """The read side of a store; every question may raise `StoreError`."""

    root: Path
    artifacts: Artifacts
    _db: Database
    _parsed: Parsed
    _most_parsed: int | None

    def studies(self, limit: int | None = None, offset: int = 0) -> tuple[StudyRow, ...]:
        """All studies, newest first, or a page of them."""
        rows = self._rows(
            "select * from studies order by created_at desc, id desc limit ? offset ?",
            -1 if limit is None else limit,
            offset,
        )
        return tuple(to_study(row) for row in rows)

    def study_count(self) -> int:
        """How many studies there are."""
        (row,) = self._rows("select count(*) as found from studies")
        return int(row["found"] or 0)

    def find(self, prefix: str) -> StudyRow:
        """The one study whose id starts with `prefix`, or the newest search for an empty one.

        What was imported is someone else's until it is named, so it is never the newest.
        """
        if not prefix:
            rows = self._rows(
                "select * from studies where strategy != ? and json_extract(study, '$.origin')"
                " is null order by created_at desc, id desc limit 1",
                MEASURE,
            )
            found = tuple(to_study(row) for row in rows)
            if not found and self.study_count():
                raise StudyError(
                    f"every study in {self.root} was imported or measured for a replay; give the "
                    "id of the one you mean, from `cclsearch list`"
                )
        else:
            rows = self._rows(
                "select * from studies where id >= ? and substr(id, 1, ?) = ? order by id limit ?",
                prefix,
                len(prefix),
                prefix,
                SHOWN_IDS + 1,
            )
            found = tuple(to_study(row) for row in rows)
        if not found:
            raise StudyError(f"no study {prefix!r} in {self.root}; see `cclsearch list`")
        # The whole id sorts before every longer one.
        if len(found) > 1 and found[0].id != prefix:
            ids = ", ".join(row.id for row in found[:SHOWN_IDS])
            raise StudyError(f"{prefix!r} fits several studies: {ids}; give more of the id")
        return found[0]

    def counts(self, study_id: str) -> Counts:
        """How much is on record of a study, at once however much it is."""
        rows = self._rows("select * from studies where id = ?", study_id)
        return to_counts(rows[0]) if rows else Counts()

    def runs(self, study_id: str) -> tuple[Run, ...]:
        """Every run of a study's search, oldest first; none where it is not known."""
        rows = self._rows("select * from runs where study_id = ? order by rowid", study_id)
        return tuple(to_run(row) for row in rows)

    def pending(self, study_id: str) -> tuple[Intent, ...]:
        """The trials that were begun and never finished, oldest first."""
        rows = self._rows(
            "select i.*, p.source from intents i join policies p on p.digest = i.policy_digest"
            " where study_id = ? order by ordinal",
            study_id,
        )
        return tuple(to_intent(row) for row in rows)

    def history(self, study_id: str) -> History:
        """All finished trials of a study, oldest first."""
        parsed = self._parsed_of(study_id)
        rows = self._rows(
            f"{_TRIALS} where t.study_id = ? and t.rowid > ?", study_id, parsed.last_trial
        )
        if rows:
            trials = (*parsed.history.trials, *(to_trial(row) for row in rows))
            parsed.history = History(tuple(sorted(trials, key=lambda trial: trial.ordinal)))
            parsed.last_trial = _last(rows)
        self._forget_many(parsed)
        return parsed.history

    def trial(self, study_id: str, ordinal: int) -> Trial | None:
        """One finished trial, or None."""
        rows = self._rows(f"{_TRIALS} where t.study_id = ? and t.ordinal = ?", study_id, ordinal)
        return to_trial(rows[0]) if rows else None

    def trial_page(self, study_id: str, query: TrialQuery) -> tuple[tuple[Trial, ...], int]:
        """Some of the finished trials of a study, and how many there are of that kind."""
        where, values = query.where(study_id)
        order, sorted_by = query.order()
        if query.is_whole:
            total = self.counts(study_id).trials
        else:
            (found,) = self._rows(f"select count(*) as found from trials t where {where}", *values)
            total = int(found["found"] or 0)
        # Sorted without what trials hold, which is read of this page alone.
        chosen = self._rows(
            f"select t.ordinal from trials t where {where} order by {order} limit ? offset ?",
            *values,
            *sorted_by,
            query.limit,
            query.offset,
        )
        ordinals = [int(row["ordinal"] or 0) for row in chosen]
        rows = self._rows(
            f"{_TRIALS} where t.study_id = ? and t.ordinal in (select value from json_each(?))",
            study_id,
            json.dumps(ordinals),
        )
        trials = {trial.ordinal: trial for trial in map(to_trial, rows)}
        return tuple(trials[ordinal] for ordinal in ordinals), total

    def policies(self, study_id: str) -> tuple[tuple[int, Policy], ...]:
        """The policy of each finished trial, by its ordinal."""
        rows = self._rows(
            "select t.ordinal, t.policy_digest, t.author, t.parent, t.rationale,"
            " t.predicted_speedup, t.predicted_over, p.source"
            " from trials t join policies p on p.digest = t.policy_digest"
            " where t.study_id = ? order by t.ordinal",
            study_id,
        )
        return tuple((int(row["ordinal"] or 0), to_policy(row)) for row in rows)

    def best(self, study_id: str) -> Trial | None:
        """The trial with the lowest cost of those that break no limit, the earliest of equals."""
        rows = self._rows(
            f"{_TRIALS} where t.study_id = ? and {ADMISSIBLE} order by score_cost, ordinal limit 1",
            study_id,
        )
        return to_trial(rows[0]) if rows else None

    def first_measured(self, study_id: str) -> Trial | None:
        """The earliest trial with a score, which objectives name as the seed."""
        rows = self._rows(
            f"{_TRIALS} where t.study_id = ? and t.score_cost is not null"
            " order by t.ordinal limit 1",
            study_id,
        )
        return to_trial(rows[0]) if rows else None

    def leading(self, study_id: str, count: int) -> tuple[int, ...]:
        """The best so many trials of those that break no limit, the best first."""
        rows = self._rows(
            f"select ordinal from trials where study_id = ? and {ADMISSIBLE}"
            " order by score_cost, ordinal limit ?",
            study_id,
            count,
        )
        return tuple(int(row["ordinal"] or 0) for row in rows)

    def latest(self, study_id: str, count: int) -> tuple[Trial, ...]:
        """The last so many trials of a study, oldest first."""
        rows = self._rows(
            f"{_TRIALS} where t.study_id = ? order by t.ordinal desc limit ?", study_id, count
        )
        return tuple(to_trial(row) for row in reversed(rows))

    def failures(self, study_id: str) -> dict[FailureKind, int]:
        """How many trials failed by each kind of failure, the most frequent first."""
        rows = self._rows(
            "select failure_kind, count(*) as found from trials where study_id = ?"
            " and failure_kind is not null group by failure_kind order by found desc, failure_kind",
            study_id,
        )
        return {FailureKind(str(row["failure_kind"])): int(row["found"] or 0) for row in rows}

    def repeats(self, study_id: str) -> tuple[Repeat, ...]:
        """All re-measuring launches of a study, in the order of launches."""
        parsed = self._parsed_of(study_id)
        rows = self._rows(
            "select rowid, * from confirmations where study_id = ? and rowid > ? order by rowid",
            study_id,
            parsed.last_repeat,
        )
        if rows:
            repeats = (*parsed.repeats, *(to_repeat(row) for row in rows))
            # Sorting is stable: launches of one place stay in the order of their rows.
            parsed.repeats = tuple(sorted(repeats, key=lambda r: (r.series, r.round, r.position)))
            parsed.last_repeat = _last(rows)
        self._forget_many(parsed)
        return parsed.repeats

    def computed_metrics(
        self, study_id: str, ordinal: int | None = None
    ) -> Mapping[int, tuple[ComputedMetric, ...]]:
        """What was computed afterwards of each trial, or of one: every version of every metric."""
        with refusals(self.root, "read"):
            return computed_metrics(self._db, study_id, ordinal)

    def metric_values(
        self, study_id: str, ordinal: int | None = None
    ) -> Mapping[int, tuple[MetricValue, ...]]:
        """The newest version of each metric of each trial, or of one, measured or computed."""
        with refusals(self.root, "read"):
            return metric_values(self._db, study_id, ordinal)

    def metric_definitions(self) -> tuple[tuple[str, int, str], ...]:
        """Name, version and digest of all definitions, not our own, that computed metrics."""
        with refusals(self.root, "read"):
            return metric_definitions(self._db)

    def exchange(self, digest: str) -> Exchange:
        """A stored LLM exchange."""
        text = self.artifacts.read(digest)
        return from_json(Exchange, text.decode("utf-8", "surrogatepass"))

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
        return tuple(to_model_use(row) for row in rows)

    def turn_usages(self, study_id: str) -> tuple[Usage, ...]:
        """What each turn of a model used in a study, oldest first."""
        rows = self._rows(
            "select input_tokens, output_tokens, cache_read_tokens, cache_write_tokens"
            " from exchanges where study_id = ? order by ordinal",
            study_id,
        )
        return tuple(to_usage(row) for row in rows)

    def _parsed_of(self, study_id: str) -> Parsed:
        if self._parsed.study_id != study_id:
            self._parsed = Parsed(study_id=study_id)
        return self._parsed

    def _forget_many(self, parsed: Parsed) -> None:
        """Keep no more than asked for: in a service every thread would keep a study."""
        count = len(parsed.history) + len(parsed.repeats)
        if self._most_parsed is not None and count > self._most_parsed:
            self._parsed = Parsed()

    def _rows(self, sql: str, *arguments: str | int) -> list[Row]:
        with refusals(self.root, "read"):
            return list(self._db.query(sql, arguments))


def _last(rows: list[Row]) -> int:
    return max(int(row["rowid"] or 0) for row in rows)
