"""Builds the database of the records again, and prints what came of every study."""

import json
from dataclasses import asdict
from pathlib import Path

import typer

from records.rebuilding import Rebuilt, RebuiltStudy, rebuild
from search.commands.options import store_flag
from search.settings import store_root


def print_rebuild(store: Path | None, *, as_json: bool) -> None:
    """Build it, with a line for each study as it is read."""
    root = store_root(store).absolute()
    rebuilt = rebuild(root, (lambda _study: None) if as_json else _print_study)
    if as_json:
        kept = None if rebuilt.kept is None else str(rebuilt.kept)
        typer.echo(json.dumps({**asdict(rebuilt), "kept": kept}))
        return
    _print_end(rebuilt, root)


def _print_study(study: RebuiltStudy) -> None:
    typer.echo(f"study {study.study_id}: {study.entries} entries, {study.trials} trials")
    for why in study.unread:
        typer.echo(f"  not read: {why}")


def _print_end(rebuilt: Rebuilt, root: Path) -> None:
    if rebuilt.kept is not None:
        typer.echo(f"kept: the database that was there is {rebuilt.kept}")
    for study_id in rebuilt.without_journal:
        typer.echo(f"left behind: study {study_id} has no journal; it is only in the old database")
    trials = sum(study.trials for study in rebuilt.studies)
    typer.echo(f"rebuilt: {len(rebuilt.studies)} studies, {trials} trials in {root}")
    typer.echo(f"next: cclsearch list{store_flag(root)}")
