"""The traces among the files that were kept of a trial: which they are, and what is in them."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from evaluator.readers.job import read_traces
from evaluator.recipes.command import TRACE_FOLDER
from evaluator.traces.errors import TraceError
from evaluator.traces.job import TraceSet
from records.artifacts import Artifacts
from records.errors import StudyError
from records.study import Study
from records.trial import Artifact

BUILTIN_TRACES = ("rank*_trace.json", "rank*_trace.json.gz")


def trace_files(
    study: Study, artifacts: Sequence[Artifact], kept: Artifacts, context: str | None = None
) -> dict[Path, str]:
    """Where the traces among a trial's files lie, and what they are called.

    Of a study with contexts those of its own, or of the one that is named.
    """
    return {
        kept.path(artifact.digest): artifact.name
        for artifact in artifacts
        if is_trace(artifact.name, study) and _context_of(artifact, study) == context
    }


def is_trace(name: str, study: Study) -> bool:
    """Whether a file that a launch of a study left is a trace, by what it is called."""
    patterns: tuple[str, ...] = BUILTIN_TRACES
    if study.command is not None:
        patterns = tuple(f"{TRACE_FOLDER}/{pattern}" for pattern in study.command.trace_files)
    path = PurePosixPath(name)
    return path.name != "steps.json" and any(path.match(pattern) for pattern in patterns)


def _context_of(artifact: Artifact, study: Study) -> str | None:
    """The name of the context whose launch left a file; None for the study's own."""
    if not study.contexts:
        return None
    # Imported here: what launches in contexts takes longer to load than most traces to read.
    from search.context_launches import FOLDER

    folder, *inner = PurePosixPath(artifact.name).parts
    return inner[0] if folder == FOLDER and inner else None


def read_kept(paths: Mapping[Path, str], whose: str) -> TraceSet:
    """Traces out of the record; an error names the file as the trial called it."""
    try:
        return read_traces(list(paths), only_rank=0 if len(paths) == 1 else None)
    except TraceError as error:
        message = str(error)
        for path, name in paths.items():
            message = message.replace(str(path), name)
        raise StudyError(f"{whose}: {message}") from error
