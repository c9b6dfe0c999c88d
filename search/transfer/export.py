"""Export of a study: selection, redaction, and files that are complete or not written."""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from evaluator.traces.readers.files import LARGE_LIMITS, pieces
from records.codec import to_json
from records.errors import StoreError, StudyError
from records.store.artifacts import Artifacts
from records.store.journal import fsync_path, with_study
from records.store.rows import StudyRow
from records.store.store import Store
from records.trial import Outcome, Policy, Repeat, Trial
from search.loop.study_result import leader_of, trials_named
from search.settings import installed_version
from search.transfer.bundle import write_bundle
from search.transfer.ccl_bench import (
    CARD,
    Checks,
    card_checks,
    card_of,
    is_json,
    traces_of,
    trial_checks,
    write_entry,
)
from search.transfer.redact import Redactor, check_redacted, files_of, known_names, redacted_study
from search.transfer.script import launch_script
from search.transfer.tables import (
    StudyExport,
    is_trace,
    trial_documents,
    write_csv,
    write_jsonl,
    write_parquet,
)
from search.transfer.trust import plain_study
from search.views.machine import machine_of

Form: TypeAlias = Literal["jsonl", "csv", "parquet", "entry", "bundle"]
SUFFIX = ".cclsearch"
WITH_FILES = ("entry", "bundle")
TABLES = {"jsonl": write_jsonl, "csv": write_csv, "parquet": write_parquet}


@dataclass(frozen=True, slots=True, kw_only=True)
class Omissions:
    """What stays at home: files with traces, or everything but configurations and results."""

    traces: bool = False
    all_but_metrics: bool = False


def study_export(
    row: StudyRow,
    store: Store,
    leaving: Omissions,
    ordinals: frozenset[int] | None = None,
    *,
    entries: bool = False,
) -> StudyExport:
    """All of a study, or these trials of it with their further launches."""

    def is_asked(one: Trial | Repeat) -> bool:
        return ordinals is None or one.ordinal in ordinals

    trials = tuple(filter(is_asked, store.history(row.id)))
    later = store.metric_values(row.id)
    found = StudyExport(
        row=row,
        trials=trials,
        repeats=tuple(filter(is_asked, store.repeats(row.id))),
        metrics={trial.ordinal: later.get(trial.ordinal, ()) for trial in trials},
        entries=tuple(with_study(entry, plain_study) for entry in store.entries(row.id))
        if entries
        else (),
    )
    if leaving.all_but_metrics:
        return found.changed(_without_files, _lean_policy, exchanges=False)
    return found.changed(_without_traces) if leaving.traces else found


def _lean_policy(policy: Policy) -> Policy:
    """Of the text only its digest stays, in a comment: so that policies differ as they did."""
    source = f"# This policy was left out. Its SHA-256 is {policy.digest}.\n"
    return replace(policy, source=source, parent=None, rationale="", prediction=None)


def _without_files(outcome: Outcome) -> Outcome:
    return replace(outcome, artifacts=(), launched=None)


def _without_traces(outcome: Outcome) -> Outcome:
    kept = (each for each in outcome.artifacts if not is_trace(each.name))
    return replace(outcome, artifacts=tuple(kept))


@contextmanager
def replaced(path: Path, *, force: bool, mark: str | None = None) -> Iterator[Path]:
    """Yield where to write what gets this name at the end, and is gone on any error.

    It is a file or, with a `mark`, a folder; with `force` it replaces what is there, but no folder
    without a file called `mark`. Raises `StudyError` when the name is taken, `StoreError` when
    nothing can be written there.
    """
    if mark is None and path.is_dir():
        raise StudyError(f"{path} is a folder; name a file with -o")
    is_taken = path.exists() and (not path.is_dir() or any(path.iterdir()))
    if is_taken and not force:
        raise StudyError(
            f"{path} is there already; give --force to replace it, or another name with -o"
        )
    if is_taken and mark is not None and not (path / mark).is_file():
        raise StudyError(f"{path} holds something else, no {mark}; give another with -o")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
            new = Path(folder) / "new"
            yield new
            if path.is_dir():
                path.replace(Path(folder) / "old")
            new.replace(path)
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror or error}; free space, or give another with -o"
        ) from error


