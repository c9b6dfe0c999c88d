"""The only writer of records: append entries to a journal and apply them to the tables.

A change counts when it is in the journal of its study, on disk, and then in the database. One
process writes at a time; if it is killed between the two steps, the next process completes them.
"""

import logging
import shlex
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Literal, assert_never

from records.codec import from_fields, to_json
from records.errors import CclsearchError, CodecError, StoreBusy, StoreError
from records.llm_exchange import ExchangeSummary
from records.store.connection import Database
from records.store.journal import (
    DamagedLine,
    Entry,
    FilesRemoved,
    JournalLine,
    JournalPosition,
    MetricsComputed,
    RepeatsFinished,
    RunBegan,
    StudyChanged,
    StudyCreated,
    TrialBegun,
    TrialFinished,
    append_lines,
    journal_path,
    journal_size,
    journal_sizes,
    read_journal,
    to_lines,
    truncate_journal,
    unfinished_journals,
    write_whole,
)
from records.store.locks import hold_writer
from records.store.rows import (
    Row,
    computed_metrics,
    exchange_columns,
    policy_columns,
    to_pending_trial,
    to_repeat,
    to_run,
    to_study_row,
    to_trial,
    trial_columns,
)
from records.trial import Measured, Policy


def apply_entry(db: Database, study_id: str, entry: Entry) -> None:
    """Apply an entry to the tables; the caller holds the writer lock and a transaction."""
    match entry:
        case StudyCreated():
            _create(db, study_id, entry)
        case StudyChanged():
            study = None if entry.study is None else to_json(entry.study)
            _change(db, study_id, status=entry.status, summary=entry.summary, study=study)
        case RunBegan():
            _begin_run(db, study_id, entry)
        case TrialBegun():
            _begin(db, study_id, entry)
        case TrialFinished():
            _finish(db, study_id, entry)
        case RepeatsFinished():
            _repeat(db, study_id, entry)
        case FilesRemoved():
            _remove_files(db, study_id, entry)
        case MetricsComputed():
            _compute(db, study_id, entry)
        case _:
            assert_never(entry)


def _create(db: Database, study_id: str, entry: StudyCreated) -> None:
    study = entry.study
    row = {
        "id": study_id,
        "name": study.name,
        "objective": study.objective.expression,
        "strategy": study.strategy,
        "status": entry.status,
        "created_at": entry.created_at,
        "version": entry.version,
        "study": to_json(study),
    }
    insert(db, "studies", row)


def _change(db: Database, study_id: str, **changes: str | None) -> None:
    for column, value in changes.items():
        if value is not None:
            db.execute(f"update studies set {column} = ? where id = ?", [value, study_id])


def _begin_run(db: Database, study_id: str, entry: RunBegan) -> None:
    run = entry.run
    _change(db, study_id, status="running")
    counts = {"trials": run.trials, "repeats": run.repeats, "begun": run.begun}
    insert(db, "runs", {"study_id": study_id, **counts, "study": to_json(run.study)})


def _begin(db: Database, study_id: str, entry: TrialBegun) -> None:
    _keep_policy(db, entry.policy)
    place = {"study_id": study_id, "ordinal": entry.ordinal}
    if entry.exchange_summary is not None:
        insert(db, "exchanges", {**place, **exchange_columns(entry.exchange_summary)})
    row = {
        **place,
        "started_at": entry.started_at,
        "exchange_digest": entry.exchange,
        **policy_columns(entry.policy),
    }
    insert(db, "pending_trials", row)


def _finish(db: Database, study_id: str, entry: TrialFinished) -> None:
    trial = entry.trial
    _keep_policy(db, trial.policy)
    insert(db, "trials", {"study_id": study_id, **trial_columns(trial)})
    place = {"study_id": study_id, "ordinal": trial.ordinal}
    for metric in trial.outcome.metrics if isinstance(trial.outcome, Measured) else ():
        columns = asdict(metric)
        del columns["better"]  # the outcome has it
        insert(db, "metrics", {**place, **columns})
    for artifact in trial.outcome.artifacts:
        insert(db, "artifacts", {**place, **asdict(artifact)})
    db.execute(
        "delete from pending_trials where study_id = ? and ordinal = ?", list(place.values())
    )
    db.execute(
        "update studies set trial_count = trial_count + 1, measured_count = measured_count + ?,"
        " launch_count = launch_count + ? where id = ?",
        [trial.score is not None, trial.attempts if trial.reached_launch else 0, study_id],
    )


def _repeat(db: Database, study_id: str, entry: RepeatsFinished) -> None:
    for repeat in entry.repeats:
        row = {
            "study_id": study_id,
            "series": repeat.series,
            "round": repeat.round,
            "ordinal": repeat.ordinal,
            "purpose": repeat.purpose.value,
            "position": repeat.position,
            "outcome": to_json(repeat.outcome),
        }
        insert(db, "repeats", row)
    count = len(entry.repeats)
    db.execute(
        "update studies set repeat_count = repeat_count + ?, launch_count = launch_count + ?"
        " where id = ?",
        [count, count, study_id],
    )


