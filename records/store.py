"""The store: one SQLite database and one artifact folder; the only writer of records.

Intent is written before a launch and a result in one transaction after it, so that a kill at any
point loses no finished trial and leaves only those under way to repeat.
"""

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from sqlite_utils import Database

from records.artifacts import Artifacts
from records.codec import from_json, to_json
from records.errors import StoreBusy, StoreError, StudyError
from records.exchange import SUBMITTED, Exchange, ModelUse
from records.history import History
from records.rows import (
    Intent,
    Run,
    StudyRow,
    artifact_rows,
    exchange_columns,
    metric_rows,
    policy_columns,
    to_intent,
    to_model_use,
    to_outcome,
    to_run,
    to_study,
    to_trial,
    trial_columns,
)
from records.schema import upgrade
from records.study import Study
from records.trial import Policy, Purpose, Repeat, Trial


class Store:
    """Opens or creates the store in `root`; raises `StoreError` when it cannot be used."""

    def __init__(self, root: Path) -> None:
        self.root = root = root.absolute()
        self.artifacts = Artifacts(root / "artifacts")
        with _refusals(root, "open"):
            root.mkdir(parents=True, exist_ok=True)
            self._db = Database(sqlite3.connect(root / "cclsearch.db", timeout=30))
            try:
                self._prepare()
            except BaseException:
                self._db.close()
                raise

    def _prepare(self) -> None:
        # SQLite refuses, rather than waits, when two processes set up one database at once.
        opening = self._lock_file("opening")
        try:
            fcntl.flock(opening, fcntl.LOCK_EX)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            upgrade(self._db)
        finally:
            os.close(opening)

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def workdir(self, study_id: str) -> Path:
        """Folder for the launches under way of one study; emptied after each."""
        return self.root / "work" / study_id

    @contextmanager
    def lock(self, study_id: str) -> Iterator[None]:
        """Hold the study for this process; raises `StoreBusy` when another one does.

        The lock goes with the process, however it ends.
        """
        with _refusals(self.root, "lock"):
            handle = self._lock_file(study_id)
        try:
            with _refusals(self.root, "lock"):
                _claim(handle, study_id)
            yield
        finally:
            os.close(handle)

    def create(self, study_id: str, study: Study, version: str) -> None:
        """Record a new study."""
        with self._transaction():
            self._create(study_id, study, version, status="running", summary=None)

    def add_study(
        self,
        study_id: str,
        study: Study,
        version: str,
        trials: Sequence[Trial],
        repeats: Sequence[Repeat] = (),
        summary: str | None = None,
    ) -> None:
        """Record a study that ended elsewhere, with all its trials, in one transaction."""
        with self._transaction():
            self._create(study_id, study, version, status="finished", summary=summary)
            for trial in trials:
                self._finish(study_id, trial)
            self._repeat(study_id, repeats)

    def update(self, study_id: str, *, status: str, summary: str | None = None) -> None:
        """Record how far a study is, and its closing summary if it has one."""
        changes: dict[str, str] = {"status": status}
        if summary is not None:
            changes["summary"] = summary
        with self._transaction():
            self._db.table("studies").update(study_id, changes)

    def replace_study(self, study_id: str, study: Study) -> None:
        """Record a study whose budget was extended."""
        with self._transaction():
            self._db.table("studies").update(study_id, {"study": to_json(study)})

    def start_run(self, study_id: str, study: Study) -> None:
        """Record that the search begins, or goes on, and from where."""
        with self._transaction():
            self._db.table("studies").update(study_id, {"status": "running"})
            self._db.execute(
                "insert into runs (study_id, study, trials, repeats, begun) select ?1, ?2,"
                " (select count(*) from trials where study_id = ?1),"
                " (select count(*) from confirmations where study_id = ?1),"
                " (select count(*) from intents where study_id = ?1)",
                [study_id, to_json(study)],
            )

    def runs(self, study_id: str) -> tuple[Run, ...]:
        """Every run of a study's search, oldest first; none where it is not known."""
        rows = self._rows("select * from runs where study_id = ? order by rowid", study_id)
        return tuple(to_run(row) for row in rows)

    def studies(self) -> tuple[StudyRow, ...]:
        """All studies, newest first."""
        rows = self._rows("select * from studies order by created_at desc, id desc")
        return tuple(to_study(row) for row in rows)

    def find(self, prefix: str) -> StudyRow:
        """The one study whose id starts with `prefix`, or the newest for an empty one."""
        found = [row for row in self.studies() if row.id.startswith(prefix)]
        if not found:
            raise StudyError(f"no study {prefix!r} in {self.root}; see `cclsearch list`")
        exact = [row for row in found if row.id == prefix]
        if prefix and len(found) > 1 and not exact:
            ids = ", ".join(row.id for row in found[:5])
            raise StudyError(f"{prefix!r} fits several studies: {ids}; give more of the id")
        return (exact or found)[0]

    def begin(self, study_id: str, intent: Intent, exchange: Exchange | None) -> Intent:
        """Record that a trial begins, with what was paid for it; gives the intent as stored."""
        stored = intent
        if exchange is not None:
            kept = self.artifacts.keep_text(to_json(exchange), "exchange.json")
            stored = Intent(
                ordinal=intent.ordinal,
                policy=intent.policy,
                started_at=intent.started_at,
                exchange=kept.digest,
            )
        with self._transaction():
            self._keep_policy(intent.policy)
            if exchange is not None and stored.exchange is not None:
                self._db.table("exchanges").insert(
                    exchange_columns(study_id, intent.ordinal, stored.exchange, exchange)
                )
            self._db.table("intents").insert(
                {
                    "study_id": study_id,
                    "ordinal": stored.ordinal,
                    "started_at": stored.started_at,
                    "exchange_digest": stored.exchange,
                    **policy_columns(stored.policy),
                }
            )
        return stored

    def pending(self, study_id: str) -> tuple[Intent, ...]:
        """The trials that were begun and never finished, oldest first."""
        rows = self._rows(
            "select i.*, p.source from intents i join policies p on p.digest = i.policy_digest"
            " where study_id = ? order by ordinal",
            study_id,
        )
        return tuple(to_intent(row) for row in rows)

    def finish(self, study_id: str, trial: Trial) -> None:
        """Record a finished trial and all that belongs to it, in one transaction."""
        with self._transaction():
            self._finish(study_id, trial)

    def history(self, study_id: str) -> History:
        """All finished trials of a study, oldest first."""
        rows = self._rows(
            "select t.*, p.source from trials t join policies p on p.digest = t.policy_digest"
            " where study_id = ? order by ordinal",
            study_id,
        )
        return History(tuple(to_trial(row) for row in rows))

    def repeat(self, study_id: str, *repeats: Repeat) -> None:
        """Record re-measuring launches, those that ran together in one transaction."""
        with self._transaction():
            self._repeat(study_id, repeats)

    def repeats(self, study_id: str) -> tuple[Repeat, ...]:
        """All re-measuring launches of a study, in the order of launches."""
        rows = self._rows(
            "select * from confirmations where study_id = ?"
            " order by series, round, position, rowid",
            study_id,
        )
        return tuple(
            Repeat(
                series=int(row["series"] or 0),
                round=int(row["round"] or 0),
                ordinal=int(row["ordinal"] or 0),
                outcome=to_outcome(str(row["outcome"])),
                purpose=Purpose(str(row["purpose"])),
                position=int(row["position"] or 0),
            )
            for row in rows
        )

    def exchange(self, digest: str) -> Exchange:
        """A stored LLM exchange."""
        text = self.artifacts.read(digest)
        return from_json(Exchange, text.decode("utf-8", "surrogatepass"))

    def model_uses(self, study_id: str) -> tuple[ModelUse, ...]:
        """What each model was asked in a study, and what it used; in alphabetical order."""
        # SQLite takes a bare column from the row of the maximum: the last turn's.
        rows = self._rows(
            "select model, count(*) as turn_count, sum(result = ?) as policy_count,"
            " sum(request_count) as request_count, sum(input_tokens) as input_tokens,"
            " sum(output_tokens) as output_tokens, sum(cache_read_tokens) as cache_read_tokens,"
            " sum(cache_write_tokens) as cache_write_tokens, result as last_result, max(ordinal)"
            " from exchanges where study_id = ? group by model order by model",
            SUBMITTED,
            study_id,
        )
        return tuple(to_model_use(row) for row in rows)

    def _lock_file(self, name: str) -> int:
        path = self.root / "locks" / name
        path.parent.mkdir(exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    def _create(
        self, study_id: str, study: Study, version: str, *, status: str, summary: str | None
    ) -> None:
        self._db.table("studies").insert(
            {
                "id": study_id,
                "name": study.name,
                "objective": study.objective.expression,
                "strategy": study.strategy,
                "status": status,
                "created_at": now(),
                "version": version,
                "study": to_json(study),
                "summary": summary,
            }
        )

    def _finish(self, study_id: str, trial: Trial) -> None:
        self._keep_policy(trial.policy)
        self._db.table("trials").insert({"study_id": study_id, **trial_columns(trial)})
        self._db.table("metrics").insert_all(metric_rows(study_id, trial))
        self._db.table("artifacts").insert_all(artifact_rows(study_id, trial))
        self._db.execute(
            "delete from intents where study_id = ? and ordinal = ?", [study_id, trial.ordinal]
        )

    def _repeat(self, study_id: str, repeats: Sequence[Repeat]) -> None:
        self._db.table("confirmations").insert_all(
            {
                "study_id": study_id,
                "series": repeat.series,
                "round": repeat.round,
                "ordinal": repeat.ordinal,
                "purpose": repeat.purpose.value,
                "position": repeat.position,
                "outcome": to_json(repeat.outcome),
            }
            for repeat in repeats
        )

    def _keep_policy(self, policy: Policy) -> None:
        self._db.table("policies").insert(
            {"digest": policy.digest, "source": policy.source}, ignore=True
        )

    def _rows(self, sql: str, *arguments: str) -> list[dict[str, str | int | float | None]]:
        with _refusals(self.root, "read"):
            return list(self._db.query(sql, arguments))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _refusals(self.root, "write to"), self._db.atomic():
            yield


def now() -> str:
    """UTC instant in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _claim(handle: int, study_id: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(handle, 20, 0).decode()
        raise StoreBusy(
            f"study {study_id} is being run by process {holder}; wait for it or stop it"
        ) from error
    os.ftruncate(handle, 0)
    os.pwrite(handle, str(os.getpid()).encode(), 0)


@contextmanager
def _refusals(root: Path, verb: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StoreError(
            f"cannot {verb} the store {root}: {error}; "
            "free or unlock it, or give another with --store"
        ) from error
