"""Records as pandas tables."""

from pathlib import Path

import pandas as pd

from records.store import Store
from records.trial import Failed, Trial
from search.settings import store_root


def studies(store: Path | str | None = None) -> pd.DataFrame:
    """One row per study, newest first; `store` is the folder of the records."""
    rows = _open(store).studies()
    return pd.DataFrame(
        [
            {
                "study": row.id,
                "name": row.study.name,
                "objective": row.study.objective.expression,
                "strategy": row.strategy,
                "status": row.status,
                "created_at": pd.Timestamp(row.created_at),
            }
            for row in rows
        ]
    )


def trials(study: str = "", store: Path | str | None = None) -> pd.DataFrame:
    """One row per trial of a study (the newest by default): config, result and every metric.

    Knobs are columns named `config.KNOB`, metrics `metric.NAME`; what does not exist is missing.
    """
    records = _open(store)
    history = records.history(records.find(study).id)
    return pd.DataFrame([_columns(trial) for trial in history])


def _columns(trial: Trial) -> dict[str, object]:
    failed = trial.outcome if isinstance(trial.outcome, Failed) else None
    row: dict[str, object] = {
        "ordinal": trial.ordinal,
        "author": trial.policy.author,
        "status": trial.outcome.status,
        "score": trial.score.value if trial.score else None,
        "failure_kind": failed.kind.value if failed else None,
        "message": failed.message if failed else None,
        "started_at": pd.Timestamp(trial.started_at),
        "ended_at": pd.Timestamp(trial.ended_at),
    }
    if trial.config is not None:
        row |= {f"config.{knob}": value for knob, value in trial.config.values.items()}
    if not isinstance(trial.outcome, Failed):
        row |= {f"metric.{metric.name}": metric.value for metric in trial.outcome.metrics}
    return row


def _open(store: Path | str | None) -> Store:
    return Store(store_root(None if store is None else Path(store)))