def _compute(db: Database, study_id: str, entry: MetricsComputed) -> None:
    for ordinal, metrics in entry.metrics.items():
        for metric in metrics:
            row = {"study_id": study_id, "ordinal": ordinal, **asdict(metric)}
            insert(db, "computed_metrics", row, verb="replace")


def _remove_files(db: Database, study_id: str, entry: FilesRemoved) -> None:
    for digest in entry.digests:
        db.execute(
            "insert or replace into removed_files (study_id, digest, removed_at, rule)"
            " values (?, ?, ?, ?)",
            [study_id, digest, entry.removed_at, entry.rule],
        )


def _keep_policy(db: Database, policy: Policy) -> None:
    db.execute(
        "insert or ignore into policies (digest, source) values (?, ?)",
        [policy.digest, policy.source],
    )


def insert(
    db: Database,
    table: str,
    row: Mapping[str, object],
    verb: Literal["insert", "replace"] = "insert",
) -> None:
    """Insert one row; equal columns give equal SQL, which SQLite has prepared already."""
    places = ", ".join("?" * len(row))
    db.execute(f"{verb} into {table} ({', '.join(row)}) values ({places})", list(row.values()))


WITH_POLICY = "select t.*, p.source from {} t join policies p on p.digest = t.policy_digest"


def entries_of(db: Database, study_id: str) -> Iterator[Entry]:
    """Entries that would create a study's rows; raises `CodecError` for a damaged row."""
    (row,) = db.query("select * from studies where id = ?", [study_id])
    study = to_study_row(row)
    yield StudyCreated(study=study.study, version=str(row["version"]), created_at=study.created_at)
    summaries = {
        int(each["ordinal"]): each
        for each in db.query("select * from exchanges where study_id = ?", [study_id])
    }
    yield from chain.from_iterable(
        _trial_entries(each, summaries)
        for each in _rows(db, WITH_POLICY.format("trials"), study_id)
    )
    for each in _rows(db, "select * from repeats t", study_id):
        yield RepeatsFinished(repeats=(to_repeat(each),))
    computed = computed_metrics(db, study_id)
    if computed:
        yield MetricsComputed(metrics=computed)
    for each in _rows(db, "select * from runs t", study_id):
        yield RunBegan(run=to_run(each))
    for each in _rows(db, WITH_POLICY.format("pending_trials"), study_id):
        yield _begun(each, summaries.get(int(each["ordinal"] or 0)))
    for each in _rows(db, "select * from removed_files t", study_id):
        yield FilesRemoved(
            removed_at=str(each["removed_at"]),
            rule=str(each["rule"]),
            digests=(str(each["digest"]),),
        )
    yield StudyChanged(status=study.status, summary=study.summary)


def _trial_entries(row: Row, summaries: Mapping[int, Row]) -> Iterator[Entry]:
    trial = to_trial(row)
    if trial.ordinal in summaries:
        yield _begun(row, summaries[trial.ordinal])
    yield TrialFinished(trial=trial)


def _begun(row: Row, summary: Row | None) -> TrialBegun:
    pending = to_pending_trial(row)
    return TrialBegun(
        ordinal=pending.ordinal,
        policy=pending.policy,
        started_at=pending.started_at,
        exchange=pending.exchange,
        exchange_summary=(
            None if summary is None else from_fields(ExchangeSummary, {**summary, "usage": summary})
        ),
    )


def _rows(db: Database, select: str, study_id: str) -> Iterator[Row]:
    return db.query(f"{select} where t.study_id = ? order by t.rowid", [study_id])


BATCH_ENTRIES = 1000
"""Entries that are applied in one transaction."""

_log = logging.getLogger(__name__)


