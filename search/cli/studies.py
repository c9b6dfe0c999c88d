"""`list`, `show` and `best`: recorded studies, their trials, fronts and learned constraints."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer
from rich.cells import cell_len
from rich.table import Table

from evaluator.objective import scoring_of
from records.codec import from_json, to_json
from records.errors import StoreError, StudyError, suggestion
from records.store.queries import StudyQuery
from records.store.rows import Labels, StudyRow
from records.store.store import Store
from records.study import MEASURE
from records.trial import History, Trial
from search.cli.options import (
    JsonOption,
    ObjectiveOptions,
    PlotOption,
    StoreOption,
    StudyArgument,
    examples,
    option,
    print_result,
    store_flag,
    takes_options,
)
from search.loop.leader import study_leader
from search.loop.study_result import (
    StudyResult,
    best_result,
    final_result,
    leader_of,
    repeated_values,
    rescore,
    trial_spread,
)
from search.report.data import (
    StudyRecord,
    large_study_lines,
    origin_lines,
    print_lines,
    print_report,
    report_lines,
    study_facts,
    study_words,
    undecided_line,
)
from search.settings import has_records, open_store, scrubber, status, store_root
from search.study.spaces import part_named, space_of
from search.views.console import Terminal, on_terminal
from search.views.format import (
    reached_words,
)
from search.views.study import config_text, front_words, objective_words, use_facts, use_words
from search.views.terminal import GAP, print_trials, trial_line
from search.views.trial import Line, trial_facts

if TYPE_CHECKING:
    from search.loop.learned import LearnedConstraint


app = typer.Typer(rich_markup_mode=None)

READ_WHOLE = 2000
"""Studies with more trials are shown by counts and only the trials to print are read."""
COLUMNS = ("study", "status", "trials", "best", "objective", "strategy", "name")
LEAST_USEFUL = ("strategy", "objective", "name")
"""Columns that a narrow terminal does without, in this order."""
WRAPPED = ("best", "name")
WRAPPED_CELLS = 20
PIPE_WIDTH = 1000
"""Output into a pipe is never truncated."""


@app.command("list", epilog=examples("cclsearch list", "cclsearch list --json"))
@takes_options
def list_studies(
    count: int = option(50, "Show only the newest N.", "--limit", metavar="N", min=1),
    tag: str | None = option(None, "Only studies with this tag.", metavar="TAG"),
    archived: bool = option(False, "Show the archived studies instead."),
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List recorded studies, newest first, without archived ones."""
    facts: list[dict[str, object]] = []
    best: list[str] = []
    all_count = 0
    root = store_root(store).absolute()
    if has_records(store):
        with open_store(store) as records:
            asked = StudyQuery(tag=tag, archived=archived, limit=count)
            rows, all_count = records.study_page(asked)
            for row in rows:
                leader = leader_of(row, records)
                facts.append(study_facts(row, leader, records))
                best.append(_best_words(leader, row, records))
    if as_json:
        typer.echo(json.dumps(facts))
    elif facts:
        _print_table(facts, best)
    elif tag is not None or archived:
        typer.echo(f"no such studies in {root}; for the others: cclsearch list", err=True)
    else:
        typer.echo(f"no studies in {root}; next: cclsearch run --objective step_time", err=True)
    if len(facts) < all_count:
        shown = f"the newest {len(facts)} of {all_count} studies; for more: cclsearch list --limit"
        typer.echo(f"{shown} {all_count}{store_flag(root)}", err=True)


