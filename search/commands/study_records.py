"""Prints studies on record: all of them, one in full, or its best configuration."""

import json
import shlex
from pathlib import Path
from typing import Literal

import typer
from rich.console import Console
from rich.table import Table

from evaluator.recipes.variables import settings
from records.codec import from_json, to_json
from records.errors import StoreError
from records.rows import StudyRow
from records.store import Store
from records.study import Study
from records.trial import Config, Trial
from search.commands.options import store_flag
from search.config_words import flags, spelled
from search.finding import Finding, leader_of
from search.live import on_terminal, print_trials
from search.progress import trial_line, trial_summary
from search.reading import has_records, recorded, status
from search.report import Record, print_report
from search.settings import store_root
from search.trial_words import caveats

PIPE_WIDTH = 1000
"""A pipe has no width: nothing is cut for it."""


def print_studies(store: Path | None, *, as_json: bool) -> None:
    """Print a line for each study; none at all is no error."""
    rows: tuple[StudyRow, ...] = ()
    facts: list[dict[str, object]] = []
    if has_records(store):
        with recorded(store) as records:
            rows = records.studies()
            facts = [_facts(row, records) for row in rows]
    if as_json:
        typer.echo(json.dumps(facts))
    elif rows:
        _print_table(facts)
    else:
        root = store_root(store).absolute()
        typer.echo(f"no studies in {root}; next: cclsearch run --objective step_time", err=True)


def print_study(study_id: str, store: Path | None, *, as_json: bool) -> None:
    """Print all trials of a study, and what it found or how to go on."""
    with recorded(store) as records:
        record = Record.of(records.find(study_id).id, records)
        row = record.row
        if as_json:
            typer.echo(json.dumps({**_facts(row, records), **_details(record)}))
            return
        if on_terminal():
            print_trials(Console(), record.history.trials, record.history)
        else:
            for trial in record.history:
                typer.echo(trial_line(trial, record.history))
        now = status(row, records)
        if row.summary is not None and now == "finished":
            print_report(from_json(Finding, row.summary), record, store_flag(records.root))
            return
        typer.echo(f"status: {now}")
        if now != "running":
            typer.echo(f"next: cclsearch resume {row.id}{store_flag(records.root)}")


def print_best(
    study_id: str,
    form: Literal["json", "env", "args"],
    store: Path | None,
    *,
    as_json: bool,
) -> None:
    """Print the configuration that won, or is best so far."""
    with recorded(store) as records:
        row = records.find(study_id)
        trial = _winner(row, records)
    config = trial.config
    if config is None:
        raise StoreError(f"trial {trial.ordinal} of study {row.id} has no configuration on record")
    if as_json:
        typer.echo(json.dumps({"study_id": row.id, **trial_summary(trial)}))
        return
    match form:
        case "json":
            typer.echo(json.dumps(dict(config.values), indent=1))
        case "env":
            for name, value in _variables(row.study, config).items():
                typer.echo(f"{name}={value}")
        case "args":
            typer.echo(flags(config))


def _variables(study: Study, config: Config) -> dict[str, str]:
    """The settings as shells take them, under the names that a script of the user's knows."""
    if study.command is None:
        return {knob.upper(): spelled(value) for knob, value in config.values.items()}
    told = settings(study, study.command, config)
    return {name: shlex.quote(value) for name, value in told.items()}


def _winner(row: StudyRow, records: Store) -> Trial:
    winner = leader_of(row, records)
    if winner is None:
        command = f"cclsearch show {row.id}{store_flag(records.root)}"
        raise StoreError(f"study {row.id} has no measured trial; see `{command}`")
    return winner


def _facts(row: StudyRow, records: Store) -> dict[str, object]:
    """A study in short for programs; absent values are null."""
    leader = leader_of(row, records)
    score = leader.score if leader is not None else None
    return {
        "id": row.id,
        "name": row.study.name,
        "objective": row.study.objective.expression,
        "strategy": row.strategy,
        "status": status(row, records),
        "created_at": row.created_at,
        "trials": len(records.history(row.id)),
        "best": score.value if score is not None else None,
        "unit": score.unit if score is not None else None,
        "caveats": None if leader is None else "; ".join(caveats(leader.outcome)) or None,
    }


def _details(record: Record) -> dict[str, object]:
    return {
        "finding": json.loads(record.row.summary) if record.row.summary else None,
        "study": json.loads(to_json(record.row.study)),
        "trials": [trial_summary(trial) for trial in record.history],
    }


def _print_table(studies: list[dict[str, object]]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("study", "status", "trials", "best", "objective", "strategy", "name"):
        table.add_column(heading, no_wrap=heading in {"study", "status", "best"})
    for facts in studies:
        table.add_row(
            *(str(facts[key]) for key in ("id", "status", "trials")),
            _best_words(facts["best"], facts["unit"]),
            *(str(facts[key]) for key in ("objective", "strategy", "name")),
        )
    console = Console(width=None if on_terminal() else PIPE_WIDTH, highlight=False)
    console.print(table)
    for facts in studies:
        if facts["caveats"]:
            console.print(f"best of {facts['id']}: {facts['caveats']}")


def _best_words(value: object, unit: object) -> str:
    return f"{value:.4g} {unit or ''}".rstrip() if isinstance(value, float) else "-"
