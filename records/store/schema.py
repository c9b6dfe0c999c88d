"""The tables, indexes and views of a store's database, created in one step.

Browsers of the database read the views: they have plain names and a unit in each number's name.
"""

import sqlite3
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils import Database

SCHEMA_VERSION = 1
"""Increase it with every change of this file: databases of another version are built again."""
ADMISSIBLE = "score_cost is not null and coalesce(score_broken, '[]') = '[]'"
"""Which trials may be best; the same text as in the index, so that SQLite uses it."""

VIEWS: Mapping[str, str] = {
    "all_trials": """
        select s.name as study_name, t.ordinal as trial, t.status, t.config,
            t.score_value as score, t.score_unit as score_unit, t.score_broken as limits_broken,
            t.failure_kind as failure, t.failure_stage as failed_at, t.message,
            round((julianday(t.ended_at) - julianday(t.started_at)) * 86400, 3) as duration_seconds,
            t.attempts as launches, t.author, t.rationale, t.started_at, t.ended_at, t.study_id
        from trials t join studies s on s.id = t.study_id""",
    "best_trials": f"""
        select s.name as study_name, s.objective, t.ordinal as trial, t.score_value as score,
            t.score_unit as score_unit, t.config, t.author, t.ended_at, t.study_id
        from studies s cross join trials t on t.study_id = s.id and t.ordinal = (
            select ordinal from trials where study_id = s.id and {ADMISSIBLE}
            order by score_cost, ordinal limit 1)""",
    "all_studies": """
        select s.name as study_name, s.objective, s.strategy, s.status, s.trial_count as trials,
            s.measured_count as measured, s.trial_count - s.measured_count as failed,
            s.launch_count as launches, b.score as best_score, b.score_unit, b.trial as best_trial,
            s.created_at, s.version as cclsearch_version, s.id as study_id
        from studies s left join best_trials b on b.study_id = s.id""",
    "failures_by_kind": """
        select s.name as study_name, t.failure_kind as failure, t.failure_stage as failed_at,
            count(*) as trials, min(t.ordinal) as first_trial, t.message as first_message,
            t.study_id
        from trials t join studies s on s.id = t.study_id where t.failure_kind is not null
        group by t.study_id, t.failure_kind, t.failure_stage""",
    "files": """
        select s.name as study_name, a.ordinal as trial, a.name as file,
            a.size_bytes as size_bytes, a.digest as sha256, a.study_id
        from artifacts a join studies s on s.id = a.study_id""",
    "repeated_launches": """
        select s.name as study_name, c.ordinal as trial, c.purpose, c.series as after_trials,
            c.round, c.position, json_extract(c.outcome, '$.status') as status, c.study_id
        from repeats c join studies s on s.id = c.study_id""",
    "trials_under_way": """
        select s.name as study_name, i.ordinal as trial, i.author, i.rationale, i.started_at,
            i.study_id
        from pending_trials i join studies s on s.id = i.study_id""",
}

