"""The records of a study as entries, read from its rows: for a study that has no journal yet."""

from collections.abc import Iterator, Mapping
from itertools import chain

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
from records.metric_rows import computed_metrics
from records.rows import Row, to_intent, to_paid, to_repeat, to_run, to_study, to_trial

WITH_POLICY = "select t.*, p.source from {} t join policies p on p.digest = t.policy_digest"


def entries_of(db: Database, study_id: str) -> Iterator[Entry]:
    """Entries that make these very rows; raises `CodecError` for a row that is damaged."""
    (row,) = db.query("select * from studies where id = ?", [study_id])
    study = to_study(row)
    yield StudyCreated(study=study.study, version=str(row["version"]), created_at=study.created_at)
    paid = {
        int(each["ordinal"]): each
        for each in db.query("select * from exchanges where study_id = ?", [study_id])
    }
    yield from chain.from_iterable(
        _trial_entries(each, paid) for each in _rows(db, WITH_POLICY.format("trials"), study_id)
    )
    for each in _rows(db, "select * from confirmations t", study_id):
        yield LaunchesRepeated(repeats=(to_repeat(each),))
    computed = computed_metrics(db, study_id)
    if computed:
        yield MetricsComputed(metrics=computed)
    for each in _rows(db, "select * from runs t", study_id):
        yield RunBegan(run=to_run(each))
    for each in _rows(db, WITH_POLICY.format("intents"), study_id):
        yield _begun(each, paid.get(int(each["ordinal"] or 0)))
    for each in _rows(db, "select * from removed_files t", study_id):
        yield FilesRemoved(
            removed_at=str(each["removed_at"]),
            rule=str(each["rule"]),
            digests=(str(each["digest"]),),
        )
    yield StudyChanged(status=study.status, summary=study.summary)


def _trial_entries(row: Row, paid: Mapping[int, Row]) -> Iterator[Entry]:
    trial = to_trial(row)
    if trial.ordinal in paid:
        yield _begun(row, paid[trial.ordinal])
    yield TrialFinished(trial=trial)


def _begun(row: Row, paid: Row | None) -> TrialBegun:
    intent = to_intent(row)
    return TrialBegun(
        ordinal=intent.ordinal,
        policy=intent.policy,
        started_at=intent.started_at,
        exchange=intent.exchange,
        paid=None if paid is None else to_paid(paid),
    )


def _rows(db: Database, select: str, study_id: str) -> Iterator[Row]:
    return db.query(f"{select} where t.study_id = ? order by t.rowid", [study_id])
