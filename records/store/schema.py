"""The tables, indexes and views of a store's database, created in one step.

A record is a row with its JSON text, and columns for what SQL filters, sorts or counts. Browsers of
the database read the views: they have plain names and a unit in each number's name.
"""

import sqlite3
from collections.abc import Mapping

SCHEMA_VERSION = 4
"""Increase it with every change of this file: databases of another version are built again."""
_TABLES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "studies": (
        "id name objective strategy status created_at version study summary labels"
        " trial_count measured_count launch_count repeat_count",
        ("id",),
    ),
    "journals": ("study_id entry_count byte_count", ("study_id",)),
    "runs": ("study_id run", ()),
    "pending_trials": ("study_id ordinal pending", ("study_id", "ordinal")),
    "trials": (
        "study_id ordinal status score_value score_unit score_cost score_broken failure_kind"
        " failure_stage message config policy_digest author rationale attempts started_at ended_at"
        " trial",
        ("study_id", "ordinal"),
    ),
    "metrics": (
        "study_id ordinal name value unit better version",
        ("study_id", "ordinal", "name"),
    ),
    "computed_metrics": (
        "study_id ordinal name value unit version absent better definition computed_at",
        ("study_id", "ordinal", "name", "version"),
    ),
    "artifacts": ("study_id ordinal name digest size_bytes", ("study_id", "ordinal", "name")),
    "removed_files": ("study_id digest removed_at rule", ("study_id", "digest")),
    "repeats": (
        "study_id series round ordinal repeat",
        ("study_id", "series", "round", "ordinal"),
    ),
    "exchanges": (
        "study_id ordinal digest model result input_tokens output_tokens cache_read_tokens"
        " cache_write_tokens latency_s request_count",
        ("study_id", "ordinal"),
    ),
}
"""Columns and primary key of each table."""
_COUNTS = ("trial_count", "measured_count", "launch_count", "repeat_count")
_NUMBERS: Mapping[str, type] = {
    **dict.fromkeys((*_COUNTS, "entry_count", "byte_count", "request_count", "size_bytes"), int),
    **dict.fromkeys(("ordinal", "series", "round", "attempts"), int),
    **dict.fromkeys((f"{kind}_tokens" for kind in ("input", "output")), int),
    **dict.fromkeys((f"cache_{kind}_tokens" for kind in ("read", "write")), int),
    **dict.fromkeys(("score_value", "score_cost", "value", "latency_s"), float),
}
"""Columns that are not text; `version` is an integer too, except that of a study."""
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
        select s.name as study_name, c.ordinal as trial, c.repeat ->> 'purpose' as purpose,
            c.series as after_trials, c.round, c.repeat ->> 'position' as position,
            c.repeat ->> '$.outcome.status' as status, c.study_id
        from repeats c join studies s on s.id = c.study_id""",
    "trials_under_way": """
        select s.name as study_name, i.ordinal as trial, i.pending ->> '$.policy.author' as author,
            i.pending ->> '$.policy.rationale' as rationale,
            i.pending ->> 'started_at' as started_at, i.study_id
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
    "select study_id, ordinal, name, version, value, unit, better, absent, computed_at"
    " from computed_metrics c where version = (select max(o.version) from computed_metrics o"
    " where o.study_id = c.study_id and o.ordinal = c.ordinal and o.name = c.name)"
    " and not exists (select 1 from metrics m where m.study_id = c.study_id"
    " and m.ordinal = c.ordinal and m.name = c.name and m.version > c.version)"
    " union all select study_id, ordinal, name, version, value, unit, better, null, null"
    " from metrics m where not exists (select 1 from computed_metrics c where c.study_id"
    " = m.study_id and c.ordinal = m.ordinal and c.name = m.name and c.version >= m.version)"
)


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables of an empty database, which is marked as not complete."""
    from sqlite_utils import Database  # brings pandas, which stores that exist do not need

    db = Database(connection)
    with db.atomic():  # one wait for the disk, not one for each table
        for name, (columns, key) in _TABLES.items():
            is_study = name == "studies"
            types = _NUMBERS if is_study else {**_NUMBERS, "version": int}
            belongs = "study_id" in columns and name != "journals"
            db.table(name).create(
                {column: types.get(column, str) for column in columns.split()},
                pk=key[0] if len(key) == 1 else key or None,
                foreign_keys=[("study_id", "studies", "id")] if belongs else [],
                not_null=_COUNTS if is_study else (),
                defaults=dict.fromkeys(_COUNTS, 0) if is_study else {},
            )
        for index in _INDEXES:
            db.execute(f"create index {index}")
        for name, select in {"newest_metrics": _NEWEST_METRICS, **VIEWS}.items():
            db.create_view(name, select)
        db.execute(f"pragma user_version = -{SCHEMA_VERSION}")