_INDEXES = (
    f"admissible_trials on trials (study_id, score_cost, ordinal) where {ADMISSIBLE}",
    "failed_trials on trials (study_id, failure_kind) where failure_kind is not null",
    "studies_by_age on studies (created_at, id)",
    "trials_by_score on trials (study_id, score_cost, ordinal)",
    "trials_by_policy on trials (study_id, policy_digest, ordinal)",
)
_NEWEST_METRICS = (
    "select study_id, ordinal, name, version, value, unit, absent, computed_at"
    " from computed_metrics c where version = (select max(o.version) from computed_metrics o"
    " where o.study_id = c.study_id and o.ordinal = c.ordinal and o.name = c.name)"
    " and not exists (select 1 from metrics m where m.study_id = c.study_id"
    " and m.ordinal = c.ordinal and m.name = c.name and m.version > c.version)"
    " union all select study_id, ordinal, name, version, value, unit, null, null"
    " from metrics m where not exists (select 1 from computed_metrics c where c.study_id"
    " = m.study_id and c.ordinal = m.ordinal and c.name = m.name and c.version >= m.version)"
)


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables of an empty database, which is marked as not complete."""
    db = _sqlite_utils().Database(connection)
    with db.atomic():  # one wait for the disk, not one for each table
        _create_study_tables(db)
        _create_trial_tables(db)
        for index in _INDEXES:
            db.execute(f"create index {index}")
        for name, select in {"newest_metrics": _NEWEST_METRICS, **VIEWS}.items():
            db.create_view(name, select)
        db.execute(f"PRAGMA user_version=-{SCHEMA_VERSION}")


def _sqlite_utils() -> ModuleType:
    """Import sqlite_utils without pandas and numpy, which load slowly and are not needed here."""
    hidden = [name for name in ("numpy", "pandas") if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # how Python marks a module absent
    try:
        import sqlite_utils
    finally:
        for name in hidden:
            del sys.modules[name]
    return sqlite_utils


def _create_study_tables(db: "Database") -> None:
    counts = ("trial_count", "measured_count", "launch_count", "repeat_count")
    db.table("studies").create(
        {
            "id": str,
            "name": str,
            "objective": str,
            "strategy": str,
            "status": str,
            "created_at": str,
            "version": str,
            "study": str,
            "summary": str,
            **dict.fromkeys(counts, int),
        },
        pk="id",
        not_null=counts,
        defaults=dict.fromkeys(counts, 0),
    )
    db.table("runs").create(
        {"study_id": str, "trials": int, "repeats": int, "begun": int, "study": str},
        foreign_keys=[("study_id", "studies", "id")],
    )
    db.table("journals").create(
        {"study_id": str, "entry_count": int, "byte_count": int}, pk="study_id"
    )
    db.table("removed_files").create(
        {"study_id": str, "digest": str, "removed_at": str, "rule": str},
        pk=("study_id", "digest"),
        foreign_keys=[("study_id", "studies", "id")],
    )


def _create_trial_tables(db: "Database") -> None:
    trial = {"study_id": str, "ordinal": int}
    proposal = {
        "policy_digest": str,
        "author": str,
        "parent": str,
        "rationale": str,
        "predicted_speedup": float,
        "predicted_over": int,
        "exchange_digest": str,
        "started_at": str,
    }
    outcome = {
        "status": str,
        "score_value": float,
        "score_unit": str,
        "score_cost": float,
        "score_broken": str,
        "failure_kind": str,
        "failure_stage": str,
        "message": str,
        "config": str,
        "config_digest": str,
        "attempts": int,
        "ended_at": str,
        "outcome": str,
    }
    db.table("policies").create({"digest": str, "source": str}, pk="digest")
    for table, columns in {"pending_trials": proposal, "trials": {**proposal, **outcome}}.items():
        db.table(table).create(
            {**trial, **columns},
            pk=("study_id", "ordinal"),
            foreign_keys=[("study_id", "studies", "id"), ("policy_digest", "policies", "digest")],
        )
    db.table("repeats").create(
        {
            "study_id": str,
            "series": int,
            "round": int,
            "ordinal": int,
            "purpose": str,
            "position": int,
            "outcome": str,
        },
        pk=("study_id", "series", "round", "ordinal"),
    )
    db.table("exchanges").create(
        {
            **trial,
            "digest": str,
            "model": str,
            "result": str,
            "input_tokens": int,
            "output_tokens": int,
            "cache_read_tokens": int,
            "cache_write_tokens": int,
            "latency_s": float,
            "request_count": int,
        },
        pk=("study_id", "ordinal"),
    )
    db.table("artifacts").create(
        {**trial, "name": str, "digest": str, "size_bytes": int},
        pk=("study_id", "ordinal", "name"),
    )
    metric = {**trial, "name": str, "value": float, "unit": str, "version": int}
    db.table("metrics").create(metric, pk=("study_id", "ordinal", "name"))
    db.table("computed_metrics").create(
        {**metric, "absent": str, "better": str, "definition": str, "computed_at": str},
        pk=("study_id", "ordinal", "name", "version"),
        foreign_keys=[("study_id", "studies", "id")],
    )
