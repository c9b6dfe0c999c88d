"""Applies entries to the tables: the only place that changes a row.

Whoever calls it holds the one lock for writing, and a transaction.
"""

from collections.abc import Mapping
from typing import Literal, assert_never

from records.codec import to_json
from records.connection import Database
from records.entries import (
    Entry,
    FilesRemoved,
    LaunchesRepeated,
    MetricsComputed,
    RunBegan,
    StudyChanged,
    StudyCreated,
    TrialBegun,
    TrialFinished,
)
from records.metric_rows import computed_columns
from records.rows import artifact_rows, metric_rows, paid_columns, policy_columns, trial_columns
from records.trial import Policy


def apply(db: Database, study_id: str, entry: Entry) -> None:
    """Change what an entry says has changed."""
    match entry:
        case StudyCreated():
            _create(db, study_id, entry)
        case StudyChanged():
            study = None if entry.study is None else to_json(entry.study)
            _change(db, study_id, status=entry.status, summary=entry.summary, study=study)
        case RunBegan():
            _begin_run(db, study_id, entry)
        case TrialBegun():
            _begin(db, study_id, entry)
        case TrialFinished():
            _finish(db, study_id, entry)
        case LaunchesRepeated():
            _repeat(db, study_id, entry)
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
    insert(db, "studies", row)


def _change(db: Database, study_id: str, **changes: str | None) -> None:
    for column, value in changes.items():
        if value is not None:
            db.execute(f"update studies set {column} = ? where id = ?", [value, study_id])


def _begin_run(db: Database, study_id: str, entry: RunBegan) -> None:
    run = entry.run
    _change(db, study_id, status="running")
    counts = {"trials": run.trials, "repeats": run.repeats, "begun": run.begun}
    insert(db, "runs", {"study_id": study_id, **counts, "study": to_json(run.study)})


def _begin(db: Database, study_id: str, entry: TrialBegun) -> None:
    _keep_policy(db, entry.policy)
    place = {"study_id": study_id, "ordinal": entry.ordinal}
    if entry.paid is not None:
        insert(db, "exchanges", {**place, **paid_columns(entry.paid)})
    row = {
        **place,
        "started_at": entry.started_at,
        "exchange_digest": entry.exchange,
        **policy_columns(entry.policy),
    }
    insert(db, "intents", row)


def _finish(db: Database, study_id: str, entry: TrialFinished) -> None:
    trial = entry.trial
    _keep_policy(db, trial.policy)
    insert(db, "trials", {"study_id": study_id, **trial_columns(trial)})
    for row in metric_rows(study_id, trial):
        insert(db, "metrics", row)
    for row in artifact_rows(study_id, trial):
        insert(db, "artifacts", row)
    db.execute("delete from intents where study_id = ? and ordinal = ?", [study_id, trial.ordinal])
    db.execute(
        "update studies set trial_count = trial_count + 1, measured_count = measured_count + ?,"
        " launch_count = launch_count + ? where id = ?",
        [trial.score is not None, trial.attempts if trial.reached_launch else 0, study_id],
    )


def _repeat(db: Database, study_id: str, entry: LaunchesRepeated) -> None:
    for repeat in entry.repeats:
        row = {
            "study_id": study_id,
            "series": repeat.series,
            "round": repeat.round,
            "ordinal": repeat.ordinal,
            "purpose": repeat.purpose.value,
            "position": repeat.position,
            "outcome": to_json(repeat.outcome),
        }
        insert(db, "confirmations", row)
    count = len(entry.repeats)
    db.execute(
        "update studies set repeat_count = repeat_count + ?, launch_count = launch_count + ?"
        " where id = ?",
        [count, count, study_id],
    )


def _compute(db: Database, study_id: str, entry: MetricsComputed) -> None:
    for ordinal, metrics in entry.metrics.items():
        for metric in metrics:
            row = {"study_id": study_id, **computed_columns(ordinal, metric)}
            insert(db, "computed_metrics", row, verb="replace")


def _remove_files(db: Database, study_id: str, entry: FilesRemoved) -> None:
    for digest in entry.digests:
        db.execute(
            "insert or replace into removed_files (study_id, digest, removed_at, rule)"
            " values (?, ?, ?, ?)",
            [study_id, digest, entry.removed_at, entry.rule],
        )


def _keep_policy(db: Database, policy: Policy) -> None:
    db.execute(
        "insert or ignore into policies (digest, source) values (?, ?)",
        [policy.digest, policy.source],
    )


def insert(
    db: Database,
    table: str,
    row: Mapping[str, object],
    verb: Literal["insert", "replace"] = "insert",
) -> None:
    """Insert one row; a text of SQL for each set of columns, which SQLite then knows already."""
    places = ", ".join("?" * len(row))
    db.execute(f"{verb} into {table} ({', '.join(row)}) values ({places})", list(row.values()))
