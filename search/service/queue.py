"""The queue on disk: what was submitted by whom, how far it is, and who is still to be told."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from records.codec import utc_now
from records.errors import StoreError
from records.store.locks import hold_opening

BUSY_S = 30
Cell = str | int | float | None


class State(StrEnum):
    """How far a submitted study is."""

    ENTERING = "entering"
    """Being recorded, for a request that is not answered yet."""
    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    FINISHED = "finished"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens by itself."""
        return self in OVER


OVER = (State.CANCELLED, State.FINISHED, State.FAILED)
UNDER_WAY = (State.QUEUED, State.RUNNING, State.CANCELLING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A study in the queue, or out of it.

    `crashes` counts how often its process was lost since it last got anywhere, which is told by
    `launches_before`. `message` says why it failed.
    """

    study_id: str
    environment: str
    devices: str
    at_once: int
    state: State
    submitted_by: str
    submitted_at: str
    queued_at: str
    crashes: int = 0
    launches_before: int = 0
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What is to be told to one address; `due_s` is the time since the epoch of the next try."""

    id: str
    study_id: str
    url: str
    body: str
    attempts: int = 0
    due_s: float = 0.0
    error: str | None = None


class RunTable:
    """Rows of submitted studies; one connection, for one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._refusals():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
            try:
                self._db.row_factory = sqlite3.Row
                with hold_opening(path.parent):
                    self._db.execute("PRAGMA journal_mode=WAL")
                    self._db.execute("PRAGMA synchronous=FULL")
                    self._upgrade()
            except BaseException:
                self._db.close()
                raise

    def _upgrade(self) -> None:
        if self._version() == len(MIGRATIONS):
            return
        with self._all_or_nothing():
            version = self._version()
            if version > len(MIGRATIONS):
                raise StoreError(f"{self._path} is of a newer cclsearch; use that version")
            for migrate in MIGRATIONS[version:]:
                migrate(self._db)
            self._db.execute(f"PRAGMA user_version={len(MIGRATIONS)}")

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def add(self, submitted: Submitted, key: tuple[str, str, str] | None = None) -> None:
        """Record a study; `key` is whose idempotency key, the key, and for what."""
        with self._refusals(), self._all_or_nothing():
            self._insert("submitted", {**_row(submitted), "told": 0})
            if key is not None:
                names = ("caller", "key", "request_digest")
                row = dict(zip(names, key, strict=True))
                self._insert("idempotency_keys", {**row, "study_id": submitted.study_id})

    def forget(self, study_id: str) -> None:
        """Drop a study that never came on record, so that it can be asked for again."""
        with self._refusals(), self._all_or_nothing():
            self._db.execute("delete from idempotency_keys where study_id = ?", [study_id])
            self._db.execute("delete from submitted where study_id = ?", [study_id])

    def submitted_with(self, caller: str, key: str) -> tuple[str, str] | None:
        """The digest of the request that had this idempotency key, and the study it made."""
        rows = self._rows(
            "select * from idempotency_keys where caller = ? and key = ?", caller, key
        )
        return next(((str(r["request_digest"]), str(r["study_id"])) for r in rows), None)

    def change_from(self, study_id: str, before: State, after: State, **changes: Cell) -> bool:
        """Change a row if it is still in the state `before`; whether it was."""
        columns: dict[str, Cell] = {"state": after.value, **changes}
        if after.is_over and before is not State.ENTERING:
            columns["told"] = 0
        assignments = ", ".join(f"{name} = ?" for name in columns)
        with self._refusals():
            done = self._db.execute(
                f"update submitted set {assignments} where study_id = ? and state = ?",
                [*columns.values(), study_id, before.value],
            )
        return done.rowcount == 1

    def find(self, study_id: str) -> Submitted | None:
        """The row of a study; None where it was not submitted here."""
        rows = self._rows("select * from submitted where study_id = ?", study_id)
        return next(map(_submitted, rows), None)

    def states(self) -> dict[str, State]:
        """How far every study is that was submitted here."""
        rows = self._rows("select study_id, state from submitted")
        return {str(row["study_id"]): State(str(row["state"])) for row in rows}

    def under_way(self) -> tuple[Submitted, ...]:
        """What is queued or has a process, oldest first."""
        return self._in(UNDER_WAY)

    def entering(self) -> tuple[Submitted, ...]:
        """What was being recorded."""
        return self._in((State.ENTERING,))

    def _in(self, states: Sequence[State]) -> tuple[Submitted, ...]:
        marks = ", ".join("?" * len(states))
        rows = self._rows(
            f"select * from submitted where state in ({marks}) order by queued_at, rowid", *states
        )
        return tuple(map(_submitted, rows))

    def untold(self) -> tuple[Submitted, ...]:
        """What ended, with nothing laid out yet to tell it to those who want to know."""
        rows = self._rows(
            "select * from submitted where told = 0 and state in (?, ?, ?) order by queued_at",
            *OVER,
        )
        return tuple(map(_submitted, rows))

    def lay_out(self, study_id: str, deliveries: Sequence[Delivery]) -> None:
        """Record whom the end of a study is to be told to."""
        with self._refusals(), self._all_or_nothing():
            self._db.execute("update submitted set told = 1 where study_id = ?", [study_id])
            for one in deliveries:
                self._insert("deliveries", {name: getattr(one, name) for name in DELIVERY})

    def deliveries(self) -> tuple[Delivery, ...]:
        """What is still to be told, the next first."""
        rows = self._rows("select * from deliveries order by due_s, rowid")
        return tuple(map(_delivery, rows))

    def put_off(self, delivery: Delivery, due_s: float, error: str) -> None:
        """Have a delivery tried again, not before an instant."""
        with self._refusals():
            self._db.execute(
                "update deliveries set attempts = attempts + 1, due_s = ?, error = ? where id = ?",
                [due_s, error, delivery.id],
            )

    def drop(self, delivery: Delivery) -> None:
        """Be done with a delivery."""
        with self._refusals():
            self._db.execute("delete from deliveries where id = ?", [delivery.id])

    def _insert(self, table: str, row: dict[str, Cell]) -> None:
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        self._db.execute(f"insert into {table} ({names}) values ({marks})", [*row.values()])

    def _rows(self, sql: str, *arguments: str) -> list[sqlite3.Row]:
        with self._refusals():
            return self._db.execute(sql, arguments).fetchall()

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        self._db.execute("begin immediate")
        try:
            yield
        except BaseException:
            self._db.execute("rollback")
            raise
        self._db.execute("commit")

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, ValueError) as error:
            raise StoreError(
                f"cannot use the queue {self._path}: {error}; free or unlock it, or move the file "
                "away: then nothing is queued, and every study stays on record"
            ) from error


def entering(
    study_id: str, environment: str, devices: str, at_once: int, submitted_by: str
) -> Submitted:
    """A study as it is recorded first."""
    instant = utc_now()
    return Submitted(
        study_id=study_id,
        environment=environment,
        devices=devices,
        at_once=at_once,
        state=State.ENTERING,
        submitted_by=submitted_by,
        submitted_at=instant,
        queued_at=instant,
    )


def _create(db: sqlite3.Connection) -> None:
    """First schema: what was submitted, by which keys, and deliveries under way."""
    db.execute(
        "create table submitted (study_id text primary key, environment text not null,"
        " devices text not null, at_once integer not null, state text not null,"
        " submitted_by text not null, submitted_at text not null, queued_at text not null,"
        " crashes integer not null, launches_before integer not null, message text,"
        " told integer not null)"
    )
    db.execute("create index submitted_by_state on submitted (state, queued_at)")
    db.execute(
        "create table idempotency_keys (caller text not null, key text not null,"
        " request_digest text not null, study_id text not null, primary key (caller, key))"
    )
    db.execute(
        "create table deliveries (id text primary key, study_id text not null, url text not null,"
        " body text not null, attempts integer not null, due_s real not null, error text)"
    )


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (_create,)
"""Append-only: one that has shipped is never edited."""
SUBMITTED = tuple(Submitted.__dataclass_fields__)
DELIVERY = tuple(Delivery.__dataclass_fields__)


def _row(submitted: Submitted) -> dict[str, Cell]:
    return {name: getattr(submitted, name) for name in SUBMITTED}


def _submitted(row: sqlite3.Row) -> Submitted:
    facts = {name: row[name] for name in SUBMITTED}
    return Submitted(**{**facts, "state": State(str(row["state"]))})


def _delivery(row: sqlite3.Row) -> Delivery:
    return Delivery(**{name: row[name] for name in DELIVERY})
