"""`list`, `show` and `best`: what is on record."""

import json
import shlex
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from records.codec import from_json, to_json
from records.errors import StoreError
from records.rows import StudyRow
from records.store import Store
from records.study import Value
from records.trial import History, Trial
from search.commands.options import JsonOption, StoreOption, StudyArgument
from search.finding import Finding
from search.live import trial_table
from search.progress import trial_line, trial_summary
from search.report import finding_lines
from search.settings import store_root
from search.trial_words import score_words

_COLUMNS = ("id", "name", "objective", "strategy", "status", "trials", "best")


def list_studies(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the studies on record, newest first."""
    records = Store(store_root(store))
    rows = records.studies()
    if as_json:
        typer.echo(json.dumps([_study_facts(row, records) for row in rows]))
        return
    if not rows:
        typer.echo(f"no studies in {records.root}; next: cclsearch run --objective step_time")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("study", "name", "objective", "strategy", "status", "trials", "best"):
        table.add_column(heading)
    for row in rows:
        facts = _study_facts(row, records)
        table.add_row(*(str(facts[key]) for key in _COLUMNS))
    Console().print(table)


def show(
    study_id: StudyArgument = "", store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Show a study: all its trials and what it found."""
    records = Store(store_root(store))
    row = records.find(study_id)
    history = records.history(row.id)
    if as_json:
        facts = {
            **_study_facts(row, records),
            "finding": json.loads(row.summary) if row.summary else None,
            "study": json.loads(to_json(row.study)),
            "trials": [trial_summary(trial) for trial in history],
        }
        typer.echo(json.dumps(facts))
        return
    console = Console()
    if console.is_terminal:
        console.print(trial_table(history))
    else:
        for trial in history:
            typer.echo(trial_line(trial, history))
    if row.summary is None:
        typer.echo(f"status: {row.status}\nnext: cclsearch resume {row.id}")
        return
    for line in finding_lines(from_json(Finding, row.summary), history, row, records.root):
        typer.echo(line)


def best(
    study_id: StudyArgument = "",
    form: Annotated[
        Literal["json", "env", "args"],
        typer.Option("--format", help="JSON, KEY=value lines, or command-line arguments."),
    ] = "json",
    store: StoreOption = None,
) -> None:
    """Print the best configuration in a form that other programs take."""
    records = Store(store_root(store))
    row = records.find(study_id)
    trial = _winner(row, records.history(row.id))
    config = trial.config
    if config is None:
        raise StoreError(f"trial {trial.ordinal} has no configuration")
    match form:
        case "json":
            typer.echo(json.dumps(dict(config.values), indent=1))
        case "env":
            for knob, value in config.values.items():
                typer.echo(f"{knob.upper()}={_spelled(value)}")
        case "args":
            typer.echo(" ".join(f"--{k.replace('_', '-')}={_spelled(config[k])}" for k in config))


def _winner(row: StudyRow, history: History) -> Trial:
    ordinal = from_json(Finding, row.summary).winner if row.summary else None
    if ordinal is not None:
        return history.trials[ordinal]
    if history.best is None:
        raise StoreError(f"study {row.id} has no measured trial; see `cclsearch show {row.id}`")
    return history.best


def _spelled(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else shlex.quote(str(value))


def _study_facts(row: StudyRow, records: Store) -> dict[str, object]:
    history = records.history(row.id)
    best_trial = history.best
    score = best_trial.score if best_trial else None
    return {
        "id": row.id,
        "name": row.study.name,
        "objective": row.study.objective.expression,
        "strategy": row.strategy,
        "status": row.status,
        "trials": len(history),
        "best": score_words(score) if score else "-",
    }
