"""A shell script that starts the job of a trial manually, without the store."""

import re
import shlex
from collections.abc import Iterator, Mapping

from records.errors import StudyError
from records.machine import LaunchRecord, Machine
from records.store.rows import StudyRow
from records.store.store import Store
from records.trial import CONTEXTS_FOLDER, Failed, Measured, Outcome, Trial, outcome_in
from search.storage import stored_text
from search.views.format import format_number, one_line
from search.views.machine import machine_line, machine_of

COMMENT_CHARS = 300
_HOME = re.compile(r"(?<![^:=])~(?=[/:]|$)")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACES = ("VISIBLE_DEVICES", "LD_LIBRARY_PATH", "LD_PRELOAD")
"""What was so on the machine of the record and need not be here."""


def launch_script(trial: Trial, row: StudyRow, store: Store, context: str | None = None) -> str:
    """Return the script; raise `StudyError` for a trial whose launch is not recorded.

    `context` is one of the study's others than its own.
    """
    if context is None and trial.outcome.contexts:
        context = trial.outcome.contexts[0].name
    outcome = trial.outcome if context is None else outcome_in(trial.outcome, context)
    launched = None if outcome is None else outcome.launched
    if outcome is None or launched is None:
        elsewhere = "an older version, or another tool, recorded it"
        where = "" if context is None else f" in context {context!r}"
        raise StudyError(
            f"trial {trial.ordinal} of study {row.id}{where} has no recorded launch: "
            f"{elsewhere if trial.reached_launch else 'it was never launched'}; "
            f"see `cclsearch trial show {row.id} {trial.ordinal}`"
        )
    _require_sound(launched, row.id)
    machine = machine_of(launched, store)
    files = _files(trial, row, launched, store, context)
    lines = (
        "#!/bin/sh",
        *(f"# {one_line(words, COMMENT_CHARS)}" for words in _told(trial, row, outcome, machine)),
        "set -eu",
        f"folder=${{1:-trial-{trial.ordinal}}}",
        'mkdir "$folder"',
        'cd "$folder"',
        *_writing(files),
        *_environment(launched, machine),
        *_folders(launched),
        *_command(launched),
    )
    return ("\n".join(lines) + "\n").encode("utf-8", "replace").decode()


def _require_sound(launched: LaunchRecord, study_id: str) -> None:
    """Raise `StudyError` for a record that would have a shell do something else.

    It may come from another machine.
    """
    names = (*launched.environment, *launched.folders)
    inside = (*launched.files, *(name for name in launched.folders.values() if name != "."))
    if not launched.argv or not all(map(_VARIABLE.fullmatch, names)):
        raise StudyError(
            f"study {study_id} names a variable or command that is none; do not use it"
        )
    if not all(map(_FILE.fullmatch, inside)):
        raise StudyError(f"study {study_id} names files outside of its folder; do not use it")


def _files(
    trial: Trial, row: StudyRow, launched: LaunchRecord, store: Store, context: str | None
) -> Mapping[str, str]:
    """The job's own files, as recorded."""
    own = context is None or context == trial.outcome.contexts[0].name
    prefix = "" if own else f"{CONTEXTS_FOLDER}/{context}/"
    kept = {artifact.name: artifact for artifact in trial.outcome.artifacts}
    lacking = [name for name in launched.files if prefix + name not in kept]
    if lacking:
        raise StudyError(f"trial {trial.ordinal} kept no {', '.join(lacking)}, which its job reads")
    return {
        name: stored_text(row.id, trial.ordinal, kept[prefix + name], store)
        for name in launched.files
    }


def _told(trial: Trial, row: StudyRow, outcome: Outcome, machine: Machine | None) -> Iterator[str]:
    """What the script says of itself."""
    yield f"Trial {trial.ordinal} of study {row.id} ({row.study.name}), recorded by cclsearch."
    yield f"Policy {trial.policy.digest}, by {trial.policy.author}."
    if trial.config is not None:
        yield f"Configuration {trial.config.digest}: {trial.config}"
    if machine is not None:
        yield f"It ran on {machine_line(machine)}."
    match outcome:
        case Measured(metrics=metrics):
            shown = [m for m in metrics if m.name in ("step_time", "tokens_per_second")]
            came = ", ".join(f"{m.name} {format_number(m.value)} {m.unit}" for m in shown)
            yield f"What came of it: {came or 'it was measured'}."
        case Failed():
            yield f"What came of it: {outcome}"
    yield "Usage: sh FILE [FOLDER]. The folder is made, and holds what the job leaves."
    yield "Programs are found on the PATH: have first on it the Python that has cclsearch."


def _writing(files: Mapping[str, str]) -> Iterator[str]:
    for name, text in files.items():
        end = "END_OF_FILE"
        while end in text:
            end += "_"
        yield f"cat > {shlex.quote(name)} <<'{end}'"
        yield text.removesuffix("\n")
        yield end


def _folders(launched: LaunchRecord) -> Iterator[str]:
    for variable, name in launched.folders.items():
        if name != ".":
            yield f"mkdir {shlex.quote(name)}"
        folder = '"$PWD"' if name == "." else f'"$PWD"/{shlex.quote(name)}'
        yield f"export {variable}={folder}${{{variable}:+:${variable}}}"


def _environment(launched: LaunchRecord, machine: Machine | None) -> Iterator[str]:
    """What every job had there, unless it is set here, and what was added for this one."""
    for name, value in ({} if machine is None else machine.environment).items():
        if name in launched.environment or not _VARIABLE.fullmatch(name):
            continue
        if any(word in name for word in _PLACES):
            yield f"# There, {name} was {one_line(value, COMMENT_CHARS)}"
        else:
            yield f'[ -n "${{{name}+set}}" ] || export {name}={_quoted(value)}'
    for name, value in launched.environment.items():
        yield f"export {name}={_quoted(value)}"


def _command(launched: LaunchRecord) -> Iterator[str]:
    if launched.cores:
        yield f"# It was kept on cores {','.join(map(str, launched.cores))}; taskset -c does that."
    yield f"exec {' '.join(map(_quoted, launched.argv))}"


def _quoted(text: str) -> str:
    """One word for the shell, in which `~` at the beginning of a path is the user's home."""
    parts = _HOME.split(text)
    return '"$HOME"'.join(shlex.quote(part) if part else "" for part in parts) or "''"
