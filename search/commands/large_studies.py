"""Prints studies that have too many trials to read them all for one look."""

import json
from collections.abc import Iterator

import typer

from records.codec import to_json
from records.history import History
from records.rows import StudyRow
from records.store import Store
from records.trial import Trial
from search.commands.options import store_flag
from search.finding import best_result, ended_with, leader_of, values_again
from search.live import print_trials
from search.progress import trial_line, trial_summary
from search.reading import status
from search.report import Line, print_lines, spread_words
from search.terminal import Terminal, on_terminal
from search.trust import launch_lines
from search.words.context import settings_words
from search.words.model import use_facts, use_words
from search.words.objective import objective_words
from search.words.trial import remarks

READ_WHOLE = 2000
"""Trials that are read at once; of more only those that are shown, and what is counted."""


def print_large_study(row: StudyRow, last: int, records: Store, *, as_json: bool) -> None:
    """Print the last trials of a study, and in short what there is and what it found."""
    leader, latest = leader_of(row, records), records.latest(row.id, last)
    if as_json:
        typer.echo(
            json.dumps({**study_facts(row, leader, records), **_details(row, last, records)})
        )
        return
    first = records.trial(row.id, 0)
    others = {trial.ordinal: trial for trial in (first, leader) if trial is not None}
    seen = {**others, **{trial.ordinal: trial for trial in latest}}
    history = History(
        tuple(seen[ordinal] for ordinal in sorted(seen)),
        incumbent=None if leader is None else leader.ordinal,
        again=values_again(row, records),
    )
    typer.echo(study_words(row))
    print_last_trials(history, len(latest), records.counts(row.id).trials)
    print_lines(_lines(row, leader, records))


def study_words(row: StudyRow) -> str:
    """Which study this is: `study 20260101-120000-abcd: llama, step_time, imported (optuna)`."""
    origin = row.study.origin
    imported = "" if origin is None else f", imported ({origin.kind})"
    return f"study {row.id}: {row.study.name}, objective {objective_words(row.study)}{imported}"


def print_last_trials(history: History, last: int, trial_count: int) -> None:
    """Print the last trials of a history, and how many there are before them."""
    shown = history.trials[-last:]
    if len(shown) < trial_count:
        typer.echo(f"the last {len(shown)} of {trial_count} trials; --last shows more", err=True)
    if on_terminal():
        print_trials(Terminal(), shown, history)
        return
    for trial in shown:
        typer.echo(trial_line(trial, history))


def study_facts(row: StudyRow, leader: Trial | None, records: Store) -> dict[str, object]:
    """A study in short for programs; absent values are null.

    `low` and `high` bound the 95 % interval of `best` over its `launches`; of two launches there
    are `both` values instead.
    """
    result = best_result(row, leader, records)
    score = leader.score if leader is not None else None
    return {
        "id": row.id,
        "name": row.study.name,
        "objective": row.study.objective.expression,
        "more_objectives": [more.expression for more in row.study.more_objectives],
        "limits": list(row.study.limits),
        "strategy": row.strategy,
        "status": status(row, records),
        "created_at": row.created_at,
        "trials": records.counts(row.id).trials,
        "best": None if result is None else result.centre,
        "low": None if result is None else result.low,
        "high": None if result is None else result.high,
        "launches": None if result is None else result.launch_count,
        "both": None if result is None else result.both,
        "unit": score.unit if score is not None else None,
        "caveats": None if leader is None else "; ".join(remarks(leader)) or None,
    }


def _details(row: StudyRow, last: int, records: Store) -> dict[str, object]:
    finding, known = ended_with(row), History(again=values_again(row, records))
    return {
        "scored_again": False,
        "finding": None if finding is None else json.loads(to_json(finding)),
        "study": json.loads(to_json(row.study)),
        "models": use_facts(records.model_uses(row.id), row.study.llm),
        "trial_count": records.counts(row.id).trials,
        "trials": [trial_summary(trial, known) for trial in records.latest(row.id, last)],
    }


def _lines(row: StudyRow, leader: Trial | None, records: Store) -> Iterator[Line]:
    if (finding := ended_with(row)) is not None:
        yield "stopped", finding.stop_reason
    yield from launch_lines(row.study)
    counts = records.counts(row.id)
    launches = f"{counts.launches} launches, {counts.repeats} of them made again"
    yield "trials", f"{counts.measured} measured, {counts.failed} failed; {launches}"
    for kind, count in records.failures(row.id).items():
        yield "failed", f"{count} {kind}"
    for use in records.model_uses(row.id):
        yield "model", use_words(use, row.study.llm)
    yield from _best_lines(row, leader, records)
    yield "status", status(row, records)
    yield "record", f"study {row.id} in {records.root}"
    if leader is not None:
        yield "next", f"cclsearch best {row.id} --format args{store_flag(records.root)}"


def _best_lines(row: StudyRow, leader: Trial | None, records: Store) -> Iterator[Line]:
    result = best_result(row, leader, records)
    if leader is None or leader.score is None or result is None:
        yield "best", "none, because no configuration could be measured that breaks no limit"
        return
    settings = settings_words(leader.config, row.study) if leader.config is not None else ""
    yield "best", f"trial {leader.ordinal}: {settings}"
    yield row.study.objective.expression, spread_words(result, leader.score.unit)
    for caveat in remarks(leader):
        yield "caveat", caveat
