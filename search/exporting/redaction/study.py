"""A whole study redacted: its records and, where they are wanted, its files."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from records.artifacts import Artifacts
from records.codec import with_texts
from records.entries import Entry, FilesRemoved, LaunchesRepeated, TrialBegun, TrialFinished
from records.trial import Artifact, Outcome, Trial
from search.exporting.asked import Exported
from search.exporting.bundle import artifacts_of
from search.exporting.redaction.files import redact_file
from search.exporting.redaction.names import launches
from search.exporting.redaction.traces import TraceChanges

MACHINE = "machine.json"
MOST_ROUNDS = 4
"""Names may be learnt from the last file read, and then all is read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redacted:
    """A redacted study: its records, where its redacted files are, and files that were left out.

    `left_out` says why, by the name of each file.
    """

    found: Exported
    artifacts: Artifacts
    left_out: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Where files are, and which of them may be missing; None is any."""

    artifacts: Artifacts
    forgiven: frozenset[str] | None

    def may_lack(self, digest: str) -> bool:
        """Whether a file is missing and need not be there."""
        is_forgiven = self.forgiven is None or digest in self.forgiven
        return is_forgiven and self.artifacts.size(digest) is None


def redacted_study(
    found: Exported,
    artifacts: Artifacts,
    changes: TraceChanges,
    scratch: Path,
    *,
    files: bool,
    allow_missing: bool,
) -> Redacted:
    """Redact records and, if asked, files, which come to lie under `scratch`.

    Conversations with a model are dropped. Raises `StoreError` for a file that is missing, unless
    that is allowed, or was removed for its space.
    """
    source = _Source(artifacts=artifacts, forgiven=None if allow_missing else _removed(found))
    for number in range(MOST_ROUNDS):
        kept = Artifacts(scratch / f"round{number}")
        left_out: dict[str, str] = {}
        refiled: dict[str, Artifact | None] = {}
        if files:
            for artifact in files_of(found):
                if artifact.digest not in refiled:
                    again = _again(artifact, source, kept, changes, scratch, left_out)
                    refiled[artifact.digest] = again
            changes.redactor.exact |= {
                digest: again.digest
                for digest, again in refiled.items()
                if again is not None and again.name == MACHINE
            }
        redacted = _redacted(found, changes, refiled)
        if not changes.redactor.learnt():
            break
    return Redacted(found=redacted, artifacts=kept, left_out=left_out)


def _removed(found: Exported) -> frozenset[str]:
    entries = (entry for entry in found.entries if isinstance(entry, FilesRemoved))
    return frozenset(digest for entry in entries for digest in entry.digests)


def files_of(found: Exported) -> Iterable[Artifact]:
    """The files of all trials and of their further launches, and what these were launched on."""
    for launched in launches(found):
        if launched.machine is not None:
            yield Artifact(name=MACHINE, digest=launched.machine, size_bytes=0)
    for trial in found.trials:
        yield from artifacts_of(trial.outcome)
    for repeat in found.repeats:
        yield from artifacts_of(repeat.outcome)


def _again(
    artifact: Artifact,
    source: "_Source",
    kept: Artifacts,
    changes: TraceChanges,
    scratch: Path,
    left_out: dict[str, str],
) -> Artifact | None:
    """The redacted file; None where it has to stay out."""
    plain, redacted = scratch / "plain", scratch / "redacted"
    if source.may_lack(artifact.digest):
        left_out[artifact.name] = "missing"
        return None
    source.artifacts.copy(artifact.digest, plain)
    why = redact_file(plain, artifact.name, redacted, changes)
    if why is not None:
        left_out[artifact.name] = why
        return None
    return kept.keep(redacted, artifact.name)


def _redacted(
    found: Exported, changes: TraceChanges, refiled: Mapping[str, Artifact | None]
) -> Exported:
    redactor = changes.redactor
    for trial in found.trials:
        source = redactor.text(trial.policy.source)
        redactor.exact[trial.policy.digest] = replace(trial.policy, source=source).digest
    return replace(
        found,
        row=with_texts(found.row, redactor.text),
        trials=tuple(
            with_texts(_refiled_trial(trial, refiled), redactor.text) for trial in found.trials
        ),
        repeats=tuple(
            with_texts(replace(repeat, outcome=_refiled(repeat.outcome, refiled)), redactor.text)
            for repeat in found.repeats
        ),
        entries=tuple(
            with_texts(_refiled_entry(entry, refiled), redactor.text) for entry in found.entries
        ),
    )


def _refiled_entry(entry: Entry, refiled: Mapping[str, Artifact | None]) -> Entry:
    match entry:
        case TrialFinished(trial=trial):
            return TrialFinished(trial=_refiled_trial(trial, refiled))
        case TrialBegun():
            return replace(entry, exchange=None, paid=None)
        case LaunchesRepeated(repeats=repeats):
            again = (replace(each, outcome=_refiled(each.outcome, refiled)) for each in repeats)
            return LaunchesRepeated(repeats=tuple(again))
        case _:
            return entry


def _refiled_trial(trial: Trial, refiled: Mapping[str, Artifact | None]) -> Trial:
    return replace(trial, outcome=_refiled(trial.outcome, refiled), exchange=None)


def _refiled(outcome: Outcome, refiled: Mapping[str, Artifact | None]) -> Outcome:
    """The outcome with its redacted files in the place of its own."""
    found = ((each, refiled.get(each.digest, each)) for each in outcome.artifacts)
    return replace(
        outcome,
        artifacts=tuple(
            replace(again, name=each.name) for each, again in found if again is not None
        ),
        contexts=tuple(
            replace(one, outcome=_refiled(one.outcome, refiled)) for one in outcome.contexts
        ),
    )
