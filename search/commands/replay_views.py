"""Prints what came of a replay: a line for each trial, and the verdict."""

import json
from pathlib import Path

import typer

from search.commands.options import store_flag
from search.reading import recorded, status
from search.replay.checks import Checks, TrialCheck, checked
from search.replay.course import replayed
from search.replay.recorded import Recorded, recorded_study
from search.replay.source import require_search
from search.words.trial import one_line

WORDS_CHARS = 400


def print_search_again(study_id: str, store: Path | None, *, as_json: bool) -> bool:
    """Replay a search and print how it went; gives whether all came out as recorded."""
    with recorded(store) as records:
        row = records.find(study_id)
        require_search(row)
        record = recorded_study(row.id, records)
        replay = replayed(record, records)
        checks = checked(record, replay.again)
        same = checks.first is None and replay.stopped is None
        if as_json:
            typer.echo(json.dumps(_facts(record, checks, replay.stopped, same=same)))
            return same
        typer.echo(f"study {row.id}: {row.study.name}, strategy {row.strategy}")
        for trial in checks.trials:
            typer.echo(_line(trial))
        if record.finding is not None:
            typer.echo(f"finding  {_result(checks.finding)}")
        typer.echo(_verdict(record, checks, replay.stopped))
        if same and record.finding is None and status(row, records) != "running":
            typer.echo(f"next: cclsearch resume {row.id}{store_flag(records.root)}")
    return same


def _line(trial: TrialCheck) -> str:
    config = str(trial.config) if trial.config is not None else "(no configuration)"
    return f"trial {trial.ordinal}  {trial.author}  {config}  {_result(trial.differs)}"


def _result(differs: tuple[str, ...]) -> str:
    return f"differs: {one_line('; '.join(differs), WORDS_CHARS)}" if differs else "same"


def _verdict(record: Recorded, checks: Checks, stopped: str | None) -> str:
    if checks.first is not None or stopped is not None:
        where = f" at {one_line(checks.first, WORDS_CHARS)}" if checks.first is not None else ""
        why = f"\nwhy: {one_line(stopped, WORDS_CHARS)}" if stopped is not None else ""
        return f"diverged{where}{why}"
    parts = f"{len(record.trials)} trials, {len(record.repeats)} further launches"
    if record.finding is None:
        return f"same as far as the record goes: {parts}; the study is not finished"
    return f"same: {parts}, the finding"


def _facts(
    record: Recorded, checks: Checks, stopped: str | None, *, same: bool
) -> dict[str, object]:
    """The replay for programs; absent values are null."""
    return {
        "study_id": record.row.id,
        "mode": "llm",
        "same": same,
        "finished": record.finding is not None,
        "first_difference": checks.first,
        "stopped": stopped,
        "trials": [
            {
                "ordinal": trial.ordinal,
                "author": trial.author,
                "config": dict(trial.config.values) if trial.config is not None else None,
                "same": not trial.differs,
                "differs": list(trial.differs),
            }
            for trial in checks.trials
        ],
        "further_launches": len(record.repeats),
        "finding_differs": list(checks.finding),
    }
