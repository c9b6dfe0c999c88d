"""The SQLite database of a store, an index of its journals.

One that is damaged or of another version is set aside, and opening the store builds it again.
"""

import logging
import shlex
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from records.errors import StoreError
from records.store.journal import DATABASE, fsync_path, journal_sizes
from records.store.locks import NETWORK_FILE_SYSTEMS, file_system, hold_opening
from records.store.schema import SCHEMA_VERSION, create_tables

DATABASE_NAME = DATABASE
BUSY_S = 30
_BUILD_CACHE_KIB = 256 << 10
_PARTS = ("-wal", "-shm", "-journal", "")
"""Files of one database by the ends of their names, the database itself last."""

_log = logging.getLogger(__name__)


class Database:
    """A database whose rows come by name; outside of `atomic` each statement is a transaction.

    Where another process builds the database again, this one reads the old file until the new one
    is complete.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._connect()

    def _connect(self) -> None:
        self.inode = _inode(self._path)
        self.connection = sqlite3.connect(self._path, timeout=BUSY_S)
        self.connection.isolation_level = None  # else Python opens transactions implicitly

    def execute(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run one statement; its rows are tuples."""
        if not self.connection.in_transaction and _inode(self._path) not in {None, self.inode}:
            self._follow()
        return self.connection.execute(sql, values)

    def _follow(self) -> None:
        """Use the database that replaced this one, if it is complete."""
        new = Database(self._path)
        if new.is_complete:  # the old connection ends with the last of its rows
            self.connection, self.inode = new.connection, new.inode
            self.relax()
        else:
            new.close()

    def relax(self) -> None:
        """Do not wait for the disk at each commit: what a crash takes is in the journals."""
        self.connection.execute("PRAGMA synchronous=NORMAL")

    def expect_many(self) -> None:
        """Keep more pages in memory from now on: those of indexes are else written many times."""
        self.connection.execute(f"PRAGMA cache_size=-{_BUILD_CACHE_KIB}")

    def query(self, sql: str, values: Sequence[object] = ()) -> Iterator[dict[str, Any]]:
        """Run one statement; its rows are read lazily."""
        rows = self.execute(sql, values)
        names = [column[0] for column in rows.description]
        return (dict(zip(names, row, strict=True)) for row in rows)

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Commit everything written within, or nothing; nested blocks are savepoints."""
        begin, keep, drop = (
            ("savepoint inner_part", "release inner_part", "rollback to inner_part")
            if self.connection.in_transaction
            else ("begin", "commit", "rollback")
        )
        self.execute(begin)
        try:
            yield
            self.execute(keep)
        except BaseException:  # whatever ends it, an interrupt too, is raised again
            if self.connection.in_transaction:
                self.execute(drop)
            raise

    @property
    def version(self) -> int:
        """Its schema: 0 of a new one, negative while the journals are read for the first time."""
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        return int(version)

    @property
    def is_complete(self) -> bool:
        """Whether every journal was read at least once."""
        return self.version == SCHEMA_VERSION

    def mark_complete(self) -> None:
        """Record that every journal was read."""
        self.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


def _inode(path: str | Path) -> int | None:
    try:
        return Path(path).stat().st_ino if path else None
    except FileNotFoundError:
        return None


def open_database(root: Path) -> Database:
    """Open the database of a store; one that cannot be used is set aside for an empty one."""
    path = root / DATABASE_NAME
    with hold_opening(root):
        path.touch(0o600)
        if not path.stat().st_size:
            for part in _PARTS[:-1]:  # of one that was deleted
                path.with_name(path.name + part).unlink(missing_ok=True)
        db = Database(path)
        try:
            fault = _fault(db)
            if fault is not None:
                db.close()
                _replace(root, fault)
                db = Database(path)
            _choose_journal_mode(db, root)
            db.relax()
            if not db.version:
                create_tables(db.connection)
            if not db.is_complete:
                db.expect_many()
        except BaseException:
            db.close()
            raise
    return db


def _fault(db: Database) -> str | None:
    """Why a database cannot be used; None where it can, or is empty."""
    try:
        version = db.version
        is_empty = db.execute("select 1 from sqlite_master").fetchone() is None
        if abs(version) == SCHEMA_VERSION:
            db.execute("select total(byte_count) from journals")
    except sqlite3.DatabaseError as error:
        if not _is_damage(error):
            raise
        return f"is damaged ({error})"
    if abs(version) == SCHEMA_VERSION or (is_empty and not version):
        return None
    return f"is of another version of cclsearch (its schema is {version}, not {SCHEMA_VERSION})"


def _replace(root: Path, fault: str) -> None:
    """Set an unusable database aside, in words; raises `StoreError` where nothing replaces it."""
    path, journals = root / DATABASE_NAME, journal_sizes(root)
    if not journals:
        raise StoreError(
            f"cannot open the store {root}: {DATABASE_NAME} {fault}, and there are no journals to "
            "build it from; restore it, or give another with --store"
        )
    alone = ", ".join(sorted(listed_studies(root) - journals.keys()))
    also = f" (only it has {alone}: their journals are missing)" if alone else ""
    kept = set_aside(root)
    _log.warning("%s %s; it is built again from the journals; old: %s%s", path, fault, kept, also)


def listed_studies(root: Path) -> set[str]:
    """Studies in the database, as far as it can be read."""
    path = root / DATABASE_NAME
    if not path.is_file():
        return set()
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_S)) as db:
            return {str(study_id) for (study_id,) in db.execute("select id from studies")}
    except sqlite3.Error:
        return set()


def set_aside(root: Path) -> Path | None:
    """Rename the database; return its new path, None if there was none."""
    current, kept = root / DATABASE_NAME, root / f"{DATABASE_NAME}.old"
    number = 2
    while any(kept.with_name(kept.name + part).exists() for part in _PARTS):
        kept, number = root / f"{DATABASE_NAME}.old{number}", number + 1
    existed = current.exists()
    for part in _PARTS:
        with suppress(FileNotFoundError):
            current.with_name(DATABASE_NAME + part).replace(kept.with_name(kept.name + part))
    fsync_path(root)
    return kept if existed else None


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
        remedy = "free or unlock it, or give another with --store"
        if isinstance(error, sqlite3.Error) and _is_damage(error) and journal_sizes(root):
            remedy = f"rebuild it with `{rebuild_command(root)}`"
        raise StoreError(f"cannot {verb} the store {root}: {error}; {remedy}") from error


def rebuild_command(root: Path) -> str:
    """The command that builds the database again and drops lines that cannot be read."""
    return f"cclsearch doctor --rebuild --store {shlex.quote(str(root))}"


def _is_damage(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