class StoreWriter:
    """Write studies to journals and tables; a call that raises has recorded nothing.

    Raises `WriterBusy` when another process keeps writing for `wait_s`.
    """

    def __init__(self, root: Path, db: Database, wait_s: float) -> None:
        self._root = root
        self._db = db
        self._wait_s = wait_s

    def write(self, study_id: str, *entries: Entry) -> None:
        """Record these changes of a study, all or none."""
        path = journal_path(self._root, study_id)
        with hold_writer(self._root, self._wait_s):
            self._catch_up(study_id)
            mark = self._mark(study_id) or JournalPosition()
            if not mark.entry_count and not isinstance(entries[0], StudyCreated):
                raise StoreError(f"no study {study_id!r} in {self._root}; see `cclsearch list`")
            lines = list(to_lines(entries, mark.entry_count))
            try:
                with self._db.atomic():
                    for entry in entries:
                        apply_entry(self._db, study_id, entry)
                    byte_count = mark.byte_count + sum(map(len, lines))
                    save_position(
                        self._db,
                        study_id,
                        JournalPosition(mark.entry_count + len(lines), byte_count),
                    )
                    append_lines(path, lines)
            except BaseException:
                self._roll_back(study_id)
                raise

    def add(self, study_id: str, entries: Iterable[Entry]) -> None:
        """Record a complete new study, all or nothing, with one entry in memory at a time."""
        path = journal_path(self._root, study_id)
        with hold_writer(self._root, self._wait_s):
            self._catch_up(study_id)
            if self._mark(study_id) is not None:
                raise StoreError(f"study {study_id} is already in {self._root}")
            try:
                with self._db.atomic():
                    applied = self._applied(study_id, entries)
                    save_position(self._db, study_id, write_whole(path, to_lines(applied, 0)))
            except BaseException:
                self._roll_back(study_id)
                raise

    def catch_up(self, study_id: str) -> None:
        """Complete the changes of a study that a killed process wrote only in part."""
        path = journal_path(self._root, study_id)
        if journal_size(path) != (self._mark(study_id) or JournalPosition()).byte_count:
            with hold_writer(self._root, self._wait_s):
                self._catch_up(study_id)

    def recover(self) -> None:
        """Complete what killed processes wrote only in part, and restore lost journals.

        Skipped while another process writes, which has done it. A study that cannot be recovered
        is logged and left unchanged; the others are usable.
        """
        differing = self._differing()
        if not differing and not unfinished_journals(self._root):
            return
        with suppress(StoreBusy), hold_writer(self._root, wait_s=0):
            for path in unfinished_journals(self._root):
                path.unlink(missing_ok=True)
            for study_id in differing:
                try:
                    self._catch_up(study_id)
                except CclsearchError as error:
                    _log.warning("%s", error)

    def _differing(self) -> list[str]:
        """Studies whose journal and database differ in size."""
        journals = journal_sizes(self._root)
        noted = {
            str(row["study_id"]): int(row["byte_count"])
            for row in self._db.query("select study_id, byte_count from journals")
        }
        return sorted(s for s in {*journals, *noted} if journals.get(s) != noted.get(s))

    def _catch_up(self, study_id: str) -> None:
        path = journal_path(self._root, study_id)
        mark = self._mark(study_id)
        if mark is not None and journal_size(path) < mark.byte_count:
            _log.warning("%s lacks entries that the database has; it is rewritten", path)
            with suppress(FileNotFoundError):
                path.replace(path.with_name(f"{path.name}.replaced"))
            self._write_journal(study_id, path)
        else:
            while journal_size(path) > (self._mark(study_id) or JournalPosition()).byte_count:
                self._advance(study_id, path)

    def _write_journal(self, study_id: str, path: Path) -> None:
        try:
            with self._db.atomic():
                entries = entries_of(self._db, study_id)
                save_position(self._db, study_id, write_whole(path, to_lines(entries, 0)))
        except CodecError as error:
            raise StoreError(
                f"study {study_id} has no journal and a damaged row, so nothing can be added to "
                f"it: {error}"
            ) from error

    def _advance(self, study_id: str, path: Path) -> None:
        """Apply the next lines that the database lacks; cut off a last line written in part."""
        start = mark = self._mark(study_id) or JournalPosition()
        damage: DamagedLine | None = None
        with self._db.atomic():
            for line in islice(read_journal(path, mark), BATCH_ENTRIES):
                if isinstance(line, DamagedLine):
                    damage = line
                    break
                self._apply_line(study_id, path, line)
                mark = line.end
            if mark != start:
                save_position(self._db, study_id, mark)
        if damage is None:
            return
        if not damage.is_torn or len(list(islice(read_journal(path, mark), 2))) > 1:
            raise StoreError(_broken(path, damage.line, damage.why, self._root))
        truncate_journal(path, mark)

    def _apply_line(self, study_id: str, path: Path, line: JournalLine) -> None:
        try:
            apply_entry(self._db, study_id, line.entry)
        except (sqlite3.IntegrityError, OverflowError) as error:
            number = line.end.entry_count
            raise StoreError(_broken(path, number, str(error), self._root)) from error

    def _applied(self, study_id: str, entries: Iterable[Entry]) -> Iterator[Entry]:
        for number, entry in enumerate(entries, 1):
            if (number == 1) != isinstance(entry, StudyCreated):
                raise StoreError(f"entry {number} of study {study_id} is {entry.kind}")
            apply_entry(self._db, study_id, entry)
            yield entry

    def _roll_back(self, study_id: str) -> None:
        """Truncate a journal to what the database has."""
        path = journal_path(self._root, study_id)
        with suppress(sqlite3.Error, OSError):  # the next writer retries
            truncate_journal(path, self._mark(study_id) or JournalPosition())

    def _mark(self, study_id: str) -> JournalPosition | None:
        rows = self._db.query(
            "select entry_count, byte_count from journals where study_id = ?", [study_id]
        )
        marks = [JournalPosition(int(row["entry_count"]), int(row["byte_count"])) for row in rows]
        return marks[0] if marks else None


def save_position(db: Database, study_id: str, mark: JournalPosition) -> None:
    """Record up to where the journal of a study is in the tables."""
    db.execute(
        "insert or replace into journals (study_id, entry_count, byte_count) values (?, ?, ?)",
        [study_id, mark.entry_count, mark.byte_count],
    )


def _broken(path: Path, line: int, why: str, root: Path) -> str:
    return (
        f"{path}, line {line}: {why}; restore the file, or drop the line: "
        f"`cclsearch doctor --rebuild --store {shlex.quote(str(root))}`"
    )