def suffix_of(form: Form) -> str:
    """What the name of an export ends in."""
    return {"entry": "", "bundle": SUFFIX}.get(form, f".{form}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """How a study is to be exported, and where to.

    `trial` is a number, `best`, `seed`, or None for all. `given` fills fields of a card.
    `incomplete` is whether an entry is written that breaks a rule.
    """

    form: Form
    to: Path
    leaving: Omissions
    trial: str | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    force: bool = False
    allow_missing: bool = False
    incomplete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """What was exported; `left_out` says why a file stayed at home, by its name."""

    path: Path
    trials: int
    missing: tuple[str, ...]
    left_out: Mapping[str, str]
    notes: tuple[str, ...]
    checks: Checks


def export(
    row: StudyRow, store: Store, wanted: ExportRequest, redactor: Redactor | None
) -> ExportResult:
    """Write an export, complete or not at all; a `redactor` redacts it, and the result is checked.

    Raise `StudyError` for an impossible export, `StoreError` for what cannot be read or written.
    """
    found, artifacts = _found(row, store, wanted), store.artifacts
    card: Mapping[str, object] = {}
    left_out: Mapping[str, str] = {}
    script = ""
    if wanted.form == "entry":
        card = _card(found, store, wanted)
        if found.trials[0].outcome.launched is not None:
            script = launch_script(found.trials[0], row, store)
    with tempfile.TemporaryDirectory(prefix="cclsearch-export-") as scratch:
        if redactor is not None:
            found, artifacts, left_out = redacted_study(
                found,
                artifacts,
                redactor,
                Path(scratch),
                files=wanted.form in WITH_FILES,
                allow_missing=wanted.allow_missing,
            )
            if card:
                card = {name: redactor.value(value) for name, value in card.items()}
                card |= {"contributor": "redacted", "contact": "redacted"}
            script = redactor.text(script)
            _require_redacted(found, artifacts, card, script, redactor)
        notes = tuple(_notes(wanted.leaving, redactor))
        checks = _checks(found, card) if card else {}
        if card:
            missing = _write_entry(found, artifacts, card, checks, script, wanted)
        else:
            missing = _write_file(found, artifacts, wanted, notes)
    return ExportResult(
        path=wanted.to,
        trials=len(found.trials),
        missing=missing,
        left_out=left_out,
        notes=notes,
        checks=checks,
    )


def redactor_of(
    row: StudyRow, store: Store, hosts: Iterable[str], users: Iterable[str]
) -> Redactor:
    """The redactor for the names in how a study's trials were launched, and those given."""
    return Redactor(known_names(study_export(row, store, Omissions()), store, hosts, users))


def entry_checks(row: StudyRow, store: Store, wanted: ExportRequest) -> Checks:
    """The rules for an entry, with what breaks them; nothing is written."""
    found = _found(row, store, wanted)
    return _checks(found, _card(found, store, wanted))


def _found(row: StudyRow, store: Store, wanted: ExportRequest) -> StudyExport:
    is_whole = wanted.form == "bundle"
    if is_whole and wanted.trial is not None:
        raise StudyError("a bundle holds a whole study; leave --trial out")
    asked = wanted.trial or ("best" if wanted.form == "entry" else None)
    ordinals = None
    if asked is not None:
        best = leader_of(row, store) if asked == "best" else None
        named = trials_named(asked, store.history(row.id), best, row.id)
        if wanted.form == "entry" and len(named) > 1:
            raise StudyError("an entry holds one trial; give --trial a number, best or seed")
        ordinals = frozenset(trial.ordinal for trial in named)
    return study_export(row, store, wanted.leaving, ordinals, entries=is_whole)


def _card(found: StudyExport, store: Store, wanted: ExportRequest) -> dict[str, object]:
    (trial,) = found.trials
    machine = machine_of(trial.outcome.launched, store)
    return card_of(found.row.study, trial, found.row.id, machine, wanted.given)


def _checks(found: StudyExport, card: Mapping[str, object]) -> Checks:
    (trial,) = found.trials
    traces = [each for each in traces_of(trial) if is_json(each.name)]
    return {**card_checks(card), **trial_checks(found.row.study, trial, len(traces))}


def _require_redacted(
    found: StudyExport,
    artifacts: Artifacts,
    card: Mapping[str, object],
    script: str,
    redactor: Redactor,
) -> None:
    texts = [script, json.dumps(card, ensure_ascii=False)]
    texts += (json.dumps(each, ensure_ascii=False) for each in trial_documents(found))
    texts += map(to_json, found.entries)
    encoded = (text.encode("utf-8", "backslashreplace") for text in texts)
    check_redacted("the export", encoded, redactor.known)
    for artifact in files_of(found):
        if artifacts.size(artifact.digest) is not None:
            content = pieces(artifacts.path(artifact.digest), LARGE_LIMITS)
            check_redacted(artifact.name, content, redactor.known)


def _write_file(
    found: StudyExport, artifacts: Artifacts, wanted: ExportRequest, notes: tuple[str, ...]
) -> tuple[str, ...]:
    """Write a table or a bundle; return the names of missing files."""
    missing: tuple[str, ...] = ()
    with replaced(wanted.to, force=wanted.force) as new:
        with new.open("wb") as out:
            if wanted.form == "bundle":
                manifest = write_bundle(
                    out,
                    found.entries,
                    artifacts,
                    study_id=found.row.id,
                    study_name=found.row.study.name,
                    made_by=installed_version(),
                    notes=notes,
                    allow_missing=wanted.allow_missing,
                )
                missing = manifest.missing
            else:
                TABLES[wanted.form](trial_documents(found), out)
        fsync_path(new)
    return missing


def _write_entry(
    found: StudyExport,
    artifacts: Artifacts,
    card: Mapping[str, object],
    checks: Checks,
    script: str,
    wanted: ExportRequest,
) -> tuple[str, ...]:
    broken = {name: faults for name, faults in checks.items() if faults}
    if broken and not wanted.incomplete:
        words = "; ".join(f"{name}: {', '.join(faults)}" for name, faults in broken.items())
        raise StudyError(f"not written: {words}; --incomplete writes it with these listed")
    with replaced(wanted.to, force=wanted.force, mark=CARD) as folder:
        return write_entry(
            found, card, checks, artifacts, script, folder, allow_missing=wanted.allow_missing
        )


def _notes(leaving: Omissions, redactor: Redactor | None) -> Iterator[str]:
    if leaving.all_but_metrics:
        yield "files, conversations and the texts of policies were left out"
    elif leaving.traces:
        yield "traces were left out"
    if redactor is None:
        return
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(redactor.counts.items()))
    yield f"redacted: {told or 'nothing was found'}; conversations were left out"
