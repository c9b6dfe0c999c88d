"""Tables of the store, as append-only named migrations: one that has shipped is never edited."""

import sqlite3

from records.errors import StoreError
from records.store.sqlite import Database, Migrations
from records.store.views import ADMISSIBLE, VIEWS

migrations = Migrations("cclsearch")


def migration_names() -> tuple[str, ...]:
    """Every migration, in the order of application; the last is `records.store.database.NEWEST`."""
    blank = Database(memory=True)
    try:
        return tuple(step.name for step in migrations.pending(blank))
    finally:
        blank.close()


def upgrade(connection: sqlite3.Connection) -> None:
    """Apply what a store lacks; raises `StoreError` when a newer cclsearch has changed it."""
    db = Database(connection)
    newer = {step.name for step in migrations.applied(db)} - set(migration_names())
    if newer:
        raise StoreError(
            f"the store was changed by a newer cclsearch ({', '.join(sorted(newer))}); "
            "use that version, or give another store with --store"
        )
    with db.atomic():  # one wait for the disk, not one for each
        migrations.apply(db)


@migrations()
def create_studies_and_trials(db: Database) -> None:
    """First schema: studies, their trials in flight and finished, and what belongs to a trial."""
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
        },
        pk="id",
    )
    db.table("policies").create({"digest": str, "source": str}, pk="digest")
    db.table("intents").create(
        {
            "study_id": str,
            "ordinal": int,
            "started_at": str,
            "policy_digest": str,
            "author": str,
            "parent": str,
            "rationale": str,
            "exchange_digest": str,
        },
        pk=("study_id", "ordinal"),
        foreign_keys=[("study_id", "studies", "id"), ("policy_digest", "policies", "digest")],
    )
    db.table("trials").create(
        {
            "study_id": str,
            "ordinal": int,
            "status": str,
            "score_value": float,
            "score_unit": str,
            "score_cost": float,
            "failure_kind": str,
            "failure_stage": str,
            "message": str,
            "config": str,
            "config_digest": str,
            "author": str,
            "parent": str,
            "rationale": str,
            "policy_digest": str,
            "exchange_digest": str,
            "attempts": int,
            "started_at": str,
            "ended_at": str,
            "outcome": str,
        },
        pk=("study_id", "ordinal"),
        foreign_keys=[("study_id", "studies", "id"), ("policy_digest", "policies", "digest")],
    )
    db.table("metrics").create(
        {"study_id": str, "ordinal": int, "name": str, "value": float, "unit": str, "version": int},
        pk=("study_id", "ordinal", "name"),
    )
    db.table("artifacts").create(
        {"study_id": str, "ordinal": int, "name": str, "digest": str, "size_bytes": int},
        pk=("study_id", "ordinal", "name"),
    )
    db.table("exchanges").create(
        {
            "study_id": str,
            "ordinal": int,
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
    db.table("confirmations").create(
        {"study_id": str, "series": int, "round": int, "ordinal": int, "outcome": str},
        pk=("study_id", "series", "round", "ordinal"),
    )


@migrations()
def tell_why_launches_were_repeated(db: Database) -> None:
    """The purpose of a re-measuring launch and its place in the round; before, all confirmed."""
    table = db.table("confirmations")
    table.add_column("purpose", str, not_null_default="confirm")
    table.add_column("position", int, not_null_default=0)


@migrations()
def tell_which_limits_a_trial_breaks(db: Database) -> None:
    """A list of sentences as JSON; before, studies had no limits."""
    db.table("trials").add_column("score_broken", str)


@migrations()
def tell_where_every_run_began(db: Database) -> None:
    """The study as each run took it, and how much was on record by then; before, unknown."""
    db.table("runs").create(
        {"study_id": str, "trials": int, "repeats": int, "begun": int, "study": str},
        foreign_keys=[("study_id", "studies", "id")],
    )


@migrations()
def count_what_a_study_has(db: Database) -> None:
    """What listings ask of a study, counted as it changes; and what finds the best of a million."""
    for column in ("trial_count", "measured_count", "launch_count", "repeat_count"):
        db.table("studies").add_column(column, int, not_null_default=0)
    db.execute(
        "update studies set"
        " trial_count = (select count(*) from trials where study_id = id),"
        " measured_count = (select count(score_cost) from trials where study_id = id),"
        " repeat_count = (select count(*) from confirmations where study_id = id)"
    )
    db.execute(
        "update studies set launch_count = repeat_count + (select coalesce(sum(attempts), 0)"
        " from trials where study_id = id and coalesce(failure_stage, '')"
        " not in ('decide', 'check'))"
    )
    db.execute(
        "create index admissible_trials on trials (study_id, score_cost, ordinal)"
        f" where {ADMISSIBLE}"
    )
    db.execute(
        "create index failed_trials on trials (study_id, failure_kind)"
        " where failure_kind is not null"
    )
    db.execute("create index studies_by_age on studies (created_at, id)")


@migrations()
def know_how_much_of_a_journal_is_here(db: Database) -> None:
    """Entries and bytes of each study's journal that the rows stand for."""
    db.table("journals").create(
        {"study_id": str, "entry_count": int, "byte_count": int}, pk="study_id"
    )


@migrations()
def keep_metrics_computed_afterwards(db: Database) -> None:
    """Every version of every metric computed after its trial; and a view of the newest of all."""
    db.table("computed_metrics").create(
        {
            "study_id": str,
            "ordinal": int,
            "name": str,
            "version": int,
            "value": float,
            "absent": str,
            "unit": str,
            "better": str,
            "definition": str,
            "computed_at": str,
        },
        pk=("study_id", "ordinal", "name", "version"),
        foreign_keys=[("study_id", "studies", "id")],
    )
    db.create_view(
        "newest_metrics",
        "select study_id, ordinal, name, version, value, unit, absent, computed_at"
        " from computed_metrics c where version = (select max(o.version) from computed_metrics o"
        " where o.study_id = c.study_id and o.ordinal = c.ordinal and o.name = c.name)"
        " and not exists (select 1 from metrics m where m.study_id = c.study_id"
        " and m.ordinal = c.ordinal and m.name = c.name and m.version > c.version)"
        " union all select study_id, ordinal, name, version, value, unit, null, null"
        " from metrics m where not exists (select 1 from computed_metrics c where c.study_id"
        " = m.study_id and c.ordinal = m.ordinal and c.name = m.name and c.version >= m.version)",
    )


@migrations()
def tell_which_files_were_removed(db: Database) -> None:
    """Kept files that a study cites and that were removed on purpose: when, and by which rule."""
    db.table("removed_files").create(
        {"study_id": str, "digest": str, "removed_at": str, "rule": str},
        pk=("study_id", "digest"),
        foreign_keys=[("study_id", "studies", "id")],
    )


@migrations()
def name_views_for_browsing(db: Database) -> None:
    """What a person looks for, under plain names, for whatever shows tables as they are."""
    for name, select in VIEWS.items():
        db.create_view(name, select)


@migrations()
def find_trials_by_score(db: Database) -> None:
    """What gives a page of a hundred thousand trials, the best or the worst first, at once."""
    db.execute("create index trials_by_score on trials (study_id, score_cost, ordinal)")


@migrations()
def find_trials_by_policy(db: Database) -> None:
    """What tells the policies of a study without reading its trials."""
    db.execute("create index trials_by_policy on trials (study_id, policy_digest, ordinal)")


@migrations()
def keep_what_was_expected_of_a_policy(db: Database) -> None:
    """How many times as good as which trial its author expected it to be; before, unknown."""
    for table in ("intents", "trials"):
        db.table(table).add_column("predicted_speedup", float)
        db.table(table).add_column("predicted_over", int)
