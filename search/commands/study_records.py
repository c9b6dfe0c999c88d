"""Prints studies on record: all of them, one in full, or its best configuration."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import typer
from rich.table import Table

from evaluator.recipes.variables import settings
from records.codec import from_json, to_json
from records.errors import StoreError
from records.history import History
from records.rows import StudyRow
from records.store import Store
from records.study import MEASURE, Study
from records.trial import Config, Trial
from search.commands.large_studies import (
    READ_WHOLE,
    print_large_study,
    print_last_trials,
    study_facts,
    study_words,
)
from search.commands.options import Asked, store_flag
from search.contexts import part_named
from search.finding import Finding, best_result, ended_with, leader_of, values_again
from search.progress import trial_summary
from search.reading import has_records, recorded, status
from search.report import Line, Record, origin_lines, print_lines, print_report, report_lines
from search.rescoring import rescored
from search.settings import store_root
from search.terminal import Terminal, on_terminal
from search.trust import is_foreign
from search.words.config import flags, spelled
from search.words.model import use_facts, use_words
from search.words.objective import objective_words
from search.words.trial import reached_words

PIPE_WIDTH = 1000
"""A pipe has no width: nothing is cut for it."""


def print_studies(store: Path | None, count: int, *, as_json: bool) -> None:
    """Print a line for each of the newest studies; none at all is no error."""
    rows: tuple[StudyRow, ...] = ()
    facts: list[dict[str, object]] = []
    best: list[str] = []
    all_count = 0
    if has_records(store):
        with recorded(store) as records:
            rows = records.studies(limit=count)
            leaders = [leader_of(row, records) for row in rows]
            found = list(zip(rows, leaders, strict=True))
            facts = [study_facts(row, leader, records) for row, leader in found]
            best = [_best_words(leader, row, records) for row, leader in found]
            all_count = records.study_count()
    if as_json:
        typer.echo(json.dumps(facts))
    elif rows:
        _print_table(facts, best)
    else:
        root = store_root(store).absolute()
        typer.echo(f"no studies in {root}; next: cclsearch run --objective step_time", err=True)
    if len(rows) < all_count:
        told = f"the newest {len(rows)} of {all_count} studies; for more: cclsearch list --limit"
        typer.echo(f"{told} {all_count}{store_flag(store_root(store).absolute())}", err=True)


def print_study(
    study_id: str, asked: Asked, last: int, store: Path | None, *, as_json: bool
) -> None:
    """Print the last trials of a study, and what it found or how to go on."""
    with recorded(store) as records:
        row = records.find(study_id)
        if records.counts(row.id).trials > READ_WHOLE and not asked.is_given:
            print_large_study(row, last, records, as_json=as_json)
            return
        record, leader = _seen(study_id, asked, records)
        row = record.row
        if as_json:
            facts = {**study_facts(row, leader, records), "scored_again": asked.is_given}
            typer.echo(json.dumps({**facts, **_details(record, last)}))
            return
        typer.echo(study_words(row))
        print_last_trials(record.history, last, len(record.history))
        if asked.is_given:
            print_lines(_scored_again_lines(record, asked))
            return
        now = status(row, records)
        if (finding := ended_with(row)) is not None:
            print_report(finding, record, store_flag(records.root))
            return
        for label, words in origin_lines(record):
            typer.echo(f"{label}: {words}")
        for use in record.uses:
            typer.echo(f"model: {use_words(use, row.study.llm)}")
        typer.echo(f"status: {now}")
        if now != "running":
            replay = row.strategy == MEASURE
            command = f"replay {row.id} --mode measure" if replay else f"resume {row.id}"
            trusts = " --trust" if is_foreign(row.study) else ""
            typer.echo(f"next: cclsearch {command}{trusts}{store_flag(records.root)}")


def _seen(study_id: str, asked: Asked, records: Store) -> tuple[Record, Trial | None]:
    """A study with its leader, as it is on record or scored again by what is asked."""
    row = records.find(study_id)
    counts = records.counts(row.id)
    if counts.trials > READ_WHOLE and not asked.is_given:
        leader = leader_of(row, records)
        known = History(() if leader is None else (leader,), again=values_again(row, records))
        found = Record(row=row, history=known, launch_count=counts.launches, store=records.root)
        return found, leader
    record = Record.of(row.id, records)
    if not asked.is_given:
        return record, leader_of(row, records)
    again = rescored(row, records, asked.of(row.study))
    return replace(record, row=again.row, history=again.history), again.history.best


def _scored_again_lines(record: Record, asked: Asked) -> Iterator[Line]:
    """The report without why the search stopped, and with the same question for the best."""
    finding = from_json(Finding, record.row.summary or "")
    found = report_lines(finding, record, store_flag(record.store))
    yield "scored again", f"by {objective_words(record.row.study)}; nothing was launched"
    yield from (line for line in found if line[0] not in ("stopped", "next"))
    if finding.winner is not None:
        command = f"cclsearch best {record.row.id} --format args{asked.flags}"
        yield "next", f"{command}{store_flag(record.store)}"


def print_best(
    study_id: str,
    asked: Asked,
    form: Literal["json", "env", "args", "policy"],
    context: str | None,
    store: Path | None,
    *,
    as_json: bool,
) -> None:
    """Print the configuration that won, or is best so far."""
    with recorded(store) as records:
        record, trial = _seen(study_id, asked, records)
    row = record.row
    if trial is None:
        which = "no trial that breaks no limit" if record.history.measured else "no measured trial"
        command = f"cclsearch show {row.id}{asked.flags}{store_flag(record.store)}"
        raise StoreError(f"study {row.id} has {which}; see `{command}`")
    if trial.config is None:
        raise StoreError(f"trial {trial.ordinal} of study {row.id} has no configuration on record")
    part = part_named(trial.policy, trial.config, row.study, context)
    if as_json:
        facts = {
            "study_id": row.id,
            "scored_again": asked.is_given,
            **trial_summary(trial, record.history),
        }
        typer.echo(json.dumps({**facts, "front": list(record.history.front)}))
        return
    typer.echo(study_words(row), err=True)
    for words in _notes(record, trial, asked):
        typer.echo(words, err=True)
    match form:
        case "json":
            typer.echo(json.dumps(dict(part.config.values), indent=1))
        case "env":
            for name, value in _variables(part.study, part.config).items():
                typer.echo(f"{name}={value}")
        case "args":
            typer.echo(flags(part.config))
        case "policy":
            typer.echo(trial.policy.source.rstrip())


def _variables(study: Study, config: Config) -> dict[str, str]:
    """The settings as shells take them, under the names that a script of the user's knows."""
    if study.command is None:
        return {knob.upper(): spelled(value) for knob, value in config.values.items()}
    told = settings(study, study.command, config)
    return {name: shlex.quote(value) for name, value in told.items()}


