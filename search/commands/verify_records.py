"""Reads every kept file against its digest, and prints what is wrong."""

import json
from dataclasses import asdict
from pathlib import Path

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from records.errors import StoreError
from records.store import Store
from search.kept.verifying import Fault, Verified, verified
from search.reading import recorded
from search.terminal import Terminal
from search.words.quantities import size


def print_verified(store: Path | None, *, as_json: bool) -> None:
    """Print which kept files are changed or missing; raises `StoreError` where any is."""
    with recorded(store) as records:
        found = _verified(records)
        root = records.root
    if as_json:
        typer.echo(json.dumps(asdict(found)))
    else:
        typer.echo(f"{found.file_count} kept files read, {size(found.disk_bytes)} on disk")
        if found.removed_count:
            typer.echo(f"{found.removed_count} were removed by gc, and the records say so")
        for fault in found.faults:
            typer.echo(f"{_whose(fault)}: {fault.what}")
    if found.faults:
        raise StoreError(
            f"{len(found.faults)} kept files of {root} are changed or missing; restore them from "
            "a copy of the store, all else of their trials is as it was"
        )
    if not as_json:
        typer.echo("all are what was recorded")


def _verified(records: Store) -> Verified:
    console = Terminal(stderr=True)
    with Progress(
        TextColumn("reading"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal or console.is_dumb_terminal,
    ) as progress:
        task = progress.add_task("reading", total=None)

        def on_file(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        return verified(records, on_file)


def _whose(fault: Fault) -> str:
    """The files that it was recorded as."""
    if not fault.cited_by:
        return "a file that no record cites"
    return "; ".join(
        f"study {study_id}, trial {ordinal}, {name}" for study_id, ordinal, name in fault.cited_by
    )
