"""The traces of a trial on record, out of the files that were kept of it."""

from pathlib import Path, PurePosixPath

from evaluator.evaluate import evidence
from evaluator.metrics.base import Evidence
from evaluator.readers.job import read_traces
from evaluator.recipes.command import TRACE_FOLDER
from evaluator.traces.errors import TraceError
from evaluator.traces.job import TraceSet
from records.errors import StudyError
from records.store import Store
from records.study import Study
from records.trial import Artifact, Measured
from search.context_launches import FOLDER
from search.reading import recorded
from search.traced import Traced

BUILTIN_TRACES = ("rank*_trace.json.gz",)


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
        paths = _trace_files(row.study, outcome.artifacts, records)
    if not paths:
        raise StudyError(
            f"trial {ordinal} of study {row.id} left no traces; studies with "
            "[measure] profiled_steps above 0 have them in every measured trial"
        )
    name = f"trial {ordinal} of study {row.id}"
    traces = _read(paths, name)
    if isinstance(outcome, Measured):
        seen = evidence(row.study, outcome.measurement, traces)
    else:
        study = row.study
        seen = Evidence(traces=traces, workload=study.workload, environment=study.environment)
    return Traced(name=name, evidence=seen, traces=traces)


def _trace_files(study: Study, artifacts: tuple[Artifact, ...], records: Store) -> dict[Path, str]:
    """Where the traces among a trial's files lie, and what they are called."""
    patterns: tuple[str, ...] = BUILTIN_TRACES
    if study.command is not None:
        patterns = tuple(f"{TRACE_FOLDER}/{pattern}" for pattern in study.command.trace_files)
    return {
        records.artifacts.path(artifact.digest): artifact.name
        for artifact in artifacts
        if PurePosixPath(artifact.name).name != "steps.json"
        and not (study.contexts and PurePosixPath(artifact.name).is_relative_to(FOLDER))
        and any(PurePosixPath(artifact.name).match(pattern) for pattern in patterns)
    }


def _read(paths: dict[Path, str], whose: str) -> TraceSet:
    """Traces out of the record; an error names the file as the trial called it."""
    try:
        return read_traces(list(paths), only_rank=0 if len(paths) == 1 else None)
    except TraceError as error:
        message = str(error)
        for path, name in paths.items():
            message = message.replace(str(path), name)
        raise StudyError(f"{whose}: {message}") from error