def _notes(record: Record, trial: Trial, asked: Asked) -> Iterator[str]:
    """What a reader of the best alone would miss: how it was scored, and who else is as good."""
    if asked.is_given:
        yield f"scored again by {objective_words(record.row.study)}; nothing was launched"
    others = [str(ordinal) for ordinal in record.history.front if ordinal != trial.ordinal]
    if others:
        command = f"cclsearch show {record.row.id} --front{asked.flags}{store_flag(record.store)}"
        yield f"no trial beats these in all objectives either: {', '.join(others)}; see `{command}`"


def _details(record: Record, last: int) -> dict[str, object]:
    return {
        "trial_count": len(record.history),
        "finding": json.loads(record.row.summary) if record.row.summary else None,
        "study": json.loads(to_json(record.row.study)),
        "models": use_facts(record.uses, record.row.study.llm),
        "trials": [trial_summary(trial, record.history) for trial in record.history.trials[-last:]],
    }


def _print_table(studies: list[dict[str, object]], best: list[str]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("study", "status", "trials", "best", "objective", "strategy", "name"):
        table.add_column(
            heading,
            no_wrap=heading in {"study", "status", "best"},
            # What people copy is never cut, however narrow the terminal.
            min_width=max(len(str(facts["id"])) for facts in studies) if heading == "study" else 6,
        )
    for facts, words in zip(studies, best, strict=True):
        table.add_row(
            *(str(facts[key]) for key in ("id", "status", "trials")),
            words,
            *(str(facts[key]) for key in ("objective", "strategy", "name")),
        )
    console = Terminal(width=None if on_terminal() else PIPE_WIDTH, highlight=False)
    console.print(table)
    for facts in studies:
        if facts["caveats"]:
            console.print(f"best of {facts['id']}: {facts['caveats']}")


def _best_words(leader: Trial | None, row: StudyRow, records: Store) -> str:
    found = best_result(row, leader, records)
    if found is None or leader is None or leader.score is None:
        return "-"
    return reached_words(found, leader.score.unit)
