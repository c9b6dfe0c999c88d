"""Artifact files of trials: read, copy, verify and remove them, and find the traces among them.

A trace that a record cites is removed only after the record says so: a process that is killed
between the two leaves a file that the next one removes, never a record that claims a missing file.
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeAlias

from records.errors import StoreError, StudyError, TraceError, shown
from records.store.artifacts import Artifacts, FileReference, StoredFile
from records.store.store import Store
from records.study import Study
from records.trial import CONTEXTS_FOLDER, Artifact

if TYPE_CHECKING:
    from evaluator.traces.model import TraceSet


POLICY = "policy.py"
"""The name under which a trial's policy is copied with its files."""
LONGEST_NAME, LONGEST_PART_BYTES = 1000, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Which files were copied, which of the others are gone on purpose, and which are at fault."""

    paths: tuple[Path, ...]
    removed: tuple[str, ...]
    faults: tuple[str, ...]


def absence(study_id: str, digest: str, records: Store) -> str | None:
    """Why a kept file is not there, in words that follow its name; None where it is."""
    if records.artifacts.size(digest) is not None:
        return None
    removal = records.citations.removal(study_id, digest)
    if removal is not None:
        return f"was removed by gc on {removal.removed_at[:10]} ({removal.rule})"
    return f"is missing from {records.root / 'artifacts'}; restore it from a copy of the store"


def require_files(
    study_id: str, ordinal: int, artifacts: Iterable[Artifact], records: Store
) -> None:
    """Read files through; raises for the first that is not there, or not what was kept.

    That is `StudyError` for one that was removed on purpose, else `StoreError`.
    """
    for artifact in artifacts:
        whose = f"trial {ordinal} of study {study_id}: {artifact.name}"
        why = absence(study_id, artifact.digest, records)
        if why is not None:
            is_removed = records.citations.removal(study_id, artifact.digest) is not None
            raise (StudyError if is_removed else StoreError)(f"{whose} {why}")
        try:
            records.artifacts.check(artifact.digest, artifact.size_bytes)
        except StoreError as error:
            raise StoreError(f"{whose}: {error}") from error


def stored_text(study_id: str, ordinal: int, artifact: Artifact, records: Store) -> str:
    """What a file of a trial says; raises as `require_files`."""
    require_files(study_id, ordinal, [artifact], records)
    content = records.artifacts.read(artifact.digest, artifact.size_bytes)
    return content.decode(errors="replace").rstrip()


def copy_files(
    study_id: str, ordinal: int, artifacts: Sequence[Artifact], folder: Path, records: Store
) -> Copies:
    """Copy what is there of a trial's files into a folder, under the names that it gave them."""
    paths: list[Path] = []
    removed: list[str] = []
    faults: list[str] = []
    for artifact in artifacts:
        path, whose = folder / artifact.name, f"trial {ordinal}"
        try:
            if not is_inside(artifact.name):
                raise StoreError(
                    f"{whose}: {shown(artifact.name)} is not the name of a file in a folder"
                )
            if path in (folder / POLICY, *paths):
                raise StoreError(f"{whose}: {artifact.name} is the name of another file there")
            require_files(study_id, ordinal, [artifact], records)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                records.artifacts.copy(artifact.digest, path, artifact.size_bytes)
            except (OSError, StoreError) as error:
                raise StoreError(f"cannot copy {artifact.name} of {whose}: {error}") from error
            paths.append(path)
        except StudyError as error:
            removed.append(str(error))
        except StoreError as error:
            faults.append(str(error))
    return Copies(paths=tuple(paths), removed=tuple(removed), faults=tuple(faults))


def is_inside(name: str) -> bool:
    """Whether a name leads to a place inside the folder that the file is copied to.

    It holds no character that could steer a terminal, and is of a length that file systems take.
    """
    path = PurePosixPath(name)
    fits = len(name) <= LONGEST_NAME and all(
        len(part.encode(errors="replace")) <= LONGEST_PART_BYTES for part in path.parts
    )
    inside = bool(path.parts) and not path.is_absolute() and ".." not in path.parts
    return inside and fits and name.isprintable()


