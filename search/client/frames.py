"""Trials of a service as pandas tables, in the columns of `cclsearch.trials`."""

from collections.abc import Iterable

import pandas as pd

from search.service.models import TrialShort
from search.views.frames import trial_table


def trial_frame(trials: Iterable[TrialShort]) -> pd.DataFrame:
    """One row per trial, as `cclsearch.trials` has it."""
    return trial_table((_summary(each), each.config or {}, each.metrics) for each in trials)


def _summary(trial: TrialShort) -> dict[str, object]:
    score = trial.score
    remarks = (*trial.broken_limits, *(score.caveats if score else ()))
    return {
        **trial.model_dump(),
        "score": score.value if score else None,
        "launches": score.launches if score else None,
        "unit": score.unit if score else None,
        "caveats": "; ".join(remarks) or None,
    }
