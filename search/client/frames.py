"""Trials that a service told as pandas tables, in the columns that records have here."""

from collections.abc import Iterable

import pandas as pd

from search.service.models import TrialShort
from search.views.frames import framed


def trial_frame(trials: Iterable[TrialShort]) -> pd.DataFrame:
    """One row per trial, as `cclsearch.trials` has it."""
    return framed([_columns(trial) for trial in trials])


def _columns(trial: TrialShort) -> dict[str, object]:
    score = trial.score
    remarks = (*trial.broken_limits, *(score.caveats if score else ()))
    row: dict[str, object] = {
        "ordinal": trial.ordinal,
        "author": trial.author,
        "status": trial.status,
        "score": score.value if score else None,
        "launches": score.launches if score else None,
        "unit": score.unit if score else None,
        "caveats": "; ".join(remarks) or None,
        "failure_kind": trial.failure_kind,
        "message": trial.message,
        "started_at": pd.Timestamp(trial.started_at),
        "ended_at": pd.Timestamp(trial.ended_at),
    }
    row |= {f"config.{knob}": value for knob, value in (trial.config or {}).items()}
    return row | {f"metric.{name}": value for name, value in trial.metrics.items()}
