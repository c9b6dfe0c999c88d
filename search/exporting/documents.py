"""A trial as one JSON object: all that is on record of it, under names that stay."""

import json

from records.codec import to_json
from records.trial import Failed, Measured, Trial
from search.exporting.asked import Exported
from search.words.trial import remarks

FORMAT = "cclsearch.trial/1"


def trial_documents(found: Exported) -> list[dict[str, object]]:
    """One object per trial, oldest first; what does not exist is null, never NaN."""
    return [_document(trial, found) for trial in found.trials]


def _document(trial: Trial, found: Exported) -> dict[str, object]:
    study, outcome = found.row.study, trial.outcome
    failed = outcome if isinstance(outcome, Failed) else None
    return {
        "format": FORMAT,
        "study_id": found.row.id,
        "study_name": study.name,
        "objective": study.objective.expression,
        "ordinal": trial.ordinal,
        "status": outcome.status,
        "author": trial.policy.author,
        "policy_digest": trial.policy.digest,
        "policy_parent": trial.policy.parent,
        "policy_source": trial.policy.source,
        "rationale": trial.policy.rationale,
        "config": dict(trial.config.values) if trial.config else None,
        "config_digest": trial.config.digest if trial.config else None,
        "score": json.loads(to_json(trial.score)) if trial.score else None,
        "failure_stage": failed.stage.value if failed else None,
        "failure_kind": failed.kind.value if failed else None,
        "failure_message": failed.message if failed else None,
        "caveats": list(remarks(trial)),
        "metrics": [json.loads(to_json(value)) for value in found.metrics[trial.ordinal]],
        "absent_metrics": dict(outcome.absent) if isinstance(outcome, Measured) else {},
        "outcome": json.loads(to_json(outcome)),
        "repeats": [
            json.loads(to_json(each)) for each in found.repeats if each.ordinal == trial.ordinal
        ],
        "attempts": trial.attempts,
        "exchange": trial.exchange,
        "started_at": trial.started_at,
        "ended_at": trial.ended_at,
    }
