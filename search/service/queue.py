"""The queue on disk: submitted studies, idempotency keys and webhook deliveries."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from records.codec import from_fields, utc_now
from records.errors import StoreError
from records.store.locks import hold_opening

BUSY_S = 30
Cell = str | int | float | None


class State(StrEnum):
    """The state of a submitted study."""

    PENDING = "pending"
    """Being recorded, for a request that is not answered yet."""
    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    FINISHED = "finished"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Whether the search has ended."""
        return self in OVER


OVER = (State.CANCELLED, State.FINISHED, State.FAILED)
UNDER_WAY = (State.QUEUED, State.RUNNING, State.CANCELLING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A submitted study.

    `crashes` counts how often its process was lost since its last new launch; `launches_before` is
    the number of launches at the last loss. `message` says why it failed.
    """

    study_id: str
    environment: str
    devices: str
    parallel_studies: int
    submitted_by: str
    state: State = State.PENDING
    submitted_at: str = field(default_factory=utc_now)
    queued_at: str = field(default_factory=utc_now)
    crashes: int = 0
    launches_before: int = 0
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A message to one webhook; `due_s` is the time since the epoch of the next attempt."""

    id: str
    study_id: str
    url: str
    body: str
    attempts: int = 0
    due_s: float = 0.0
    error: str | None = None


class RunTable:
    """The table of submitted studies; one connection, for one thread."""

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
                    self._create()
            except BaseException:
                self._db.close()
                raise

    def _create(self) -> None:
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if version not in {0, VERSION}:
            raise StoreError(
                f"{self._path} is of another version of cclsearch; use that version, or move the "
                "file away: the queue is lost then, but no study"
            )
        if version == 0:
            self._db.executescript(SCHEMA)

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def add(self, submitted: Submitted, key: tuple[str, str, str] | None = None) -> None:
        """Record a study; `key` is the caller, idempotency key and request digest."""
        with self._refusals(), self._all_or_nothing():
            self._insert("submitted", {**asdict(submitted), "notified": 0})
            if key is not None:
                names = ("caller", "key", "request_digest", "study_id")
                values = (*key, submitted.study_id)
                self._insert("idempotency_keys", dict(zip(names, values, strict=True)))

    def forget(self, study_id: str) -> None:
        """Drop a study that was not recorded, so that it can be submitted again."""
        with self._refusals(), self._all_or_nothing():
            for table in ("idempotency_keys", "submitted"):
                self._db.execute(f"delete from {table} where study_id = ?", [study_id])

    def submitted_with(self, caller: str, key: str) -> tuple[str, str] | None:
        """Return the digest of the request with this idempotency key, and its study."""
        rows = self._rows(
            "select * from idempotency_keys where caller = ? and key = ?", caller, key
        )
        return next(((str(r["request_digest"]), str(r["study_id"])) for r in rows), None)

    def change_from(self, study_id: str, before: State, after: State, **changes: Cell) -> bool:
        """Change a row if it is still in the state `before`; return whether it was."""
        columns: dict[str, Cell] = {"state": after.value, **changes}
        if after.is_over and before is not State.PENDING:
            columns["notified"] = 0
        assignments = ", ".join(f"{name} = ?" for name in columns)
        sql = f"update submitted set {assignments} where study_id = ? and state = ? returning 1"
        return bool(self._rows(sql, *columns.values(), study_id, before.value))

    def find(self, study_id: str) -> Submitted | None:
        """Return the row of a study; None where it was not submitted here."""
        return next(iter(self._submitted("study_id = ?", study_id)), None)

    def states(self) -> dict[str, State]:
        """Return the state of every submitted study."""
        rows = self._rows("select study_id, state from submitted")
        return {str(row["study_id"]): State(str(row["state"])) for row in rows}

    def under_way(self) -> tuple[Submitted, ...]:
        """Return the queued and running studies, oldest first."""
        return self._submitted("state in (?, ?, ?)", *UNDER_WAY)

    def pending(self) -> tuple[Submitted, ...]:
        """Return submissions whose study was not recorded completely."""
        return self._submitted("state = ?", State.PENDING)

    def unnotified(self) -> tuple[Submitted, ...]:
        """Return the studies that ended and whose webhook messages are not queued yet."""
        return self._submitted("notified = 0 and state in (?, ?, ?)", *OVER)

    def _submitted(self, condition: str, *arguments: str) -> tuple[Submitted, ...]:
        sql = f"select * from submitted where {condition} order by queued_at, rowid"
        return tuple(from_fields(Submitted, dict(row)) for row in self._rows(sql, *arguments))

    def enqueue(self, study_id: str, deliveries: Sequence[Delivery]) -> None:
        """Queue the webhook messages about the end of a study."""
        with self._refusals(), self._all_or_nothing():
            self._db.execute("update submitted set notified = 1 where study_id = ?", [study_id])
            for one in deliveries:
                self._insert("deliveries", asdict(one))

    def deliveries(self) -> tuple[Delivery, ...]:
        """Return the messages to deliver, the next first."""
        rows = self._rows("select * from deliveries order by due_s, rowid")
        return tuple(Delivery(**dict(row)) for row in rows)

    def put_off(self, delivery: Delivery, due_s: float, error: str) -> None:
        """Schedule the next attempt of a delivery."""
        sql = "update deliveries set attempts = attempts + 1, due_s = ?, error = ? where id = ?"
        self._rows(sql, due_s, error, delivery.id)

    def drop(self, delivery: Delivery) -> None:
        """Delete a delivery."""
        self._rows("delete from deliveries where id = ?", delivery.id)

    def _insert(self, table: str, row: dict[str, Cell]) -> None:
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        self._db.execute(f"insert into {table} ({names}) values ({marks})", [*row.values()])

    def _rows(self, sql: str, *arguments: Cell) -> list[sqlite3.Row]:
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
                "away: the queue is lost then, but no study"
            ) from error


VERSION = 1
SCHEMA = f"""
begin immediate;
create table if not exists submitted (
    study_id text primary key, environment text not null, devices text not null,
    parallel_studies integer not null, state text not null, submitted_by text not null,
    submitted_at text not null, queued_at text not null, crashes integer not null,
    launches_before integer not null, message text, notified integer not null);
create index if not exists submitted_by_state on submitted (state, queued_at);
create table if not exists idempotency_keys (
    caller text not null, key text not null, request_digest text not null,
    study_id text not null, primary key (caller, key));
create table if not exists deliveries (
    id text primary key, study_id text not null, url text not null, body text not null,
    attempts integer not null, due_s real not null, error text);
PRAGMA user_version={VERSION};
commit;
"""
