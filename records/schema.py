"""Tables of the store, as append-only named migrations: one that has shipped is never edited."""

from sqlite_utils import Database, Migrations

from records.errors import StoreError

migrations = Migrations("cclsearch")


def migration_names() -> tuple[str, ...]:
    """Every migration, in the order of application."""
    blank = Database(memory=True)
    try:
        return tuple(step.name for step in migrations.pending(blank))
    finally:
        blank.close()


def upgrade(db: Database) -> None:
    """Apply what a store lacks; raises `StoreError` when a newer cclsearch has changed it."""
    newer = {step.name for step in migrations.applied(db)} - set(migration_names())
    if newer:
        raise StoreError(
            f"the store was changed by a newer cclsearch ({', '.join(sorted(newer))}); "
            "use that version, or give another store with --store"
        )
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
