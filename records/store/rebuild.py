"""Build the database of a store again from its journals, without the lines that are damaged.

Opening a store does the same where the database is missing or unusable, except that a damaged line
ends what is read of its study.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from records.errors import StoreError
from records.store.database import (
    DATABASE_NAME,
    listed_studies,
    open_database,
    set_aside,
    store_errors,
)
from records.store.journal import journal_sizes
from records.store.locks import WAIT_S, hold_opening, hold_study, hold_writer
from records.store.writer import Progress, StoreWriter


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
        studies = []
        for study in _studies(root, sizes):
            studies.append(study)
            report(study)
    return RebuiltDatabase(
        studies=tuple(studies), kept=kept, without_journal=tuple(sorted(listed - sizes.keys()))
    )


def _studies(root: Path, sizes: dict[str, int]) -> Iterator[RebuiltStudy]:
    progress = Progress(root, sum(sizes.values()))
    with closing(open_database(root)) as db:
        writer = StoreWriter(root, db, WAIT_S)
        for study_id in sorted(sizes):
            found = writer.read(study_id, progress, skip_damaged=True)
            counted = db.execute("select trial_count from studies where id = ?", [study_id])
            trials = sum(count for (count,) in counted)
            yield RebuiltStudy(
                study_id=study_id, entries=found.entry_count, trials=trials, unread=found.unread
            )
        db.mark_complete()
