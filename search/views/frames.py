"""Records as pandas tables."""

from collections.abc import Iterable, Mapping
from itertools import chain, repeat
from pathlib import Path

import pandas as pd

from records.trial import History, Measured, Trial
from search.loop.leader import study_leader
from search.loop.study_result import trial_spread
from search.settings import open_store, status
from search.views.format import remarks
from search.views.trial import NUMBERS, trial_facts

STUDY_COLUMNS = ["study", "name", "objective", "strategy", "status", "created_at"]
TRIAL_COLUMNS = [
    *("ordinal", "author", "status", "score", "launches", "unit", "caveats", "failure_kind"),
    *("message", "started_at", "ended_at"),
    *(fact.key for fact in NUMBERS),
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
    return trial_table(map(_columns, history, repeat(history)))


def _columns(
    trial: Trial, history: History
) -> tuple[dict[str, object], Mapping[str, object], Mapping[str, object]]:
    facts = trial_facts(trial, trial_spread(trial, history))
    metrics = trial.outcome.metrics if isinstance(trial.outcome, Measured) else ()
    return (
        {**facts, "caveats": "; ".join(remarks(trial)) or None},
        trial.config.values if trial.config is not None else {},
        {each.name: each.value for each in metrics},
    )


def trial_table(
    trials: Iterable[tuple[Mapping[str, object], Mapping[str, object], Mapping[str, object]]],
) -> pd.DataFrame:
    """A table of trials by their facts, settings and metrics, which follow in this order."""
    rows = [
        {name: facts.get(name) for name in TRIAL_COLUMNS}
        | {name: pd.Timestamp(str(facts[name])) for name in ("started_at", "ended_at")}
        | {f"config.{knob}": value for knob, value in config.items()}
        | {f"metric.{name}": value for name, value in metrics.items()}
        for facts, config, metrics in trials
    ]
    own = set(chain.from_iterable(rows)) - set(TRIAL_COLUMNS)
    return pd.DataFrame(rows, columns=[*TRIAL_COLUMNS, *sorted(own)])


def _path(store: Path | str | None) -> Path | None:
    return None if store is None else Path(store)
