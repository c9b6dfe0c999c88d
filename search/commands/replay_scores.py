"""`replay --mode score`: prints how a study scores by today's definitions of its metrics."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import typer

from records.trial import MetricValue, Score
from search.commands.options import Asked, store_flag
from search.finding import leader_of
from search.reading import recorded
from search.replay.today import ScoredTrial, Today, scored_today
from search.rescoring import Rescored
from search.words.objective import objective_words
from search.words.trial import NO_CONFIG, number, one_line, score_words

REASON_CHARS = 300


def print_scored_today(
    study_id: str, asked: Asked, metrics_file: Path | None, store: Path | None, *, as_json: bool
) -> bool:
    """Score a study again and print what changes; gives whether nothing does."""
    with recorded(store) as records:
        row = records.find(study_id)
        leader = leader_of(row, records)
        won = None if leader is None else leader.ordinal
        today = scored_today(row, records, asked.of(row.study), metrics_file)
        flag = store_flag(records.root)
    if as_json:
        typer.echo(json.dumps(_facts(row.id, won, today)))
        return today.same
    question = objective_words(today.now.row.study)
    typer.echo(f"study {row.id}: scored by {question}; nothing was launched or stored")
    for each in today.trials:
        typer.echo(_line(each))
    won_words = "nobody" if won is None else f"trial {won}"
    typer.echo(f"led: {won_words}, by {objective_words(row.study)}, as the search found it")
    typer.echo(f"leads by the values on record: {_leader_words(today.then)}")
    typer.echo(f"leads by those of today: {_leader_words(today.now)}")
    for line in _newer_lines(today, row.id, flag):
        typer.echo(line)
    typer.echo(_verdict(today))
    return today.same


def _line(each: ScoredTrial) -> str:
    config = str(each.trial.config) if each.trial.config is not None else NO_CONFIG
    words = [f"then {_score(each.then)}, now {_score(each.now)}: {_change(each)}"]
    words += [_changed_words(*pair) for pair in each.changed]
    if each.unread is not None:
        words.append(f"as on record, since {one_line(each.unread, REASON_CHARS)}")
    return f"trial {each.trial.ordinal}  {config}  {'; '.join(words)}"


def _score(score: Score | None) -> str:
    return "none" if score is None else score_words(score)


def _change(each: ScoredTrial) -> str:
    if each.is_same:
        return "same"
    if each.then is None or each.now is None or not each.then.value:
        return "differs"
    share = each.now.value / each.then.value - 1
    return f"{share:+.2%}" if share else "other limits are broken"


def _changed_words(was: MetricValue | None, now: MetricValue | None) -> str:
    told = was or now
    name = "" if told is None else told.name
    return f"{name} {_value(was)} -> {_value(now)}"


def _value(value: MetricValue | None) -> str:
    return "none" if value is None else f"{number(value.value)} (version {value.version})"


def _leader_words(scored: Rescored) -> str:
    best = scored.history.best
    if best is None or best.score is None:
        return "nobody"
    return f"trial {best.ordinal}, {number(_centre(scored, best.score))} {best.score.unit}".rstrip()


def _centre(scored: Rescored, score: Score) -> float:
    """What the leader has over all its launches."""
    result = scored.finding.result
    return score.value if result is None else result.centre


def _newer_lines(today: Today, study_id: str, flag: str) -> Iterator[str]:
    if today.newer:
        told = (f"{name} {new} (on record {old})" for name, (old, new) in today.newer.items())
        yield f"newer versions: {', '.join(told)}"
        yield f"next: cclsearch metrics compute --study {study_id}{flag}"


def _verdict(today: Today) -> str:
    if today.same:
        return f"same: {len(today.trials)} trials, the leader"
    changed = sum(not each.is_same for each in today.trials)
    moved = today.then.finding.winner != today.now.finding.winner
    return f"differs: {changed} of {len(today.trials)} trials{', the leader' if moved else ''}"


def _facts(study_id: str, won: int | None, today: Today) -> dict[str, object]:
    """The scores for programs; absent values are null."""
    return {
        "study_id": study_id,
        "mode": "score",
        "same": today.same,
        "objective": today.now.row.study.objective.expression,
        "led": won,
        "leads_on_record": today.then.finding.winner,
        "leads_today": today.now.finding.winner,
        "newer_versions": {name: list(pair) for name, pair in today.newer.items()},
        "trials": [
            {
                "ordinal": each.trial.ordinal,
                "then": None if each.then is None else each.then.value,
                "now": None if each.now is None else each.now.value,
                "unit": "" if each.now is None else each.now.unit,
                "same": each.is_same,
                "changed": [[_fact(was), _fact(now)] for was, now in each.changed],
                "unread": each.unread,
            }
            for each in today.trials
        ],
    }


def _fact(value: MetricValue | None) -> dict[str, object] | None:
    return None if value is None else asdict(value)
