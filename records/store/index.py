"""Apply entries of journals to the tables of the database; it is all that writes them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Literal

import msgspec

from records.codec import from_json, to_json
from records.errors import CodecError
from records.store.database import Database
from records.store.journal import (
    KINDS,
    FilesRemoved,
    MetricsComputed,
    NodesHeld,
    RepeatsFinished,
    RunBegan,
    StudyChanged,
    StudyCreated,
    StudyLabelled,
    TrialFinished,
)
from records.store.rows import ComputedMetric, PendingTrial, Row
from records.study import digest
from records.trial import Repeat, Stage


class _Policy(msgspec.Struct):
    source: str
    author: str
    rationale: str


class _Config(msgspec.Struct):
    values: msgspec.Raw


class _Score(msgspec.Struct):
    value: float
    unit: str
    cost: float
    broken: tuple[str, ...]


class _Metric(msgspec.Struct):
    name: str
    value: float
    unit: str
    better: str
    version: int


class _File(msgspec.Struct):
    name: str
    digest: str
    size_bytes: int


class _Outcome(msgspec.Struct):
    status: str
    kind: str | None = None
    stage: str | None = None
    message: str | None = None
    metrics: tuple[_Metric, ...] = ()
    artifacts: tuple[_File, ...] = ()


class _Trial(msgspec.Struct):
    """What the tables hold of a trial: its whole JSON is parsed by the readers of it alone."""

    ordinal: int
    policy: _Policy
    config: _Config | None
    outcome: _Outcome
    score: _Score | None
    started_at: str
    ended_at: str
    attempts: int


class _Finished(msgspec.Struct):
    trial: msgspec.Raw


def apply_entry(db: Database, study_id: str, kind: str, text: str) -> None:
    """Apply an entry, as a journal holds it, to the tables, in a transaction of the caller.

    Raises `CodecError` for a text that is no such entry.
    """
    if kind == TrialFinished.kind:
        _finish(db, study_id, text)
        return
    match from_json(KINDS[kind], text):
        case StudyCreated() as entry:
            _create(db, study_id, entry)
        case StudyChanged(status=status, summary=summary, study=study):
            changed = None if study is None else to_json(study)
            _change(db, study_id, status=status, summary=summary, study=changed)
        case StudyLabelled(labels=labels):
            _change(db, study_id, labels=to_json(labels))
        case RunBegan() | NodesHeld() as entry:
            _run(db, study_id, entry)
        case PendingTrial() as pending:
            _begin(db, study_id, pending, text)
        case RepeatsFinished(repeats=repeats):
            _repeat(db, study_id, repeats)
        case FilesRemoved() as entry:
            _remove_files(db, study_id, entry)
        case MetricsComputed(metrics=metrics):
            _compute(db, study_id, metrics)


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
    _insert(db, "studies", row)


def _change(db: Database, study_id: str, **changes: str | None) -> None:
    for column, value in changes.items():
        if value is not None:
            db.execute(f"update studies set {column} = ? where id = ?", [value, study_id])


def _run(db: Database, study_id: str, entry: RunBegan | NodesHeld) -> None:
    """Record that a run began, or for how long the last one has held nodes."""
    match entry:
        case RunBegan(run=run):
            _change(db, study_id, status="running")
            _insert(db, "runs", {"study_id": study_id, "run": to_json(run)})
        case NodesHeld(node_s=node_s):
            last = "(select max(rowid) from runs where study_id = ?)"
            changed = "json_set(run, '$.node_s', ?)"
            db.execute(f"update runs set run = {changed} where rowid = {last}", [node_s, study_id])


def _count(db: Database, study_id: str, **counts: int) -> None:
    changes = ", ".join(f"{column} = {column} + ?" for column in counts)
    db.execute(f"update studies set {changes} where id = ?", [*counts.values(), study_id])


def _begin(db: Database, study_id: str, pending: PendingTrial, text: str) -> None:
    place: Row = {"study_id": study_id, "ordinal": pending.ordinal}
    if pending.exchange_summary is not None:
        columns = asdict(pending.exchange_summary)
        _insert(db, "exchanges", {**place, **columns.pop("usage"), **columns})
    _insert(db, "pending_trials", {**place, "pending": text})


def _finish(db: Database, study_id: str, text: str) -> None:
    try:
        whole = msgspec.json.decode(text, type=_Finished).trial
        trial = msgspec.json.decode(whole, type=_Trial)
    except msgspec.DecodeError as error:
        raise CodecError(f"a finished trial: {error}") from error
    place: Row = {"study_id": study_id, "ordinal": trial.ordinal}
    row = {**place, **_trial_columns(trial), "trial": bytes(whole).decode()}
    _insert(db, "trials", row)
    for metric in trial.outcome.metrics:
        _insert(db, "metrics", {**place, **msgspec.structs.asdict(metric)})
    for file in trial.outcome.artifacts:
        _insert(db, "artifacts", {**place, **msgspec.structs.asdict(file)})
    db.execute("delete from pending_trials where study_id = ? and ordinal = ?", [*place.values()])
    _count(
        db,
        study_id,
        trial_count=1,
        measured_count=trial.score is not None,
        launch_count=0 if trial.outcome.stage in {Stage.DECIDE, Stage.CHECK} else trial.attempts,
    )


def _trial_columns(trial: _Trial) -> dict[str, object]:
    """What SQL filters, sorts or shows of a trial."""
    score, outcome = trial.score, trial.outcome
    return {
        "status": outcome.status,
        "score_value": score.value if score else None,
        "score_unit": score.unit if score else None,
        "score_cost": score.cost if score else None,
        "score_broken": json.dumps(score.broken) if score else None,
        "failure_kind": outcome.kind,
        "failure_stage": outcome.stage,
        "message": outcome.message,
        "config": bytes(trial.config.values).decode() if trial.config else None,
        "policy_digest": digest(trial.policy.source),
        "author": trial.policy.author,
        "rationale": trial.policy.rationale,
        "attempts": trial.attempts,
        "started_at": trial.started_at,
        "ended_at": trial.ended_at,
    }


def _repeat(db: Database, study_id: str, repeats: Sequence[Repeat]) -> None:
    for repeat in repeats:
        place = {"series": repeat.series, "round": repeat.round, "ordinal": repeat.ordinal}
        _insert(db, "repeats", {"study_id": study_id, **place, "repeat": to_json(repeat)})
    _count(db, study_id, repeat_count=len(repeats), launch_count=len(repeats))


def _compute(db: Database, study_id: str, metrics: Mapping[int, Sequence[ComputedMetric]]) -> None:
    for ordinal, computed in metrics.items():
        for metric in computed:
            row = {"study_id": study_id, "ordinal": ordinal, **asdict(metric)}
            _insert(db, "computed_metrics", row, "replace")


def _remove_files(db: Database, study_id: str, entry: FilesRemoved) -> None:
    removal = {"study_id": study_id, "removed_at": entry.removed_at, "rule": entry.rule}
    for each in entry.digests:
        _insert(db, "removed_files", {**removal, "digest": each}, "replace")


def _insert(
    db: Database,
    table: str,
    row: Mapping[str, object],
    verb: Literal["insert", "replace"] = "insert",
) -> None:
    """Insert one row; equal columns give equal SQL, which SQLite has prepared already."""
    places = ", ".join("?" * len(row))
    db.execute(f"{verb} into {table} ({', '.join(row)}) values ({places})", list(row.values()))
