"""The only writer of records: append entries to a journal and apply them to the database.

A change is committed when its line is in the journal of its study, on disk. One process writes at a
time; if it is killed before the database has the change, the next process applies it.
"""

import json
import logging
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, assert_never

import msgspec

from records.codec import to_json
from records.errors import StoreError, WriterBusy
from records.store.database import Database, rebuild_command
from records.store.journal import (
    FOLDER,
    SUFFIX,
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
    append_line,
    journal_path,
    journal_size,
    journal_sizes,
    read_journal,
    to_line,
    truncate_journal,
    unfinished_journals,
    write_whole,
)
from records.store.locks import hold_writer
from records.store.rows import PendingTrial, Row
from records.trial import Failed, Measured, Repeat, Trial


class _FinishedText(msgspec.Struct):
    """The JSON of a finished trial, which the table holds as the journal does."""

    trial: msgspec.Raw


def apply_entry(db: Database, study_id: str, entry: Entry, text: str) -> None:
    """Apply an entry, whose JSON is `text`, to the tables, in a transaction of the caller."""
    match entry:
        case StudyCreated():
            _create(db, study_id, entry)
        case StudyChanged():
            study = None if entry.study is None else to_json(entry.study)
            _change(db, study_id, status=entry.status, summary=entry.summary, study=study)
        case RunBegan():
            _change(db, study_id, status="running")
            _insert(db, "runs", {"study_id": study_id, "run": to_json(entry.run)})
        case TrialBegun():
            _begin(db, study_id, entry)
        case TrialFinished():
            _finish(db, study_id, entry.trial, text)
        case RepeatsFinished():
            _repeat(db, study_id, entry.repeats)
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
    _insert(db, "studies", row)


def _change(db: Database, study_id: str, **changes: str | None) -> None:
    for column, value in changes.items():
        if value is not None:
            db.execute(f"update studies set {column} = ? where id = ?", [value, study_id])


def _count(db: Database, study_id: str, **counts: int) -> None:
    changes = ", ".join(f"{column} = {column} + ?" for column in counts)
    db.execute(f"update studies set {changes} where id = ?", [*counts.values(), study_id])


def _begin(db: Database, study_id: str, entry: TrialBegun) -> None:
    place: Row = {"study_id": study_id, "ordinal": entry.ordinal}
    if entry.exchange_summary is not None:
        columns = asdict(entry.exchange_summary)
        _insert(db, "exchanges", {**place, **columns.pop("usage"), **columns})
    pending = PendingTrial(
        ordinal=entry.ordinal,
        policy=entry.policy,
        started_at=entry.started_at,
        exchange=entry.exchange,
    )
    _insert(db, "pending_trials", {**place, "pending": to_json(pending)})


def _finish(db: Database, study_id: str, trial: Trial, text: str) -> None:
    place: Row = {"study_id": study_id, "ordinal": trial.ordinal}
    whole = bytes(msgspec.json.decode(text, type=_FinishedText).trial).decode()
    _insert(db, "trials", {**place, **_trial_columns(trial), "trial": whole})
    for metric in trial.outcome.metrics if isinstance(trial.outcome, Measured) else ():
        values = {"value": metric.value, "unit": metric.unit, "version": metric.version}
        _insert(db, "metrics", {**place, "name": metric.name, **values})
    for artifact in trial.outcome.artifacts:
        _insert(db, "artifacts", {**place, **asdict(artifact)})
    db.execute("delete from pending_trials where study_id = ? and ordinal = ?", [*place.values()])
    _count(
        db,
        study_id,
        trial_count=1,
        measured_count=trial.score is not None,
        launch_count=trial.attempts if trial.reached_launch else 0,
    )


def _trial_columns(trial: Trial) -> dict[str, object]:
    """What SQL filters, sorts or shows of a trial."""
    score = trial.score
    failure = trial.outcome if isinstance(trial.outcome, Failed) else None
    return {
        "status": trial.outcome.status,
        "score_value": score.value if score else None,
        "score_unit": score.unit if score else None,
        "score_cost": score.cost if score else None,
        "score_broken": json.dumps(score.broken) if score else None,
        "failure_kind": failure.kind.value if failure else None,
        "failure_stage": failure.stage.value if failure else None,
        "message": failure.message if failure else None,
        "config": json.dumps(dict(trial.config.values)) if trial.config else None,
        "policy_digest": trial.policy.digest,
        "author": trial.policy.author,
        "rationale": trial.policy.rationale,
        "attempts": trial.attempts,
        "started_at": trial.started_at,
        "ended_at": trial.ended_at,
    }


