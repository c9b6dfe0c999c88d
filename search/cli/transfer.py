"""`import` and `export`: studies from and for other tools and machines."""

import getpass
import json
import shlex
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from records.errors import StudyError, shown
from records.store.rows import StudyRow
from records.store.store import Store
from records.trial import History, Score
from search.cli.options import (
    JsonOption,
    StoreOption,
    StudyArgument,
    examples,
    option,
    store_flag,
    takes_options,
)
from search.settings import has_records, installed_version, open_store, scrubber, store_root
from search.transfer.ccl_bench import Checks
from search.transfer.export import (
    ExportRequest,
    ExportResult,
    Form,
    Omissions,
    entry_checks,
    export,
    redactor_of,
    suffix_of,
)
from search.transfer.foreign_studies import BadRows, Imported
from search.transfer.importers import record, refuse_other, refuse_steering, studies_of
from search.transfer.redact import Redactor
from search.transfer.trust import launch_lines
from search.views.console import Terminal, on_terminal
from search.views.format import format_count, score_words

app = typer.Typer(rich_markup_mode=None)

BROKEN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What to export, and what to leave out or replace."""

    form: Form = option(
        "jsonl",
        "jsonl, csv, parquet: one trial per line or row; entry: a CCL-Bench entry "
        "(folder); bundle: the whole study in one file for `cclsearch import`.",
        "--format",
    )
    output: Path | None = option(
        None, "File or folder to write. [default: STUDY.FORMAT]", "--output", "-o", metavar="PATH"
    )
    trial: str | None = option(
        None, "Only this trial. [default: all; the best for an entry]", metavar="N|best"
    )
    redact: bool = option(False, "Replace names of users, hosts and jobs, paths and addresses.")
    name: list[str] = option(
        [], "With --redact: also replace this name. Repeatable.", metavar="NAME"
    )
    no_traces: bool = option(False, "Leave out traces.")
    metrics_only: bool = option(
        False,
        "Only configurations, samples, metrics and failures; no files, policies or LLM "
        "transcripts.",
    )
    fields: list[str] = option(
        [],
        "For an entry: set a field of its card that the study does not contain. Repeatable.",
        "--set",
        metavar="FIELD=VALUE",
    )
    check_only: bool = option(False, "For an entry: report what is missing and write nothing.")
    incomplete: bool = option(
        False, "For an entry: write it even if something is missing; it is marked."
    )
    allow_missing: bool = option(False, "Leave out files that are missing from the store.")
    force: bool = option(False, "Overwrite existing files.")

    def __post_init__(self) -> None:
        if self.name and not self.redact:
            raise StudyError("--name needs --redact")
        if self.form != "entry" and (self.fields or self.check_only or self.incomplete):
            raise StudyError("--set, --check-only and --incomplete need --format entry")


@app.command(
    "export",
    epilog=examples(
        "cclsearch export --format csv -o trials.csv",
        "cclsearch export 20260131 --format bundle -o study.cclsearch",
        "cclsearch export --format entry -o entry/ --set contributor=Me --set contact=me@b.org",
        "cclsearch export --format bundle --redact",
    ),
)
@takes_options
def export_command(
    *,
    study_id: StudyArgument = "",
    asked: ExportOptions,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export a study for other programs, CCL-Bench or machines.

    The output is complete or not written at all. The store is only read.
    """
    with open_store(store) as records:
        row = records.find(study_id)
        wanted = _wanted(asked, row)
        if asked.check_only:
            _print_checks(entry_checks(row, records, wanted), as_json=as_json)
            return
        redactor = None
        if asked.redact:
            users = (_user(), *asked.name)
            redactor = redactor_of(row, records, [socket.gethostname()], users)
        with ExitStack() as shown_work:
            if on_terminal() and not as_json:
                shown_work.enter_context(Terminal(stderr=True).status(f"writing {wanted.to}"))
            written = export(row, records, wanted, redactor)
        if as_json:
            typer.echo(json.dumps(_facts(written, row, redactor)))
            return
        for line in _lines(written, redactor):
            typer.echo(line)
        typer.echo(f"next: {_next_command(asked, written, records)}")


