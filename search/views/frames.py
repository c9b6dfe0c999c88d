"""Records as pandas tables."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import pandas as pd

from evaluator.timing.decision import Spread
from records.trial import Failed, Trial
from search.loop.finding import trial_spread
from search.loop.leader import study_leader
from search.settings import open_store, status
from search.views.format import remarks

STUDY_COLUMNS = ["study", "name", "objective", "strategy", "status", "created_at"]
TRIAL_COLUMNS = [
    *("ordinal", "author", "status", "score", "launches", "unit", "caveats", "failure_kind"),
    *("message", "started_at", "ended_at"),
]
"""Present whatever the trials hold; those of knobs and metrics follow."""


def studies(store: Path | str | None = None) -> pd.DataFrame:
    """One row per study, newest first; `store` is the folder of the records.

    Raises `StoreError` when there are none.
    """
    with open_store(_path(store)) as records:
        rows = [
            {
                "study": row.id,
                "name": row.study.name,
                "objective": row.study.objective.expression,
                "strategy": row.strategy,
                "status": status(row, records),
                "created_at": pd.Timestamp(row.created_at),
            }
            for row in records.studies()
        ]
    return pd.DataFrame(rows, columns=STUDY_COLUMNS)


def trials(study: str = "", store: Path | str | None = None) -> pd.DataFrame:
    """One row per trial of a study (the newest by default): config, result and every metric.

    Knobs are columns named `config.KNOB`, metrics `metric.NAME`; what does not exist is missing.
    Raises `StudyError` when there is no such study.
    """
    with open_store(_path(store)) as records:
        history = study_leader(records.find(study), records).history
    return framed([_columns(trial, trial_spread(trial, history)) for trial in history])


def framed(rows: Sequence[Mapping[str, object]]) -> pd.DataFrame:
    """A table of trials; knobs and metrics follow the columns that every table has."""
    own = [name for name in dict.fromkeys(chain.from_iterable(rows)) if name not in TRIAL_COLUMNS]
    return pd.DataFrame(rows, columns=[*TRIAL_COLUMNS, *sorted(own)])


def _columns(trial: Trial, result: Spread | None) -> dict[str, object]:
    failed = trial.outcome if isinstance(trial.outcome, Failed) else None
    row: dict[str, object] = {
        "ordinal": trial.ordinal,
        "author": trial.policy.author,
        "status": trial.outcome.status,
        "score": None if result is None else result.centre,
        "launches": None if result is None else result.launch_count,
        "unit": trial.score.unit if trial.score else None,
        "caveats": "; ".join(remarks(trial)) or None,
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


def _path(store: Path | str | None) -> Path | None:
    return None if store is None else Path(store)
