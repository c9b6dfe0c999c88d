"""Exports a study and prints what came of it; checks an entry that lies in a folder."""

import getpass
import json
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import typer

from records.errors import StudyError, shown
from records.rows import StudyRow
from records.store import Store
from search.commands.options import store_flag
from search.exporting.asked import Exported, Leaving, exported
from search.exporting.bundle_format import SUFFIX
from search.exporting.checks import Check
from search.exporting.export import Form, Wanted, Written, entry_checks, export
from search.exporting.found_entry import checks_of
from search.exporting.redaction.names import known_names, launches
from search.exporting.redaction.operators import HashedNames
from search.exporting.redaction.times import Perturbed
from search.exporting.redaction.traces import TraceChanges
from search.exporting.redaction.words import Redactor
from search.reading import recorded
from search.terminal import Terminal, on_terminal
from search.version import installed_version

BROKEN = 3
MOST_PERTURBED = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of an export, as they were given."""

    form: Form
    output: Path | None
    trial: str | None
    redact: bool
    names: tuple[str, ...]
    hash_names: bool
    perturb_times: str | None
    seed: int
    no_traces: bool
    metrics_only: bool
    fields: tuple[str, ...]
    check_only: bool
    incomplete: bool
    allow_missing: bool
    force: bool

    def __post_init__(self) -> None:
        if not self.redact and (self.names or self.hash_names or self.perturb_times):
            raise StudyError("--name, --hash-names and --perturb-times belong to --redact; add it")
        if self.form != "entry" and (self.fields or self.check_only or self.incomplete):
            raise StudyError(
                "--set, --check-only and --incomplete are of an entry; add --format entry"
            )


def export_study(study_id: str, asked: Asked, store: Path | None, *, as_json: bool) -> None:
    """Export a study, or tell what its entry lacks."""
    with recorded(store) as records:
        row = records.find(study_id)
        wanted = _wanted(asked, row)
        if asked.check_only:
            _print_checks(entry_checks(row, records, wanted), as_json=as_json)
            return
        changes = _changes(asked, row, records) if asked.redact else None
        with ExitStack() as shown_work:
            if on_terminal() and not as_json:
                shown_work.enter_context(Terminal(stderr=True).status(f"writing {wanted.to}"))
            written = export(row, records, wanted, changes)
        if as_json:
            typer.echo(json.dumps(_facts(written, row, changes)))
            return
        for line in _lines(written, changes):
            typer.echo(line)
        typer.echo(f"next: {_next_command(asked, written)}{_flag(asked, records)}")


def check_entry(path: Path, *, as_json: bool) -> None:
    """Check an entry that lies somewhere."""
    _print_checks(checks_of(path), as_json=as_json)


def _wanted(asked: Asked, row: StudyRow) -> Wanted:
    suffix = {"entry": "", "bundle": SUFFIX}.get(asked.form, f".{asked.form}")
    return Wanted(
        form=asked.form,
        to=asked.output or Path(f"{row.id}{suffix}"),
        trial=asked.trial,
        leaving=Leaving(traces=asked.no_traces, all_but_metrics=asked.metrics_only),
        given=dict(_given(asked.fields)),
        made_by=installed_version(),
        force=asked.force,
        allow_missing=asked.allow_missing,
        incomplete=asked.incomplete,
    )


def _given(fields: Sequence[str]) -> Iterator[tuple[str, str]]:
    for text in fields:
        name, equals, value = text.partition("=")
        if not equals:
            raise StudyError(
                f"--set {shown(text)}: write FIELD=VALUE, as in contact=me@example.org"
            )
        yield name.strip(), value.strip()


def _changes(asked: Asked, row: StudyRow, records: Store) -> TraceChanges:
    """What redaction does, by what this machine and the record know."""
    found = exported(row, records, Leaving())
    known = known_names(
        found,
        hosts=(socket.gethostname(), *_machine_hosts(found, records)),
        users=(_user(), *asked.names),
    )
    share = _share(asked.perturb_times)
    return TraceChanges(
        redactor=Redactor(known),
        names=HashedNames() if asked.hash_names else None,
        times=None if share is None else Perturbed(share, asked.seed),
    )


def _machine_hosts(found: Exported, records: Store) -> Iterator[str]:
    for digest in {launched.machine for launched in launches(found) if launched.machine}:
        machine = records.machine(digest)
        if machine is not None:
            yield machine.host


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _share(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= MOST_PERTURBED:
        raise StudyError(f"--perturb-times {shown(text)}: give a share up to 50 %, as in 2%")
    return share


def _lines(written: Written, changes: TraceChanges | None) -> Iterator[str]:
    trials = f"{written.trials} trial{'s'[: written.trials != 1]}"
    yield f"wrote {written.path}: {trials}"
    yield from written.notes
    for name, why in (written.left_out or {}).items():
        yield f"left out {name}: {why}"
    if written.missing:
        yield f"missing and left out: {len(written.missing)} files"
    for check in written.checks:
        for fault in check.faults:
            yield f"lacks {check.name}: {fault}"
    if changes is not None:
        yield "looked through: none of the known names is left"


def _next_command(asked: Asked, written: Written) -> str:
    match asked.form:
        case "bundle":
            return f"cclsearch import {shlex.quote(str(written.path))}"
        case "entry":
            return f"cclsearch entry check {shlex.quote(str(written.path))}"
        case _:
            return "cclsearch export --format bundle"


def _flag(asked: Asked, records: Store) -> str:
    return "" if asked.form in {"bundle", "entry"} else store_flag(records.root)


def _facts(written: Written, row: StudyRow, changes: TraceChanges | None) -> dict[str, object]:
    return {
        "study_id": row.id,
        "path": str(written.path),
        "trials": written.trials,
        "missing": list(written.missing),
        "left_out": dict(written.left_out or {}),
        "notes": list(written.notes),
        "redacted": None if changes is None else dict(changes.redactor.counts),
        "checks": _check_facts(written.checks),
    }


def _check_facts(checks: Sequence[Check]) -> Mapping[str, list[str]]:
    return {check.name: list(check.faults) for check in checks}


def _print_checks(checks: Sequence[Check], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(_check_facts(checks)))
    else:
        for check in checks:
            typer.echo(f"{check.name:12} {'ok' if not check.faults else 'FAILS'}")
            for fault in check.faults:
                typer.echo(f"  {fault}")
    if any(check.faults for check in checks):
        raise typer.Exit(BROKEN)