def _wanted(asked: ExportOptions, row: StudyRow) -> ExportRequest:
    return ExportRequest(
        form=asked.form,
        to=asked.output or Path(f"{row.id}{suffix_of(asked.form)}"),
        trial=asked.trial,
        leaving=Omissions(traces=asked.no_traces, all_but_metrics=asked.metrics_only),
        given=dict(_given(asked.fields)),
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


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _lines(written: ExportResult, redactor: Redactor | None) -> Iterator[str]:
    yield f"wrote {written.path}: {format_count(written.trials, 'trial')}"
    yield from written.notes
    for name, why in (written.left_out).items():
        yield f"left out {name}: {why}"
    if written.missing:
        yield f"missing and left out: {len(written.missing)} files"
    for name, faults in written.checks.items():
        for fault in faults:
            yield f"lacks {name}: {fault}"
    if redactor is not None:
        yield "checked: none of the known names is left"


def _next_command(asked: ExportOptions, written: ExportResult, records: Store) -> str:
    match asked.form:
        case "bundle":
            return f"cclsearch import {shlex.quote(str(written.path))}"
        case _:
            return f"cclsearch export --format bundle{store_flag(records.root)}"


def _facts(written: ExportResult, row: StudyRow, redactor: Redactor | None) -> dict[str, object]:
    return {
        "study_id": row.id,
        "path": str(written.path),
        "trials": written.trials,
        "missing": list(written.missing),
        "left_out": written.left_out,
        "notes": list(written.notes),
        "redacted": None if redactor is None else dict(redactor.counts),
        "checks": written.checks,
    }


def _print_checks(checks: Checks, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(checks))
    else:
        for name, faults in checks.items():
            typer.echo(f"{name:12} {'FAILS' if faults else 'ok'}")
            for fault in faults:
                typer.echo(f"  {fault}")
    if any(checks.values()):
        raise typer.Exit(BROKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """Options of an import."""

    name: str | None = option(
        None, "Name of the study. [default: its original name]", "--as", metavar="NAME"
    )
    card: Path | None = option(
        None, "Workload card (YAML) for run folders, which contain none.", metavar="FILE"
    )
    skip_bad: bool = option(False, "Skip and list rows that cannot be read.")
    dry_run: bool = option(False, "Only report what would be imported.")


@app.command(
    "import",
    epilog=examples(
        "cclsearch import runs/20260429_093910 --card workload_card.yaml",
        "cclsearch import optuna.db --as baseline --dry-run",
        "cclsearch import study.cclsearch",
    ),
)
@takes_options
def import_histories(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help="CCL-Search run folder or results.csv, Optuna storage (SQLite file, journal file "
            "or URL), or bundle. The format is detected.",
            show_default=False,
        ),
    ],
    asked: ImportOptions,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import searches recorded by other tools or machines.

    Sources are not changed and no policy is executed. Studies that are already recorded are
    skipped. Studies imported from other tools cannot be resumed: there is no command to launch
    their trials.
    """
    taken: list[ImportedStudy] = []
    with ExitStack() as opened:
        records = _opened(store, asked, opened)
        known = set() if records is None else {row.id for row in records.studies()}
        if on_terminal() and not as_json:
            status = Terminal(stderr=True).status("")
            opened.enter_context(status)
        for source in sources:
            for found in _named(source, asked):
                refuse_steering(found)
                one = _taken(found, known)
                if records is not None and not one.is_new:
                    refuse_other(found, records)
                if one.is_new and records is not None and not asked.dry_run:
                    record(found, records, installed_version(), scrubber())
                taken.append(one)
                if not as_json:
                    _print(one, asked)
    if as_json:
        typer.echo(
            json.dumps({"dry_run": asked.dry_run, "studies": [_study_facts(t) for t in taken]})
        )
        return
    _print_end(taken, asked, store_flag(store_root(store).absolute()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedStudy:
    """A study from a source; `is_new` if it was not recorded yet."""

    found: Imported
    is_new: bool

    @property
    def best(self) -> Score | None:
        """The best recorded score."""
        best = History(tuple(self.found.trials)).best
        return None if best is None else best.score

    @property
    def measured_count(self) -> int:
        """Trials with a score."""
        return sum(trial.score is not None for trial in self.found.trials)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the import says of the origin."""
        origin = self.found.study.origin
        return () if origin is None else origin.notes


def _opened(store: Path | None, asked: ImportOptions, opened: ExitStack) -> Store | None:
    """Return the store; None for a dry run without a store."""
    if asked.dry_run and not has_records(store):
        return None
    return opened.enter_context(closing(Store(store_root(store))))


def _named(source: str, asked: ImportOptions) -> Iterator[Imported]:
    """Yield the studies of one source; `--as` renames its only study."""
    bad_rows = BadRows(skip=asked.skip_bad, advice="; skip such rows with --skip-bad")
    studies = studies_of(source, asked.card, bad_rows)
    if asked.name is None:
        yield from studies
        return
    first, second = next(studies, None), next(studies, None)
    if second is not None:
        raise StudyError(
            f"{source}: contains several studies, which cannot all have the name {asked.name!r}"
        )
    if first is not None and first.entries:
        raise StudyError(f"{source}: a bundle keeps the name of its study; leave out --as")
    if first is not None:
        yield replace(first, study=replace(first.study, name=asked.name))


def _taken(found: Imported, known: set[str]) -> ImportedStudy:
    is_new = found.id not in known
    known.add(found.id)
    return ImportedStudy(found=found, is_new=is_new)


def _print(one: ImportedStudy, asked: ImportOptions) -> None:
    if not one.is_new:
        typer.echo(f"{one.found.id}  already recorded; skipped")
        return
    parts = [f"{len(one.found.trials)} trials, {one.measured_count} measured"]
    if one.best:
        parts.append(f"best {score_words(one.best)}")
    verb = "would be imported" if asked.dry_run else "imported"
    typer.echo(f"{one.found.id}  {verb}: {'; '.join(parts)}")
    for sentence in one.found.study.inferences:
        typer.echo(f"  card: {sentence}")
    for note in one.notes:
        typer.echo(f"  note: {note}")
    for label, words in launch_lines(one.found.study):
        typer.echo(f"  {label}: {words}")


def _print_end(taken: Sequence[ImportedStudy], asked: ImportOptions, flag: str) -> None:
    new = [one for one in taken if one.is_new]
    if not taken:
        typer.echo("nothing to import: no finished trial", err=True)
    elif asked.dry_run:
        typer.echo(f"{len(new)} of {len(taken)} studies would be imported; nothing was written")
    elif new:
        command = f"cclsearch show {new[0].found.id}" if len(new) == 1 else "cclsearch list"
        typer.echo(f"next: {command}{flag}")


def _study_facts(one: ImportedStudy) -> dict[str, object]:
    """Return the JSON of an imported study; absent values are null."""
    return {
        "study_id": one.found.id,
        "name": one.found.study.name,
        "new": one.is_new,
        "trials": len(one.found.trials),
        "measured": one.measured_count,
        "best": None if one.best is None else one.best.value,
        "launches": dict(launch_lines(one.found.study)),
        "notes": one.notes,
        "inferences": one.found.study.inferences,
    }