def _repeat(db: Database, study_id: str, repeats: Sequence[Repeat]) -> None:
    for repeat in repeats:
        place = {"series": repeat.series, "round": repeat.round, "ordinal": repeat.ordinal}
        _insert(db, "repeats", {"study_id": study_id, **place, "repeat": to_json(repeat)})
    _count(db, study_id, repeat_count=len(repeats), launch_count=len(repeats))


def _compute(db: Database, study_id: str, entry: MetricsComputed) -> None:
    for ordinal, metrics in entry.metrics.items():
        for metric in metrics:
            row = {"study_id": study_id, "ordinal": ordinal, **asdict(metric)}
            _insert(db, "computed_metrics", row, "replace")


def _remove_files(db: Database, study_id: str, entry: FilesRemoved) -> None:
    removal = {"study_id": study_id, "removed_at": entry.removed_at, "rule": entry.rule}
    for digest in entry.digests:
        _insert(db, "removed_files", {**removal, "digest": digest}, "replace")


def _insert(
    db: Database,
    table: str,
    row: Mapping[str, object],
    verb: Literal["insert", "replace"] = "insert",
) -> None:
    """Insert one row; equal columns give equal SQL, which SQLite has prepared already."""
    places = ", ".join("?" * len(row))
    db.execute(f"{verb} into {table} ({', '.join(row)}) values ({places})", list(row.values()))


REPORT_EVERY_S = 5.0
_SHOWN_IDS = 3

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Progress:
    """Log how much of the journals is read, every few seconds."""

    root: Path
    total_bytes: int
    read_bytes: int = 0
    next_s: float = field(default_factory=lambda: time.monotonic() + REPORT_EVERY_S)

    def add(self, byte_count: int) -> None:
        """Count bytes that were read."""
        self.read_bytes += byte_count
        if time.monotonic() > self.next_s:
            self.next_s += REPORT_EVERY_S
            share = self.read_bytes / max(1, self.total_bytes)
            _log.warning("reading the journals of %s: %.0f %%", self.root, 100 * share)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLines:
    """Lines of a journal that were applied, up to `end`, and which were not and why."""

    end: JournalPosition
    entry_count: int
    unread: tuple[str, ...]


