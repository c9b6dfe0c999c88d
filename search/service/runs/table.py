"""The queue on disk: what was submitted by whom, and which process searches it."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sqlite_utils import Database

from records.errors import StoreError
from records.instants import now

SCHEMA_VERSION = 1


class State(StrEnum):
    """How far a submitted study is."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    FINISHED = "finished"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens by itself."""
        return self in {State.CANCELLED, State.FINISHED, State.FAILED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A study in the queue, or out of it.

    `pid` and `started_ticks` name its process, also after this one was started again; `crashes`
    counts how often that ended without saying why. `message` says why it failed.
    """

    study_id: str
    environment: str
    devices: str
    at_once: int
    state: State
    submitted_by: str
    submitted_at: str
    pid: int | None
    started_ticks: int | None
    crashes: int
    more_trials: int | None
    message: str | None
    told: bool


class RunTable:
    """Rows of submitted studies; one connection, for one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._refusals():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = Database(sqlite3.connect(path, timeout=30))
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._create()

    def _create(self) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise StoreError(f"{self._path} is of a newer cclsearch; use that version")
        self._db.table("submitted").create(
            {
                "study_id": str,
                "environment": str,
                "devices": str,
                "at_once": int,
                "state": str,
                "submitted_by": str,
                "submitted_at": str,
                "pid": int,
                "started_ticks": int,
                "crashes": int,
                "more_trials": int,
                "message": str,
                "told": int,
            },
            pk="study_id",
            if_not_exists=True,
        )
        self._db.table("idempotency_keys").create(
            {"caller": str, "key": str, "request_digest": str, "study_id": str},
            pk=("caller", "key"),
            if_not_exists=True,
        )
        self._db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def add(self, submitted: Submitted, key: tuple[str, str, str] | None = None) -> None:
        """Put a study into the queue; `key` is whose idempotency key, the key, and for what."""
        with self._refusals(), self._db.atomic():
            self._db.table("submitted").insert(_row(submitted))
            if key is not None:
                caller, name, digest = key
                self._db.table("idempotency_keys").insert(
                    {
                        "caller": caller,
                        "key": name,
                        "request_digest": digest,
                        "study_id": submitted.study_id,
                    }
                )

    def submitted_with(self, caller: str, key: str) -> tuple[str, str] | None:
        """The digest of the request that had this idempotency key, and the study it made."""
        rows = self._rows(
            "select * from idempotency_keys where caller = ? and key = ?", caller, key
        )
        return next(((str(r["request_digest"]), str(r["study_id"])) for r in rows), None)

    def change(self, study_id: str, **changes: str | int | None) -> None:
        """Change columns of one row."""
        with self._refusals(), self._db.atomic():
            self._db.table("submitted").update(study_id, changes)

    def change_from(
        self, study_id: str, before: State, after: State, **changes: str | int | None
    ) -> bool:
        """Change a row if it is still in the state `before`; whether it was."""
        columns = {"state": after.value, **changes}
        assignments = ", ".join(f"[{name}] = ?" for name in columns)
        with self._refusals(), self._db.atomic():
            done = self._db.execute(
                f"update submitted set {assignments} where study_id = ? and state = ?",
                [*columns.values(), study_id, before.value],
            )
        return done.rowcount == 1

    def find(self, study_id: str) -> Submitted | None:
        """The row of a study; None where it was not submitted here."""
        rows = self._rows("select * from submitted where study_id = ?", study_id)
        return next(map(_submitted, rows), None)

    def under_way(self) -> tuple[Submitted, ...]:
        """What is queued or has a process, oldest first."""
        rows = self._rows(
            "select * from submitted where state in (?, ?, ?) order by submitted_at, study_id",
            State.QUEUED,
            State.RUNNING,
            State.CANCELLING,
        )
        return tuple(map(_submitted, rows))

    def untold(self) -> tuple[Submitted, ...]:
        """What ended and was not told to those who want to know."""
        rows = self._rows(
            "select * from submitted where told = 0 and state in (?, ?, ?) order by submitted_at",
            State.CANCELLED,
            State.FINISHED,
            State.FAILED,
        )
        return tuple(map(_submitted, rows))

    def _rows(self, sql: str, *arguments: str) -> list[dict[str, str | int | None]]:
        with self._refusals():
            return list(self._db.query(sql, arguments))

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"cannot use the queue {self._path}: {error}") from error


def queued(
    study_id: str, environment: str, devices: str, at_once: int, submitted_by: str
) -> Submitted:
    """A study as it enters the queue."""
    return Submitted(
        study_id=study_id,
        environment=environment,
        devices=devices,
        at_once=at_once,
        state=State.QUEUED,
        submitted_by=submitted_by,
        submitted_at=now(),
        pid=None,
        started_ticks=None,
        crashes=0,
        more_trials=None,
        message=None,
        told=False,
    )


def _row(submitted: Submitted) -> dict[str, str | int | None]:
    return {
        "study_id": submitted.study_id,
        "environment": submitted.environment,
        "devices": submitted.devices,
        "at_once": submitted.at_once,
        "state": submitted.state.value,
        "submitted_by": submitted.submitted_by,
        "submitted_at": submitted.submitted_at,
        "pid": submitted.pid,
        "started_ticks": submitted.started_ticks,
        "crashes": submitted.crashes,
        "more_trials": submitted.more_trials,
        "message": submitted.message,
        "told": int(submitted.told),
    }


def _submitted(row: dict[str, str | int | None]) -> Submitted:
    return Submitted(
        study_id=str(row["study_id"]),
        environment=str(row["environment"]),
        devices=str(row["devices"]),
        at_once=int(row["at_once"] or 1),
        state=State(str(row["state"])),
        submitted_by=str(row["submitted_by"]),
        submitted_at=str(row["submitted_at"]),
        pid=_number(row["pid"]),
        started_ticks=_number(row["started_ticks"]),
        crashes=int(row["crashes"] or 0),
        more_trials=_number(row["more_trials"]),
        message=None if row["message"] is None else str(row["message"]),
        told=bool(row["told"]),
    )


def _number(value: str | int | None) -> int | None:
    return None if value is None else int(value)
