"""The only writer of records: append entries to journals and apply them to the database.

A change is committed when its line is in the journal of its study, on disk. One process writes at a
time; if it is killed before the database has the change, the next process applies it. Opening a
store builds a database that is missing or unusable again; `rebuild` does so too, and skips damaged
lines, where opening ends what is read of their study.
"""

import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from records.codec import to_json
from records.errors import CodecError, StoreError, WriterBusy
from records.store.database import (
    DATABASE_NAME,
    Database,
    listed_studies,
    open_database,
    rebuild_command,
    set_aside,
    store_errors,
)
from records.store.index import apply_entry
from records.store.journal import (
    FOLDER,
    SUFFIX,
    DamagedLine,
    Entry,
    JournalLine,
    JournalPosition,
    StudyCreated,
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
from records.store.locks import WAIT_S, hold_opening, hold_study, hold_writer

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
                apply_entry(self._db, study_id, entry.kind, text)  # first: it may be refused
                self._save_position(study_id, end)
                append_line(path, line)

    def add(self, study_id: str, entries: Iterable[Entry]) -> None:
        """Record a complete new study, all or nothing, with one entry in memory at a time."""
        path = journal_path(self._root, study_id)
        with hold_writer(self._root, self._wait_s):
            if self._catch_up(study_id).entry_count:
                raise StoreError(f"study {study_id} is already in {self._root}")
            self._db.expect_many()
            with self._db.atomic():
                self._save_position(study_id, write_whole(path, self._applied(study_id, entries)))

    def _applied(self, study_id: str, entries: Iterable[Entry]) -> Iterator[bytes]:
        """Apply the entries of a new study one by one, and yield their lines."""
        for number, entry in enumerate(entries, 1):
            if (number == 1) != isinstance(entry, StudyCreated):
                raise StoreError(f"entry {number} of study {study_id} is {entry.kind}")
            text = to_json(entry)
            apply_entry(self._db, study_id, entry.kind, text)
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
        end, _, unread = self.read(study_id, progress or Progress(self._root, size_bytes))
        if unread:
            raise StoreError(
                f"{path}, {unread[0]}; restore the file, or drop the line: "
                f"`{rebuild_command(self._root)}`"
            )
        return end

    def read(
        self, study_id: str, progress: Progress, *, skip_damaged: bool = False
    ) -> tuple[JournalPosition, int, tuple[str, ...]]:
        """Apply the lines that the database lacks, in one transaction; the caller is the writer.

        A line that cannot be used ends it, unless `skip_damaged`. A last line that was written in
        part is cut off. Return the end of what was read, its entries, and why lines were not used.
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
        return end, entry_count, tuple(unread)

    def _refusal(self, study_id: str, line: JournalLine, after: JournalPosition) -> str | None:
        """Apply a line, or return why it cannot be used."""
        if not after.entry_count and line.kind != StudyCreated.kind:
            return "the line that creates the study is lost"
        try:
            with self._db.atomic():
                apply_entry(self._db, study_id, line.kind, line.text)
        except (sqlite3.IntegrityError, OverflowError, CodecError) as error:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltStudy:
    """What was read from one journal; `unread` says which lines were not used, and why."""

    study_id: str
    entries: int
    trials: int
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltDatabase:
    """A rebuilt database; `kept` is the path of the old one, None if there was none.

    `without_journal` are studies that only the old database has.
    """

    studies: tuple[RebuiltStudy, ...]
    kept: Path | None
    without_journal: tuple[str, ...] = ()


def rebuild(root: Path, report: Callable[[RebuiltStudy], None]) -> RebuiltDatabase:
    """Replace the database with one built from the journals.

    `report` is called for every study as it is read. Raises `StoreBusy` while a study is running.
    """
    sizes = journal_sizes(root)
    if not sizes:
        raise StoreError(
            f"no journals in {root}; there is nothing to rebuild from. Restore them, or remove "
            f"{DATABASE_NAME} to begin again"
        )
    with store_errors(root, "rebuild"), hold_writer(root):
        for study_id in sizes:
            with hold_study(root, study_id):
                pass
        listed = listed_studies(root)
        with hold_opening(root):
            kept = set_aside(root)
        studies, progress = list[RebuiltStudy](), Progress(root, sum(sizes.values()))
        with closing(open_database(root)) as db:
            writer = StoreWriter(root, db, WAIT_S)
            for study_id in sorted(sizes):
                _, entries, unread = writer.read(study_id, progress, skip_damaged=True)
                counted = db.execute("select trial_count from studies where id = ?", [study_id])
                trials = sum(count for (count,) in counted)
                studies.append(
                    RebuiltStudy(study_id=study_id, entries=entries, trials=trials, unread=unread)
                )
                report(studies[-1])
            db.mark_complete()
    return RebuiltDatabase(
        studies=tuple(studies), kept=kept, without_journal=tuple(sorted(listed - sizes.keys()))
    )
