"""The traces of a trial on record, out of the files that were kept of it."""

from pathlib import Path

from evaluator.evaluate import evidence
from evaluator.metrics.base import Evidence
from records.errors import StudyError
from records.trial import Measured
from search.kept.files import require_kept
from search.kept.traces import read_kept, trace_files
from search.reading import recorded
from search.traces.traced import Traced


def traced_trial(which: str, store: Path | None) -> Traced:
    """The traces that trial `3` or `STUDY:3` left, with everything else that was measured in it.

    Raises StudyError where there is no such trial, it left no traces, or one is refused.
    """
    study_id, _, number = which.rpartition(":")
    if not number.isdecimal():
        raise StudyError(f"{which!r} names no trial; write trial:3 or trial:STUDY:3")
    ordinal = int(number)
    with recorded(store) as records:
        row = records.find(study_id)
        history = records.history(row.id)
        trial = history.find(ordinal)
        if trial is None:
            raise StudyError(f"study {row.id} has no trial {ordinal}; it has {len(history)}")
        outcome = trial.outcome
        paths = trace_files(row.study, outcome.artifacts, records.artifacts)
        names = set(paths.values())
        traces_left = [a for a in outcome.artifacts if a.name in names]
        require_kept(row.id, ordinal, traces_left, records)
    if not paths:
        raise StudyError(
            f"trial {ordinal} of study {row.id} left no traces; studies with "
            "[measure] profiled_steps above 0 have them in every measured trial"
        )
    name = f"trial {ordinal} of study {row.id}"
    traces = read_kept(paths, name)
    if isinstance(outcome, Measured):
        seen = evidence(row.study, outcome.measurement, traces)
    else:
        study = row.study
        seen = Evidence(traces=traces, workload=study.workload, environment=study.environment)
    return Traced(name=name, evidence=seen, traces=traces)
