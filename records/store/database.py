"""Open the SQLite database of a store, and report its errors as one sentence."""

import logging
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from records.errors import StoreError
from records.store.connection import Database
from records.store.journal import DATABASE, journal_sizes
from records.store.locks import NETWORK_FILE_SYSTEMS, file_system, hold_opening
from records.store.schema import prepare

DATABASE_NAME = DATABASE
BUSY_S = 30

_log = logging.getLogger(__name__)


def open_database(root: Path) -> Database:
    """Open the database of a store, which is created where it is missing."""
    db = Database(sqlite3.connect(root / DATABASE_NAME, timeout=BUSY_S))
    try:
        with hold_opening(root):
            _choose_journal_mode(db, root)
            db.execute("PRAGMA synchronous=FULL")
            prepare(db.connection)
    except BaseException:
        db.close()
        raise
    return db


def _choose_journal_mode(db: Database, root: Path) -> None:
    """Let readers and the writer work in parallel, where the file system allows it."""
    kind = file_system(root)
    wanted = "delete" if kind in NETWORK_FILE_SYSTEMS else "wal"
    (mode,) = db.execute(f"PRAGMA journal_mode={wanted}").fetchone()
    if mode != "wal":
        _log.warning(
            "%s is on %s, where SQLite keeps no write-ahead log: readers wait while a trial is "
            "written",
            root,
            kind,
        )


@contextmanager
def store_errors(root: Path, verb: str) -> Iterator[None]:
    """Raise errors of SQLite and the file system as `StoreError`."""
    try:
        yield
    except (sqlite3.Error, OSError, OverflowError, UnicodeEncodeError) as error:
        raise StoreError(f"cannot {verb} the store {root}: {error}; {_remedy(root, error)}") from (
            error
        )


def _remedy(root: Path, error: Exception) -> str:
    code = getattr(error, "sqlite_errorcode", None)
    damaged = code is not None and code & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
    if damaged and journal_sizes(root):
        return f"rebuild it with `cclsearch doctor --rebuild --store {shlex.quote(str(root))}`"
    return "free or unlock it, or give another with --store"
