"""Records histories from outside, and prints a line for each study."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from records.errors import StudyError
from records.history import History
from records.store import Store
from search.auditing.audit import Fault, audit
from search.auditing.audited import counted
from search.commands.options import store_flag
from search.importing.files import BadRows
from search.importing.imported import Imported
from search.importing.kinds import studies_of
from search.importing.recording import Known, record, refuse_other, refuse_steering
from search.reading import has_records
from search.settings import scrubber, store_root
from search.terminal import Terminal, on_terminal
from search.trust import launch_lines
from search.version import installed_version
from search.words.trial import score_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How histories are to be imported."""

    name: str | None
    card: Path | None
    skip_bad: bool
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A study that was read; `is_new` where it was not on record."""

    found: Imported
    is_new: bool
    faults: tuple[Fault, ...]


def import_all(sources: Sequence[str], asked: Asked, store: Path | None, *, as_json: bool) -> None:
    """Import everything and tell what came of it."""
    taken: list[Taken] = []
    with ExitStack() as opened:
        records = _opened(store, asked, opened)
        known = Known.of(() if records is None else records.studies())
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
        typer.echo(json.dumps({"dry_run": asked.dry_run, "studies": [_facts(t) for t in taken]}))
        return
    _print_end(taken, asked, store_flag(store_root(store).absolute()))


def _opened(store: Path | None, asked: Asked, opened: ExitStack) -> Store | None:
    """The store; None where nothing is to be written and there is none."""
    if asked.dry_run and not has_records(store):
        return None
    return opened.enter_context(closing(Store(store_root(store))))


def _bad_rows(asked: Asked) -> BadRows:
    return BadRows(skip=asked.skip_bad, advice="; leave such rows out with --skip-bad")


def _named(source: str, asked: Asked) -> Iterator[Imported]:
    """The studies of one source, the only one under the name that was asked for."""
    studies = studies_of(source, asked.card, _bad_rows(asked))
    if asked.name is None:
        yield from studies
        return
    first, second = next(studies, None), next(studies, None)
    if second is not None:
        raise StudyError(f"{source}: holds several studies, which cannot all be {asked.name!r}")
    if first is not None and first.entries:
        raise StudyError(f"{source}: a bundle keeps the name of its study; leave out --as")
    if first is not None:
        yield replace(first, study=replace(first.study, name=asked.name))


def _taken(found: Imported, known: Known) -> Taken:
    faults = audit(found.study, History(tuple(found.trials)), found.repeats)
    return Taken(found=found, is_new=known.take(found), faults=faults)


def _print(one: Taken, asked: Asked) -> None:
    if not one.is_new:
        typer.echo(f"{one.found.id}  is on record already; skipped")
        return
    best = History(tuple(one.found.trials)).best
    measured = sum(trial.score is not None for trial in one.found.trials)
    parts = [
        f"{len(one.found.trials)} trials, {measured} measured",
        *([f"best {score_words(best.score)}"] if best is not None and best.score else []),
        *([f"{counted(len(one.faults), 'fault')}: {_names(one.faults)}"] if one.faults else []),
    ]
    verb = "would be imported" if asked.dry_run else "imported"
    typer.echo(f"{one.found.id}  {verb}: {'; '.join(parts)}")
    origin = one.found.study.origin
    for sentence in one.found.study.inferences:
        typer.echo(f"  card: {sentence}")
    for note in () if origin is None else origin.notes:
        typer.echo(f"  note: {note}")
    for label, words in launch_lines(one.found.study):
        typer.echo(f"  {label}: {words}")


def _names(faults: Sequence[Fault]) -> str:
    return ", ".join(fault.name for fault in faults)


def _print_end(taken: Sequence[Taken], asked: Asked, flag: str) -> None:
    new = [one for one in taken if one.is_new]
    if not taken:
        typer.echo("nothing to import: no trial has ended", err=True)
    elif asked.dry_run:
        typer.echo(f"{len(new)} of {len(taken)} studies would be imported; nothing was written")
    elif new:
        command = f"cclsearch show {new[0].found.id}" if len(new) == 1 else "cclsearch list"
        typer.echo(f"next: {command}{flag}")


def _facts(one: Taken) -> dict[str, object]:
    """A study for programs; absent values are null."""
    best = History(tuple(one.found.trials)).best
    origin = one.found.study.origin
    return {
        "study_id": one.found.id,
        "name": one.found.study.name,
        "new": one.is_new,
        "trials": len(one.found.trials),
        "measured": sum(trial.score is not None for trial in one.found.trials),
        "best": best.score.value if best is not None and best.score is not None else None,
        "launches": dict(launch_lines(one.found.study)),
        "notes": [] if origin is None else list(origin.notes),
        "inferences": list(one.found.study.inferences),
        "faults": [
            {"name": fault.name, "words": fault.words, "ordinals": list(fault.ordinals)}
            for fault in one.faults
        ],
    }