@app.command(
    epilog=examples(
        "cclsearch show",
        "cclsearch show 20260131-120000-ab12",
        "cclsearch show --front --objective step_time --objective gpus --plot front.svg",
    )
)
@takes_options
def show(
    *,
    study_id: StudyArgument = "",
    asked: ObjectiveOptions,
    front: bool = option(False, "Show only the Pareto front."),
    plot: PlotOption = None,
    constraints: bool = option(
        False, "Show only the constraints: given, and learned from failures."
    ),
    revoke: str | None = option(
        None, "With --constraints: revoke a learned constraint.", metavar="NAME"
    ),
    last: int = option(100, "Show only the last N trials.", metavar="N", min=1),
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a study: its trials and its result.

    With --objective or --limit, recorded trials are rescored; nothing is launched.
    """
    if constraints or revoke is not None:
        print_constraints(study_id, revoke, store, as_json=as_json)
        return
    if front:
        print_front(study_id, asked, plot, store, as_json=as_json)
        return
    if plot is not None:
        raise StudyError("--plot draws the front; add --front")
    with open_store(store) as records:
        is_large = _is_large(records.find(study_id), asked, records)
        record, leader = _record_and_leader(study_id, asked, records)
        row, history = record.row, record.history
        if as_json:
            latest = records.latest(row.id, last) if is_large else history.trials[-last:]
            facts = {
                **study_facts(row, leader, records),
                "scored_again": asked.is_given,
                "trial_count": records.counts(row.id).trials,
                "lost_launches": record.lost,
                "finding": json.loads(row.summary) if row.summary else None,
                "study": json.loads(to_json(row.study)),
                "models": use_facts(records.model_uses(row.id), row.study.llm),
                "trials": [trial_facts(trial, trial_spread(trial, history)) for trial in latest],
            }
            typer.echo(json.dumps(facts))
            return
        typer.echo(study_words(row))
        for line in _label_lines(row.labels):
            typer.echo(line)
        if is_large:
            _print_large_study(row, leader, last, records)
            return
        print_last_trials(history, last, len(history))
        if asked.is_given:
            print_lines(_scored_again_lines(record, asked))
            return
        if (finding := final_result(row)) is not None:
            print_report(finding, record, store_flag(records.root))
        else:
            _print_status(record, records)


@app.command(
    epilog=examples(
        "cclsearch best --format args",
        "cclsearch best --objective rank_seconds --limit 'step_time < 500 ms'",
    )
)
@takes_options
def best(
    *,
    study_id: StudyArgument = "",
    form: Literal["json", "env", "args", "policy"] = option(
        "json",
        "Print the knobs as a JSON object, KEY=value lines or command-line arguments, "
        "or print the policy.",
        "--format",
    ),
    context: str | None = option(
        None, "Configuration in this context. [default: the study's own]", metavar="NAME"
    ),
    asked: ObjectiveOptions,
    store: StoreOption = None,
    as_json: bool = option(False, "Print the whole trial as JSON instead.", "--json"),
) -> None:
    """Print the best configuration for other programs to read.

    With --objective or --limit, recorded trials are rescored; nothing is launched.
    """
    with open_store(store) as records:
        record, trial = _record_and_leader(study_id, asked, records)
    row = record.row
    if trial is None:
        unfit = "no trial that satisfies all limits"
        which = unfit if record.history.measured else "no measured trial"
        command = f"cclsearch show {row.id}{asked.flags}{store_flag(record.store)}"
        raise StoreError(f"study {row.id} has {which}; see `{command}`")
    if trial.config is None:
        raise StoreError(f"trial {trial.ordinal} of study {row.id} has no recorded configuration")
    part = part_named(trial.policy, trial.config, row.study, context)
    if as_json:
        facts = {
            "study_id": row.id,
            "scored_again": asked.is_given,
            **trial_facts(trial, trial_spread(trial, record.history)),
        }
        typer.echo(json.dumps({**facts, "front": list(record.history.front)}))
        return
    typer.echo(study_words(row), err=True)
    for words in _notes(record, trial, asked):
        typer.echo(words, err=True)
    if form == "policy":
        typer.echo(trial.policy.source.rstrip())
    else:
        typer.echo(config_text(form, part.study, part.config))


@app.command(
    epilog=examples(
        "cclsearch label --tag baseline --notes 'before the driver update'",
        "cclsearch label 20260131-120000-ab12 --archive",
    )
)
@takes_options
def label(
    *,
    study_id: StudyArgument = "",
    tag: list[str] = option([], "Add a tag; repeat it for more.", metavar="TAG"),
    untag: list[str] = option([], "Remove a tag; repeat it for more.", metavar="TAG"),
    notes: str | None = option(None, "Replace the notes; '' removes them.", metavar="TEXT"),
    archived: bool | None = option(
        None, "Leave the study out of lists, or show it in them again.", "--archive/--restore"
    ),
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show or change the tags and notes of a study, or archive it.

    They are recorded with the study; `cclsearch list --tag` and the service show them.
    """
    scrub = scrubber().text
    with open_store(store) as records:
        row = records.find(study_id)
        labels = row.labels.change(
            tags=({*row.labels.tags} | {*map(scrub, tag)}) - {*untag},
            notes=None if notes is None else scrub(notes),
            archived=archived,
        )
        if labels != row.labels:
            records.label(row.id, labels)
    if as_json:
        typer.echo(json.dumps({"study_id": row.id, **asdict(labels)}))
        return
    typer.echo(study_words(row), err=True)
    for line in (*_label_lines(labels),) or ("no tags and no notes",):
        typer.echo(line)


def _label_lines(labels: Labels) -> Iterator[str]:
    if labels.tags:
        yield f"tags: {', '.join(labels.tags)}"
    if labels.notes:
        yield f"notes: {labels.notes}"
    if labels.archived:
        yield "archived"


def _is_large(row: StudyRow, asked: ObjectiveOptions, records: Store) -> bool:
    """Whether only some trials of a study are read."""
    return records.counts(row.id).trials > READ_WHOLE and not asked.is_given


def _print_large_study(row: StudyRow, leader: Trial | None, last: int, records: Store) -> None:
    """Print the last trials of a large study, its counts and its result."""
    latest, first = records.latest(row.id, last), records.trial(row.id, 0)
    read = {trial.ordinal: trial for trial in (first, leader, *latest) if trial is not None}
    history = History(
        tuple(read[ordinal] for ordinal in sorted(read)),
        incumbent=None if leader is None else leader.ordinal,
        again=repeated_values(row, records),
    )
    print_last_trials(history, len(latest), records.counts(row.id).trials)
    print_lines(large_study_lines(row, leader, records, store_flag(records.root)))


def _print_status(record: StudyRecord, records: Store) -> None:
    """Print how far an unfinished study is, and how to resume it."""
    row = record.row
    now = status(row, records)
    lines = [*origin_lines(record)]
    lines += [("model", use_words(use, row.study.llm)) for use in record.uses]
    lines.append(("status", now))
    if now != "running":
        replay = row.strategy == MEASURE
        command = f"replay {row.id} --mode measure" if replay else f"resume {row.id}"
        trusts = " --trust" if row.study.is_from_bundle else ""
        lines.append(("next", f"cclsearch {command}{trusts}{store_flag(records.root)}"))
    for label, words in lines:
        typer.echo(f"{label}: {words}")


def print_last_trials(history: History, last: int, trial_count: int) -> None:
    """Print the last trials, and how many are left out."""
    shown = history.trials[-last:]
    if len(shown) < trial_count:
        typer.echo(f"the last {len(shown)} of {trial_count} trials; --last shows more", err=True)
    if on_terminal():
        print_trials(Terminal(), shown, history)
        return
    for trial in shown:
        typer.echo(trial_line(trial, history))


def _record_and_leader(
    study_id: str, asked: ObjectiveOptions, records: Store
) -> tuple[StudyRecord, Trial | None]:
    """Return a study and its leader, as recorded or rescored."""
    row = records.find(study_id)
    if _is_large(row, asked, records):
        leader = leader_of(row, records)
        known = History(() if leader is None else (leader,), again=repeated_values(row, records))
        launches = records.counts(row.id).launches
        return StudyRecord(
            row=row, history=known, launch_count=launches, store=records.root
        ), leader
    record = StudyRecord.of(row.id, records)
    if not asked.is_given:
        return record, leader_of(row, records)
    again = rescore(row, records, asked.of(row.study))
    return replace(record, row=again.row, history=again.history), again.history.best


def _scored_again_lines(record: StudyRecord, asked: ObjectiveOptions) -> Iterator[Line]:
    """Yield the report without the stop reason; `next` repeats the flags for `best`."""
    finding = from_json(StudyResult, record.row.summary or "")
    found = report_lines(finding, record, store_flag(record.store))
    yield "rescored", f"by {objective_words(record.row.study)}; nothing was launched"
    yield from (line for line in found if line[0] not in ("stopped", "next"))
    if finding.winner is not None:
        command = f"cclsearch best {record.row.id} --format args{asked.flags}"
        yield "next", f"{command}{store_flag(record.store)}"


def _notes(record: StudyRecord, trial: Trial, asked: ObjectiveOptions) -> Iterator[str]:
    """Yield notes on the best: how it was scored, and which trials share the front."""
    if asked.is_given:
        yield f"rescored by {objective_words(record.row.study)}; nothing was launched"
    finding = final_result(record.row)
    undecided = finding and undecided_line(finding, record.history)
    if undecided:
        yield f"undecided: {undecided}"
    others = [str(ordinal) for ordinal in record.history.front if ordinal != trial.ordinal]
    if others:
        command = f"cclsearch show {record.row.id} --front{asked.flags}{store_flag(record.store)}"
        yield f"also on the Pareto front: {', '.join(others)}; see `{command}`"


def _print_table(studies: list[dict[str, object]], best: list[str]) -> None:
    rows = [
        {**facts, "study": facts["id"], "best": words, "name": _name_with_tags(facts)}
        for facts, words in zip(studies, best, strict=True)
    ]
    cells = {heading: [str(row[heading]) for row in rows] for heading in COLUMNS}
    least = {
        heading: max(_least_cells(heading, text) for text in (heading, *texts))
        for heading, texts in cells.items()
    }
    console = Terminal(width=None if on_terminal() else PIPE_WIDTH, highlight=False)
    left_out = []
    for heading in LEAST_USEFUL:
        if sum(least.values()) + GAP * (len(least) - 1) > console.width:
            left_out.append(heading)
            del least[heading]
    table = Table(box=None, pad_edge=False)
    for heading, width in least.items():
        table.add_column(heading, no_wrap=heading not in WRAPPED, min_width=width)
    for row in zip(*(cells[heading] for heading in least), strict=True):
        table.add_row(*row)
    console.print(table)
    if left_out:
        console.print(
            f"{' and '.join(left_out)} do not fit here; for all columns: cclsearch list | cat"
        )
    for facts in studies:
        if facts["caveats"]:
            console.print(f"best of {facts['id']}: {facts['caveats']}")


def _name_with_tags(facts: Mapping[str, object]) -> str:
    tags = facts["tags"]
    found = tags if isinstance(tags, tuple) else ()
    return " ".join([str(facts["name"]), *(f"#{tag}" for tag in found)])


def _least_cells(heading: str, text: str) -> int:
    """The width below which a column would be cut or hard to read."""
    if heading not in WRAPPED:
        return cell_len(text)
    return min(max([WRAPPED_CELLS, *map(cell_len, text.split())]), cell_len(text))


def _best_words(leader: Trial | None, row: StudyRow, records: Store) -> str:
    found = best_result(row, leader, records)
    if found is None or leader is None or leader.score is None:
        return "-"
    return reached_words(found, leader.score.unit)


def print_front(
    study_id: str, asked: ObjectiveOptions, plot: Path | None, store: Path | None, *, as_json: bool
) -> None:
    """Print the Pareto front, and draw it into `plot`."""
    with open_store(store) as records:
        row = records.find(study_id)
        study = asked.of(row.study)
        if not study.more_objectives:
            raise StudyError(
                f"study {row.id} has one objective, so there is no front; give several, as in "
                f"`cclsearch show {row.id} --front --objective step_time --objective rank_count"
                f"{store_flag(records.root)}`"
            )
        if asked.is_given:
            again = rescore(row, records, study)
            history, front, scoring = again.history, again.finding.front, again.scoring
        else:
            led = study_leader(row, records)
            history, front = led.history, led.front
            scoring = scoring_of(study).over(history)
    if plot is not None:
        from search.report.explored import draw_fronts, history_front
        from search.views.html import write_chart

        ((_, drawn),) = draw_fronts(history_front(scoring, history, front))
        write_chart(drawn, f"{study.name}: {row.id}", plot)
    how = "; rescored, nothing was launched" if asked.is_given else ""
    measured = f"{len(front)} of {len(history.measured)} measured trials"
    lines = (f"{measured}, over {objective_words(study)}{how}", *front_words(front, history))
    if as_json:
        typer.echo(json.dumps([json.loads(to_json(member)) for member in front]))
    else:
        print_lines(("front", words) for words in lines)


def print_constraints(
    study_id: str, revoke: str | None, store: Path | None, *, as_json: bool
) -> None:
    """Print given, learned and revoked constraints."""
    with open_store(store) as records:
        row = records.find(study_id)
        if revoke is not None:
            row = _without(row, revoke, records)
        found = _learned(row, records)
        given = [rule.words for rule in space_of(row.study).rules]
        facts = {
            "study_id": row.id,
            "given": given,
            "learned": [
                {
                    "name": each.constraint.name,
                    "expression": each.constraint.expression,
                    "kind": each.kind,
                    "trials": each.ordinals,
                }
                for each in found
            ],
            "revoked": row.study.revoked,
        }
        last = "no constraints were learned from failures"
        if found:
            name = shlex.quote(found[0].constraint.name)
            again = f"cclsearch show {row.id} --constraints --revoke {name}"
            last = f"next: {again}{store_flag(records.root)}"
        lines = (
            *(f"given: {rule}" for rule in given),
            *(f"{each.constraint.name} ({each.constraint.reason})" for each in found),
            *(f"revoked: {name}" for name in row.study.revoked),
            last,
        )
        print_result(facts, lines, as_json=as_json)


def _without(row: StudyRow, name: str, records: Store) -> StudyRow:
    """Revoke a learned constraint and return the study."""
    with records.lock(row.id):
        names = [each.constraint.name for each in _learned(row, records)]
        if name not in names:
            none = "no constraints were learned from failures"
            known = suggestion(name, names) if names else none
            raise StudyError(f"no learned constraint has the name {name!r}; {known}")
        study = replace(row.study, revoked=(*row.study.revoked, name))
        records.replace_study(row.id, study)
    return replace(row, study=study)


def _learned(row: StudyRow, records: Store) -> "Sequence[LearnedConstraint]":
    from search.loop.learned import learned_constraints

    return learned_constraints(space_of(row.study), records.history(row.id), row.study.revoked)
