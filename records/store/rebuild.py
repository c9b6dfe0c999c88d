"""Rebuild the database of a store from its journals."""

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from records.errors import StoreError
from records.store.connection import Database
from records.store.database import DATABASE_NAME, store_errors
from records.store.journal import (
    DamagedLine,
    JournalLine,
    JournalPosition,
    StudyCreated,
    fsync_path,
    journal_path,
    journal_sizes,
    read_journal,
)
from records.store.locks import hold_opening, hold_study, hold_writer
from records.store.schema import prepare
from records.store.store import Store
from records.store.writer import BATCH_ENTRIES, apply_entry, save_position

_PARTS = ("-wal", "-shm", "-journal", "")
"""Files of one database by the ends of their names, the database itself last."""


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
    if (root / DATABASE_NAME).is_file():
        with suppress(StoreError), closing(Store(root)):
            pass  # opening it writes journals that are missing
    if not journal_sizes(root):
        raise StoreError(f"no journals in {root}; there is nothing to rebuild from")
    with store_errors(root, "rebuild"), hold_writer(root), hold_opening(root):
        journals = sorted(journal_sizes(root))
        for study_id in journals:
            with hold_study(root, study_id):
                pass
        listed = _listed(root)
        new = root / f"{DATABASE_NAME}.new"
        studies = _build(root, new, journals, report)
        kept = _swap(root, new)
    return RebuiltDatabase(
        studies=studies, kept=kept, without_journal=tuple(sorted(listed - set(journals)))
    )


def _listed(root: Path) -> set[str]:
    """Studies in the old database, as far as it can be read."""
    if not (root / DATABASE_NAME).is_file():
        return set()
    try:
        with closing(sqlite3.connect(root / DATABASE_NAME)) as old:
            return {str(study_id) for (study_id,) in old.execute("select id from studies")}
    except sqlite3.Error:
        return set()


def _build(
    root: Path, new: Path, journals: list[str], report: Callable[[RebuiltStudy], None]
) -> tuple[RebuiltStudy, ...]:
    for part in _PARTS:
        new.with_name(new.name + part).unlink(missing_ok=True)
    studies: list[RebuiltStudy] = []
    with closing(Database(sqlite3.connect(new))) as db:
        # It counts only when it is whole: until then no page has to be safe on disk.
        db.execute("PRAGMA journal_mode=MEMORY")
        db.execute("PRAGMA synchronous=OFF")
        prepare(db.connection)
        for study_id in journals:
            studies.append(_rebuilt_study(db, study_id, journal_path(root, study_id)))
            report(studies[-1])
    fsync_path(new)
    return tuple(studies)


def _rebuilt_study(db: Database, study_id: str, path: Path) -> RebuiltStudy:
    unread: list[str] = []
    entry_count, mark, lines = 0, JournalPosition(), read_journal(path, JournalPosition())
    while some := list(islice(lines, BATCH_ENTRIES)):
        with db.atomic():
            for line in some:
                why = _applied(db, study_id, line, is_first=not entry_count)
                if why is not None:
                    unread.append(why)
                    continue
                entry_count += 1
                mark = line.end if isinstance(line, JournalLine) else mark
            if entry_count:
                save_position(db, study_id, mark)
    counted = list(db.query("select trial_count from studies where id = ?", [study_id]))
    trials = sum(int(row["trial_count"]) for row in counted)
    return RebuiltStudy(study_id=study_id, entries=entry_count, trials=trials, unread=tuple(unread))


def _applied(
    db: Database, study_id: str, line: JournalLine | DamagedLine, *, is_first: bool
) -> str | None:
    """Apply a line, or return why it cannot be used."""
    if isinstance(line, DamagedLine):
        return f"line {line.line}: {line.why}"
    number = line.end.entry_count
    if is_first and not isinstance(line.entry, StudyCreated):
        return f"line {number}: the line that creates the study is lost"
    try:
        with db.atomic():
            apply_entry(db, study_id, line.entry)
    except (sqlite3.IntegrityError, OverflowError) as error:
        return f"line {number}: {error}"
    return None


def _swap(root: Path, new: Path) -> Path | None:
    """Set the old database aside and put the new one in its place.

    A kill in between leaves none, which the next opening builds from the journals.
    """
    current, kept = root / DATABASE_NAME, root / f"{DATABASE_NAME}.broken"
    number = 2
    while any(kept.with_name(kept.name + part).exists() for part in _PARTS):
        kept, number = root / f"{DATABASE_NAME}.broken{number}", number + 1
    existed = current.exists()
    for part in _PARTS:
        with suppress(FileNotFoundError):
            current.with_name(DATABASE_NAME + part).replace(kept.with_name(kept.name + part))
    new.replace(current)
    fsync_path(root)
    return kept if existed else None