MOST_THREADS = 8
OnFile: TypeAlias = Callable[[int, int], None]
"""Receives how many files of how many were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A kept file that is not what it was, or not there, and who cites it, if anybody does.

    `cited_by` holds study, trial and the name that the trial gave the file.
    """

    digest: str
    what: str
    cited_by: tuple[tuple[str, int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """How many files were read, what they take on disk, and what is wrong."""

    file_count: int
    disk_bytes: int
    removed_count: int
    faults: tuple[Fault, ...]


def verify_files(records: Store, on_file: OnFile = lambda _done, _total: None) -> Verified:
    """Compare every file with its digest, and every record with the files that are there."""
    files = list(records.artifacts.all())
    there = {kept.digest for kept in files}
    removed = {(removal.study_id, removal.digest) for removal in records.citations.removals()}
    sizes = {
        each.digest: each.size_bytes
        for each in records.citations.all()
        if each.digest in there and each.size_bytes is not None
    }
    wrong: dict[str, str] = {}
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as threads:
        found = threads.map(
            lambda kept: _fault(kept.digest, sizes.get(kept.digest), records), files
        )
        for done, (kept, what) in enumerate(zip(files, found, strict=True), 1):
            if what is not None:
                wrong[kept.digest] = what
            on_file(done, len(files))
    cited_by: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
    for each in records.citations.all():
        if each.digest not in there and (each.study_id, each.digest) not in removed:
            wrong[each.digest] = f"artifact {each.digest} is missing"
        if each.digest in wrong:
            cited_by[each.digest].append((each.study_id, each.ordinal, each.name))
    return Verified(
        file_count=len(files),
        disk_bytes=sum(kept.disk_bytes for kept in files),
        removed_count=len({digest for _, digest in removed} - there),
        faults=tuple(
            Fault(digest=digest, what=what, cited_by=tuple(cited_by[digest]))
            for digest, what in wrong.items()
        ),
    )


def _fault(digest: str, size_bytes: int | None, records: Store) -> str | None:
    try:
        records.artifacts.check(digest, size_bytes)
    except StoreError as error:
        return str(error)
    return None


BUILTIN_TRACES = ("rank*_trace.json", "rank*_trace.json.gz", "node*.columns")


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
        from evaluator.recipes.command import TRACE_FOLDER  # brings what estimates a step
        from evaluator.recipes.script_output import REDUCED

        names = (*study.command.trace_files, REDUCED)
        patterns = tuple(f"{TRACE_FOLDER}/{name}" for name in names)
    path = PurePosixPath(name)
    return path.name != "steps.json" and any(path.match(pattern) for pattern in patterns)


def _context_of(artifact: Artifact, study: Study) -> str | None:
    """The name of the context whose launch left a file; None for the study's own."""
    if not study.contexts:
        return None
    folder, *inner = PurePosixPath(artifact.name).parts
    return inner[0] if folder == CONTEXTS_FOLDER and inner else None


def read_stored_traces(paths: Mapping[Path, str], whose: str) -> "TraceSet":
    """Traces out of the record; an error names the file as the trial called it."""
    from evaluator.traces.readers.read import read_traces

    try:
        return read_traces(list(paths), only_rank=0 if len(paths) == 1 else None)
    except TraceError as error:
        message = str(error)
        for path, name in paths.items():
            message = message.replace(str(path), name)
        raise StudyError(f"{whose}: {message}") from error


SAFE_AGE_S = 86_400.0
"""A file that no record cites may belong to a running trial; it is kept for a day."""
AT_ONCE = 10_000
_CLOCK_STEP_S = 1e-3
"""Recorded instants are cut to milliseconds, those of files are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Which traces that records cite may go, and the words in which the records will tell it.

    Those of the best `keep_best` trials of each study stay, whatever the other rules say; of the
    others those go that are older than `older_than`, and the oldest until all files together take
    no more than `max_bytes`. Where only `keep_best` is given, all others go.
    """

    older_than: timedelta | None = None
    keep_best: int | None = None
    max_bytes: int | None = None
    words: str = ""

    @property
    def is_any(self) -> bool:
        """Whether any is given."""
        return (self.older_than, self.keep_best, self.max_bytes) != (None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A stored trace that the rules let go, and every record that cites it."""

    kept: StoredFile
    cited: tuple[FileReference, ...]

    @property
    def ended_s(self) -> float:
        """When the last of the trials that cite it ended, in seconds since 1970."""
        return max(
            self.kept.kept_at_s if (ended := _instant(each.ended_at)) is None else ended
            for each in self.cited
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What can go: files that no record cites, files whose removal is recorded, and traces.

    `young` is what no record cites yet: a trial under way may do so. `disk_bytes` is what all
    stored files take.
    """

    orphans: tuple[StoredFile, ...]
    young: tuple[StoredFile, ...]
    unfinished: tuple[tuple[StoredFile, float], ...]
    """With the instant before which each must have been kept: who keeps it again wants it."""
    traces: tuple[Trace, ...]
    disk_bytes: int
    rules: Rules = field(default_factory=Rules)


def plan_removal(records: Store, rules: Rules, safe_age_s: float = SAFE_AGE_S) -> Plan:
    """Look what can go; nothing is changed."""
    files = list(records.artifacts.all())
    cited: dict[str, list[FileReference]] = defaultdict(list)
    for each in records.citations.all():
        cited[each.digest].append(each)
    uncited = records.citations.uncited({kept.digest for kept in files} - cited.keys())
    loose = [*records.artifacts.leftovers(), *(kept for kept in files if kept.digest in uncited)]
    safe_s = time.time() - safe_age_s
    unfinished = _unfinished(records, files, cited)
    gone = {*uncited, *(kept.digest for kept, _ in unfinished)}
    traces: Sequence[Trace] = ()
    if rules.is_any:
        staying = [kept for kept in files if kept.digest not in gone]
        traces = _chosen(records, staying, cited, rules)
    return Plan(
        orphans=tuple(kept for kept in loose if kept.kept_at_s < safe_s),
        young=tuple(kept for kept in loose if kept.kept_at_s >= safe_s),
        unfinished=tuple(unfinished),
        traces=tuple(traces),
        disk_bytes=sum(kept.disk_bytes for kept in files),
        rules=rules,
    )


def collect(records: Store, plan: Plan, safe_age_s: float = SAFE_AGE_S) -> tuple[int, int]:
    """Remove what a plan says, and give how many files went and how many bytes they took.

    Raises `StoreError` where that cannot be recorded or done.
    """
    safe_s = time.time() - safe_age_s
    removable = [(kept, safe_s) for kept in plan.orphans]
    removable += plan.unfinished
    by_study: dict[str, list[str]] = defaultdict(list)
    for trace in plan.traces:
        for study_id in {each.study_id for each in trace.cited}:
            by_study[study_id].append(trace.kept.digest)
    removed_at = min(
        (
            records.remove_files(study_id, digests[start : start + AT_ONCE], plan.rules.words)
            for study_id, digests in sorted(by_study.items())
            for start in range(0, len(digests), AT_ONCE)
        ),
        default="",
    )
    removable += [(trace.kept, _before_s(removed_at)) for trace in plan.traces]
    gone = [kept for kept, before_s in removable if records.artifacts.remove(kept, before_s)]
    return len(gone), sum(kept.disk_bytes for kept in gone)


def _unfinished(
    records: Store, files: Iterable[StoredFile], cited: Mapping[str, Sequence[FileReference]]
) -> list[tuple[StoredFile, float]]:
    """Files that are there though every study that cites them says that they were removed."""
    removals: dict[str, dict[str, str]] = defaultdict(dict)
    for removal in records.citations.removals():
        removals[removal.digest][removal.study_id] = removal.removed_at
    found: list[tuple[StoredFile, float]] = []
    for kept in files:
        removed_at = removals.get(kept.digest, {})
        if removed_at and all(each.study_id in removed_at for each in cited.get(kept.digest, ())):
            before_s = _before_s(min(removed_at.values()))
            if kept.kept_at_s < before_s:
                found.append((kept, before_s))
    return found


def _chosen(
    records: Store,
    files: Sequence[StoredFile],
    cited: Mapping[str, Sequence[FileReference]],
    rules: Rules,
) -> Sequence[Trace]:
    """The traces that the rules let go, the oldest first."""
    studies = {row.id: row.study for row in records.studies()}
    best = {
        study_id: set(records.leading(study_id, rules.keep_best)) if rules.keep_best else set()
        for study_id in studies
    }
    traces = sorted(
        (
            Trace(kept=kept, cited=tuple(cited[kept.digest]))
            for kept in files
            if cited[kept.digest]
            and all(
                is_trace(each.name, studies[each.study_id])
                and each.ordinal not in best[each.study_id]
                for each in cited[kept.digest]
            )
        ),
        key=lambda trace: trace.ended_s,
    )
    if rules.older_than is None and rules.max_bytes is None:
        return traces
    now_s, left_bytes = time.time(), sum(kept.disk_bytes for kept in files)
    chosen: list[Trace] = []
    for trace in traces:
        age = timedelta(seconds=now_s - trace.ended_s)
        is_old = rules.older_than is not None and age > rules.older_than
        if is_old or (rules.max_bytes is not None and left_bytes > rules.max_bytes):
            chosen.append(trace)
            left_bytes -= trace.kept.disk_bytes
    return chosen


def _before_s(removed_at: str) -> float:
    return (_instant(removed_at) or 0.0) + _CLOCK_STEP_S


def _instant(text: str | None) -> float | None:
    """Seconds since 1970; None for what is no instant, as a trial from elsewhere may have."""
    try:
        instant = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()