class StoreWriter:
    """Write studies to journals, and bring the database up to date with them.

    A call that raises has recorded nothing, unless only the database could not follow the journal;
    then the next call or opening applies what it lacks. Raises `WriterBusy` when another process
    keeps writing for `wait_s`.
    """

    def __init__(self, root: Path, db: Database, wait_s: float) -> None:
        self._root = root
        self._db = db
        self._wait_s = wait_s

    def write(self, study_id: str, entry: Entry) -> None:
        """Record a change of a study."""
        path = journal_path(self._root, study_id)
        with hold_writer(self._root, self._wait_s):
            start = self._catch_up(study_id)
            if not start.entry_count and not isinstance(entry, StudyCreated):
                raise StoreError(f"no study {study_id!r} in {self._root}; see `cclsearch list`")
            text = to_json(entry)
            line = to_line(entry.kind, start.entry_count + 1, text)
            end = JournalPosition(start.entry_count + 1, start.byte_count + len(line))
            with self._db.atomic():
                apply_entry(self._db, study_id, entry, text)  # first: it may be refused
                self._save_position(study_id, end)
                append_line(path, line)

    def add(self, study_id: str, entries: Iterable[Entry]) -> None:
        """Record a complete new study, all or nothing, with one entry in memory at a time."""
        path = journal_path(self._root, study_id)
        with hold_writer(self._root, self._wait_s):
            if self._catch_up(study_id).entry_count:
                raise StoreError(f"study {study_id} is already in {self._root}")
            with self._db.atomic():
                self._save_position(study_id, write_whole(path, self._applied(study_id, entries)))

    def _applied(self, study_id: str, entries: Iterable[Entry]) -> Iterator[bytes]:
        """Apply the entries of a new study one by one, and yield their lines."""
        for number, entry in enumerate(entries, 1):
            if (number == 1) != isinstance(entry, StudyCreated):
                raise StoreError(f"entry {number} of study {study_id} is {entry.kind}")
            text = to_json(entry)
            apply_entry(self._db, study_id, entry, text)
            yield to_line(entry.kind, number, text)

    def catch_up(self, study_id: str) -> None:
        """Apply what the journal of a study has and the database lacks."""
        path = journal_path(self._root, study_id)
        if journal_size(path) != self._position(study_id).byte_count:
            with hold_writer(self._root, self._wait_s):
                self._catch_up(study_id)

    def recover(self) -> None:
        """Apply what the journals have and the database lacks, the newest study first.

        Skipped while another process writes, which has done it. A study that cannot be brought up
        to date is logged and left unchanged; the others are usable.
        """
        positions = self._positions()  # first: journals are ahead of the database, never behind
        sizes = journal_sizes(self._root)
        if lost := [s for s, p in positions.items() if sizes.get(s, 0) < p.byte_count]:
            _log.warning("%s", self._lost_words(lost))
        start = JournalPosition()
        behind = {s: n for s, n in sizes.items() if n > positions.get(s, start).byte_count}
        if not (behind or unfinished_journals(self._root)) and self._db.is_complete:
            return
        try:
            with hold_writer(self._root, wait_s=0):
                self._recover(behind)
        except WriterBusy:
            if new := behind.keys() - positions.keys():
                _log.warning(
                    "%s: another process is reading the journals; studies that cannot be shown "
                    "yet: %d",
                    self._root,
                    len(new),
                )

    def _recover(self, behind: Mapping[str, int]) -> None:
        for path in unfinished_journals(self._root):
            path.unlink(missing_ok=True)
        progress = Progress(self._root, sum(behind.values()))
        for study_id in sorted(behind, reverse=True):  # ids begin with the time of creation
            try:
                self._catch_up(study_id, progress)
            except StoreError as error:
                _log.warning("%s", error)
        self._db.mark_complete()

    def _catch_up(self, study_id: str, progress: Progress | None = None) -> JournalPosition:
        """Apply the lines that the database lacks; cut off a last line written in part."""
        path, start = journal_path(self._root, study_id), self._position(study_id)
        size_bytes = journal_size(path)
        if size_bytes < start.byte_count:
            raise StoreError(self._lost_words([study_id]))
        if size_bytes == start.byte_count:
            return start
        found = self.read(study_id, progress or Progress(self._root, size_bytes))
        if found.unread:
            raise StoreError(
                f"{path}, {found.unread[0]}; restore the file, or drop the line: "
                f"`{rebuild_command(self._root)}`"
            )
        return found.end

    def read(self, study_id: str, progress: Progress, *, skip_damaged: bool = False) -> ReadLines:
        """Apply the lines that the database lacks, in one transaction; the caller is the writer.

        A line that cannot be used ends it, unless `skip_damaged`. A last line that was written in
        part is cut off.
        """
        path, unread, entry_count = journal_path(self._root, study_id), list[str](), 0
        start = end = self._position(study_id)
        with self._db.atomic():
            for line in read_journal(path, start):
                match line:
                    case DamagedLine(is_torn=True):
                        truncate_journal(path, line.start_byte)
                        break
                    case DamagedLine():
                        unread.append(f"line {line.line}: {line.why}")
                    case JournalLine() if why := self._refusal(study_id, line, end):
                        unread.append(f"line {line.end.entry_count}: {why}")
                    case JournalLine():
                        progress.add(line.end.byte_count - end.byte_count)
                        end, entry_count = line.end, entry_count + 1
                if unread and not skip_damaged:
                    break
            if end != start:
                self._save_position(study_id, end)
        return ReadLines(end=end, entry_count=entry_count, unread=tuple(unread))

    def _refusal(self, study_id: str, line: JournalLine, after: JournalPosition) -> str | None:
        """Apply a line, or return why it cannot be used."""
        if not after.entry_count and not isinstance(line.entry, StudyCreated):
            return "the line that creates the study is lost"
        try:
            with self._db.atomic():
                apply_entry(self._db, study_id, line.entry, line.text)
        except (sqlite3.IntegrityError, OverflowError) as error:
            return str(error)
        return None

    def _position(self, study_id: str) -> JournalPosition:
        return self._positions("where study_id = ?", study_id).get(study_id, JournalPosition())

    def _positions(self, which: str = "", *values: str) -> dict[str, JournalPosition]:
        """Up to where the journal of each study is in the database."""
        rows = self._db.execute(
            f"select study_id, entry_count, byte_count from journals {which}", values
        )
        return {study_id: JournalPosition(*counts) for study_id, *counts in rows}

    def _save_position(self, study_id: str, end: JournalPosition) -> None:
        self._db.execute(
            "insert or replace into journals (study_id, entry_count, byte_count) values (?, ?, ?)",
            [study_id, end.entry_count, end.byte_count],
        )

    def _lost_words(self, lost: Sequence[str]) -> str:
        """What is wrong with studies of which the database has more than their journals."""
        names = ", ".join(f"{study_id}{SUFFIX}" for study_id in lost[:_SHOWN_IDS])
        more = f" and {len(lost) - _SHOWN_IDS} more" if len(lost) > _SHOWN_IDS else ""
        return (
            f"{self._root / FOLDER} lacks {names}{more}, or their last lines: what the database "
            "has of these studies can be read, not changed; restore the files, or drop what they "
            f"lack: `{rebuild_command(self._root)}`"
        )
