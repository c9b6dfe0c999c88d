"""Export of a study: selection, redaction, and files that are complete or not written."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

from evaluator.traces.readers.files import LARGE_LIMITS, pieces
from records.codec import to_json
from records.errors import StoreError, StudyError
from records.store.artifacts import Artifacts
from records.store.journal import with_study
from records.store.rows import StudyRow
from records.store.store import Store
from records.trial import Outcome, Policy, Repeat, Trial
from search.loop.study_result import leader_of
from search.transfer.bundle import write_bundle
from search.transfer.ccl_bench import (
    CARD,
    Checks,
    card_checks,
    card_of,
    is_json,
    traces_of,
    trial_checks,
    trial_documents,
    write_entry,
)
from search.transfer.redact import (
    Redactor,
    check_redacted,
    files_of,
    known_names,
    redacted_study,
)
from search.transfer.script import launch_script
from search.transfer.tables import (
    StudyExport,
    is_trace,
    write_csv,
    write_jsonl,
    write_parquet,
)
from search.transfer.trust import plain_study


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
        return found.changed(
            lambda outcome: replace(outcome, artifacts=(), launched=None),
            _lean_policy,
            exchanges=False,
        )
    if leaving.traces:
        return found.changed(_without_traces)
    return found


def _lean_policy(policy: Policy) -> Policy:
    """Of the text only its digest stays, in a comment: so that policies differ as they did."""
    source = f"# This policy was left out. Its SHA-256 is {policy.digest}.\n"
    return replace(policy, source=source, parent=None, rationale="", prediction=None)


def _without_traces(outcome: Outcome) -> Outcome:
    kept = (each for each in outcome.artifacts if not is_trace(each.name))
    return replace(outcome, artifacts=tuple(kept))


@contextmanager
def whole_file(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """A file to write and to read back, that gets its name at the end and is gone on any error.

    Raises `StudyError` when the name is taken and `force` is not given, `StoreError` when nothing
    can be written there.
    """
    if path.is_dir():
        raise StudyError(f"{path} is a folder; name a file with -o")
    if path.exists() and not force:
        raise StudyError(_taken(path))
    with _refusals(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with _refusals(path), os.fdopen(handle, "w+b") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
            os.fchmod(out.fileno(), 0o644)
        with _refusals(path):
            Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path, *, mark: str, force: bool) -> Iterator[Path]:
    """A folder to fill, that gets its name at the end and is gone on any error.

    With `force` it replaces a folder that holds a file called `mark`, and none that holds others'
    files. Raises as `whole_file`.
    """
    there = path.exists() and (not path.is_dir() or any(path.iterdir()))
    if there and not force:
        raise StudyError(_taken(path))
    if there and not (path / mark).is_file():
        raise StudyError(f"{path} holds something else, no {mark}; give another with -o")
    with _refusals(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
    try:
        with _refusals(path):
            yield temporary / "new"
            (temporary / "new").chmod(0o755)
            if path.exists():
                path.replace(temporary / "old")
            (temporary / "new").replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _taken(path: Path) -> str:
    return f"{path} is there already; give --force to replace it, or another name with -o"


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror or error}; free space, or give another with -o"
        ) from error


Form: TypeAlias = Literal["jsonl", "csv", "parquet", "entry", "bundle"]
SUFFIX = ".cclsearch"
WITH_FILES = ("entry", "bundle")
TABLES = {"jsonl": write_jsonl, "csv": write_csv, "parquet": write_parquet}


def suffix_of(form: Form) -> str:
    """What the name of an export ends in."""
    return {"entry": "", "bundle": SUFFIX}.get(form, f".{form}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """How a study is to be exported, and where to.

    `trial` is a number, `best`, or None for all. `given` fills fields of a card. `incomplete` is
    whether an entry is written that breaks a rule.
    """

    form: Form
    to: Path
    trial: str | None
    leaving: Omissions
    given: Mapping[str, str]
    made_by: str
    force: bool
    allow_missing: bool
    incomplete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """What was exported; `left_out` says why a file stayed at home, by its name."""

    path: Path
    trials: int
    missing: tuple[str, ...] = ()
    left_out: Mapping[str, str] | None = None
    notes: tuple[str, ...] = ()
    checks: Checks = field(default_factory=dict)


def export(
    row: StudyRow, store: Store, wanted: ExportRequest, redactor: Redactor | None
) -> ExportResult:
    """Write an export, complete or not at all; a `redactor` redacts it, and the result is checked.

    Raise `StudyError` for an impossible export, `StoreError` for what cannot be read or written.
    """
    found = _found(row, store, wanted)
    with tempfile.TemporaryDirectory(prefix="cclsearch-export-") as scratch:
        artifacts = store.artifacts
        left_out: Mapping[str, str] = {}
        is_entry = wanted.form == "entry"
        card = _card(found, store, wanted) if is_entry else None
        is_launched = is_entry and found.trials[0].outcome.launched is not None
        script = launch_script(found.trials[0], found.row, store) if is_launched else None
        if redactor is not None:
            found, artifacts, left_out = redacted_study(
                found,
                artifacts,
                redactor,
                Path(scratch),
                files=wanted.form in WITH_FILES,
                allow_missing=wanted.allow_missing,
            )
            if card is not None:
                redacted = {name: redactor.value(value) for name, value in card.items()}
                card = {**redacted, "contributor": "redacted", "contact": "redacted"}
            script = None if script is None else redactor.text(script)
            check_redacted("the export", _texts(found, card, script), redactor.known)
            for artifact in files_of(found):
                if artifacts.size(artifact.digest) is not None:
                    content = pieces(artifacts.path(artifact.digest), LARGE_LIMITS)
                    check_redacted(artifact.name, content, redactor.known)
        notes = tuple(_notes(wanted.leaving, redactor))
        checks = {} if card is None else _checks(found, card)
        if card is not None:
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
    ordinals = None if asked is None else frozenset({_ordinal(asked, row, store)})
    found = study_export(row, store, wanted.leaving, ordinals, entries=is_whole)
    if asked is not None and not found.trials:
        raise StudyError(f"study {row.id} has no trial {asked}; see `cclsearch show {row.id}`")
    return found


def _ordinal(asked: str, row: StudyRow, store: Store) -> int:
    if asked.isdecimal():
        return int(asked)
    if asked != "best":
        raise StudyError(f"--trial {asked[:40]!r} is not a trial; give a number, or best")
    leader = leader_of(row, store)
    if leader is None:
        raise StudyError(f"study {row.id} has no trial that may lead; give one with --trial")
    return leader.ordinal


def _card(found: StudyExport, store: Store, wanted: ExportRequest) -> dict[str, object]:
    (trial,) = found.trials
    launched = trial.outcome.launched
    digest = launched.machine if launched else None
    machine = store.machine(digest) if digest is not None else None
    return card_of(found.row.study, trial, found.row.id, machine, wanted.given)


def _checks(found: StudyExport, card: Mapping[str, object]) -> Checks:
    (trial,) = found.trials
    traces = [each for each in traces_of(trial) if is_json(each.name)]
    return {**card_checks(card), **trial_checks(found.row.study, trial, len(traces))}


def _write_file(
    found: StudyExport, artifacts: Artifacts, wanted: ExportRequest, notes: tuple[str, ...]
) -> tuple[str, ...]:
    """Write a table or a bundle; return the names of missing files."""
    with whole_file(wanted.to, force=wanted.force) as out:
        if wanted.form != "bundle":
            TABLES[wanted.form](trial_documents(found), out)
            return ()
        return write_bundle(
            out,
            found.entries,
            artifacts,
            study_id=found.row.id,
            study_name=found.row.study.name,
            made_by=wanted.made_by,
            notes=notes,
            allow_missing=wanted.allow_missing,
        ).missing


def _write_entry(
    found: StudyExport,
    artifacts: Artifacts,
    card: Mapping[str, object],
    checks: Checks,
    script: str | None,
    wanted: ExportRequest,
) -> tuple[str, ...]:
    broken = {name: faults for name, faults in checks.items() if faults}
    if broken and not wanted.incomplete:
        words = "; ".join(f"{name}: {', '.join(faults)}" for name, faults in broken.items())
        raise StudyError(f"not written: {words}; --incomplete writes it with these listed")
    with whole_folder(wanted.to, mark=CARD, force=wanted.force) as folder:
        return write_entry(
            found, card, checks, artifacts, script, folder, allow_missing=wanted.allow_missing
        )


def _texts(
    found: StudyExport, card: Mapping[str, object] | None, script: str | None
) -> Iterator[bytes]:
    yield (script or "").encode("utf-8", "backslashreplace")
    yield json.dumps(card, ensure_ascii=False).encode("utf-8", "backslashreplace")
    for document in trial_documents(found):
        text = json.dumps(document, ensure_ascii=False)
        yield text.encode("utf-8", "backslashreplace")
    for entry in found.entries:
        yield to_json(entry).encode("utf-8", "backslashreplace")


def _notes(leaving: Omissions, redactor: Redactor | None) -> Iterator[str]:
    if leaving.all_but_metrics:
        yield "files, conversations and the texts of policies were left out"
    elif leaving.traces:
        yield "traces were left out"
    if redactor is None:
        return
    counts = redactor.counts
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    yield f"redacted: {told or 'nothing was found'}; conversations were left out"
