"""`trial show|logs|files|script`: one recorded trial, its files and a script to start it."""

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import typer

from records.codec import to_json
from records.errors import StoreError, StudyError
from records.store.rows import ComputedMetric, StudyRow
from records.store.store import Store
from records.trial import Artifact, Failed, History, Measured, Policy, Trial
from records.workload import Workload
from search.cli.options import JsonOption, StoreOption, examples, store_flag
from search.loop.leader import study_leader
from search.loop.study_result import trial_spread
from search.report.summary import spread_words
from search.settings import open_store
from search.storage import POLICY, absence, copy_files, stored_text
from search.transfer.script import launch_script
from search.views.diagnosis import diagnosis_lines, diagnosis_of, diagnosis_words
from search.views.format import absence_lines, format_number, message_words, one_line, score_words
from search.views.machine import conditions_words, launch_lines, machine_of
from search.views.study import results_in_contexts
from search.views.terminal import echo_wrapped, trial_line, trial_summary

CAUSE_CHARS = 500

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Inspect one trial of a study.")

WhichTrial = Annotated[
    list[str],
    typer.Argument(
        metavar="TRIAL",
        help="[STUDY] N: number of the trial, after its study id if that is not the newest.",
        show_default=False,
    ),
]


@app.command(epilog=examples("cclsearch trial show 3", "cclsearch trial show 20260131-1200 3"))
def show(which: WhichTrial, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show a trial: its policy, configuration, result, metrics, files and LLM exchange."""
    with _chosen(which, store) as (row, trial, records):
        if as_json:
            typer.echo(json.dumps(_facts(trial, row, records)))
            return
        typer.echo(f"study {row.id}")
        history = study_leader(row, records).history
        echo_wrapped(trial_line(trial, history))
        for words in _value_lines(trial, history):
            echo_wrapped(words)
        typer.echo(f"launches: {trial.attempts}")
        typer.echo("\n".join(_policy_lines(trial.policy)))
        match trial.outcome:
            case Measured() as measured:
                _print_measured(measured, row.study.workload)
            case Failed() as failed:
                typer.echo(f"failure: {failed.kind} at {failed.stage}")
                echo_wrapped(f"first cause: {one_line(failed.message, CAUSE_CHARS)}")
        for computed in _computed(records, row, trial):
            echo_wrapped(_computed_line(computed))
        for line in _launch_lines(trial, records):
            echo_wrapped(line)
        for found in results_in_contexts(trial, history, row.study):
            echo_wrapped(f"in context {found.name}: {found.words}")
        for line in _file_lines(trial, row, records):
            echo_wrapped(line)
        for command in _next_commands(trial, row):
            typer.echo(f"next: {command}{store_flag(records.root)}")


@app.command(epilog=examples("cclsearch trial logs 3", "cclsearch trial logs 3 --rank 0"))
def logs(
    which: WhichTrial,
    rank: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Only this rank. [default: all]")
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the output of the ranks of a trial."""
    with _chosen(which, store) as (row, trial, records):
        whose = "" if rank is None else f"rank{rank}."
        found = [a for a in trial.outcome.artifacts if _is_log(a) and a.name.startswith(whose)]
        if as_json:
            texts = {a.name: stored_text(row.id, trial.ordinal, a, records) for a in found}
            typer.echo(json.dumps(texts))
            return
        if not found:
            whose = f" of rank {rank}" if rank is not None else ""
            command = f"cclsearch trial show {row.id} {trial.ordinal}{store_flag(records.root)}"
            raise StudyError(f"trial {trial.ordinal} has no log{whose}; see `{command}`")
        for artifact in found:
            typer.echo(f"== {artifact.name}")
            typer.echo(stored_text(row.id, trial.ordinal, artifact, records))


@app.command(epilog=examples("cclsearch trial files 3 --to trial-3"))
def files(
    which: WhichTrial,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="Target folder; created if missing.")],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the files of a trial (traces, logs, job) out of the store, under their own names.

    Open a rank's trace in Perfetto. To start the job manually, see `cclsearch trial script`.
    """
    with _chosen(which, store) as (row, trial, records):
        policy = to / POLICY
        try:
            to.mkdir(parents=True, exist_ok=True)
            policy.write_text(trial.policy.source, encoding="utf-8")
        except OSError as error:
            raise StoreError(f"cannot copy trial {trial.ordinal} to {to}: {error}") from error
        copies = copy_files(row.id, trial.ordinal, trial.outcome.artifacts, to, records)
    paths = [str(policy), *map(str, copies.paths)]
    typer.echo(json.dumps(paths) if as_json else "\n".join(paths))
    for line in copies.removed:
        typer.echo(line, err=True)
    if copies.faults:
        raise StoreError("; ".join(copies.faults))


@app.command(
    epilog=examples(
        "cclsearch trial script 3", "cclsearch trial script 3 -o again.sh && sh again.sh"
    )
)
def script(
    which: WhichTrial,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="File to write. [default: print]"),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Launch in this context. [default: the study's own]"),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a shell script that starts the job of a trial manually.

    It contains the job's files, environment and command. Comments say which trial it was, where it
    ran and what it measured.
    """
    with _chosen(which, store) as (row, trial, records):
        text = launch_script(trial, row, records, context)
    if output is not None:
        try:
            with output.open("x", encoding="utf-8") as file:
                file.write(text)
            output.chmod(0o755)
        except OSError as error:
            raise StudyError(f"cannot write {output}: {error.strerror}; give another") from error
    if as_json:
        typer.echo(json.dumps({"study_id": row.id, "ordinal": trial.ordinal, "script": text}))
    elif output is None:
        typer.echo(text, nl=False)
    else:
        typer.echo(f"next: sh {shlex.quote(str(output))}")


@contextmanager
def _chosen(which: list[str], store: Path | None) -> Iterator[tuple[StudyRow, Trial, Store]]:
    """Yield the study, the trial and the store; without an id that is the newest study."""
    *studies, ordinal = which
    if len(studies) > 1 or not ordinal.isdecimal():
        raise StudyError(
            f"{' '.join(which)!r} is not a trial; give its number, as in `cclsearch trial show 3`"
        )
    with open_store(store) as records:
        row = records.find("".join(studies))
        history = records.history(row.id)
        trial = history.find(int(ordinal))
        if trial is None:
            command = f"cclsearch show {row.id}{store_flag(records.root)}"
            raise StudyError(
                f"study {row.id} has no trial {ordinal}; it has {len(history)}, see `{command}`"
            )
        yield row, trial, records


def _policy_lines(policy: Policy) -> Iterator[str]:
    """Yield the rationale, the prediction and the source of a policy."""
    yield f"rationale: {policy.rationale}"
    if policy.prediction is not None:
        over = policy.prediction.over
        yield f"expected: {policy.prediction.speedup:.2f} times as good as trial {over}"
    yield f"\n{policy.source.rstrip()}\n"


def _value_lines(trial: Trial, history: History) -> Iterator[str]:
    """Yield start and end, the value over all launches, and the value of the first launch."""
    if trial.started_at:  # other tools may not record it
        yield f"started {trial.started_at}, ended {trial.ended_at}"
    found = trial_spread(trial, history)
    if found is None or trial.score is None:
        return
    yield f"value: {spread_words(found, trial.score.unit)}"
    if found.launch_count > 1:
        yield f"first launch: {score_words(trial.score)}, not counted with the repeats"


def _file_lines(trial: Trial, row: StudyRow, records: Store) -> Iterator[str]:
    """Yield each file with its path, or why it is missing."""
    for artifact in trial.outcome.artifacts:
        place = _place(records, row.id, artifact.digest)
        yield f"{artifact.name}  {artifact.size_bytes} bytes  {place}"
    if trial.exchange is not None:
        yield f"exchange.json  {_place(records, row.id, trial.exchange)}"


def _next_commands(trial: Trial, row: StudyRow) -> list[str]:
    commands: list[str] = []
    if isinstance(trial.outcome, Measured) and trial.outcome.breakdown is not None:
        commands.append(f"cclsearch trace breakdown trial:{row.id}:{trial.ordinal}")
    if trial.outcome.launched is not None:
        commands.append(f"cclsearch trial script {row.id} {trial.ordinal}")
    if any(_is_log(artifact) for artifact in trial.outcome.artifacts):
        commands += [
            f"cclsearch trial logs {row.id} {trial.ordinal}",
            f"cclsearch trial files {row.id} {trial.ordinal} --to trial-{trial.ordinal}",
        ]
    return commands


def _print_measured(measured: Measured, workload: Workload) -> None:
    for metric in measured.metrics:
        typer.echo(f"{metric.name} = {format_number(metric.value)} {metric.unit}".rstrip())
    times_s = measured.measurement.message_times_s
    for message, time_s in zip_longest(workload.messages, times_s):
        each = "" if time_s is None else f": {format_number(time_s)} s a call"
        echo_wrapped(f"each step: {message_words(message)}{each}")
    for line in absence_lines(measured.absent):
        echo_wrapped(line)
    if measured.diagnosis is not None:
        echo_wrapped(f"where time went: {diagnosis_words(measured.diagnosis)}")
        for line in diagnosis_lines(measured.diagnosis):
            echo_wrapped(f"  {line}")
    if measured.measurement.conditions is not None:
        echo_wrapped(f"machine: {conditions_words(measured.measurement.conditions)}")


def _facts(trial: Trial, row: StudyRow, records: Store) -> dict[str, object]:
    contexts = results_in_contexts(trial, records.history(row.id), row.study)
    exchange = None
    if trial.exchange is not None:
        exchange = json.loads(to_json(records.exchange(trial.exchange)))
    diagnosis, expected = diagnosis_of(trial.outcome), trial.policy.prediction
    machine = machine_of(trial.outcome.launched, records)
    return {
        "study_id": row.id,
        **trial_summary(trial, study_leader(row, records).history),
        "policy_source": trial.policy.source,
        "rationale": trial.policy.rationale,
        "expected_speedup": expected.speedup if expected else None,
        "expected_over": expected.over if expected else None,
        "attempts": trial.attempts,
        "outcome": json.loads(to_json(trial.outcome)),
        "where_time_went": None if diagnosis is None else diagnosis_words(diagnosis),
        "contexts": [asdict(found) for found in contexts],
        "files": {a.name: str(records.artifacts.path(a.digest)) for a in trial.outcome.artifacts},
        "absent_files": {
            a.name: why
            for a in trial.outcome.artifacts
            if (why := absence(row.id, a.digest, records)) is not None
        },
        "exchange": exchange,
        "machine": None if machine is None else json.loads(to_json(machine)),
        "computed_metrics": [asdict(each) for each in _computed(records, row, trial)],
    }


def _launch_lines(trial: Trial, records: Store) -> Iterator[str]:
    """Yield how the trial was launched, in each context."""
    others = [(f"in context {one.name}: ", one.outcome) for one in trial.outcome.contexts[1:]]
    first = trial.outcome.contexts[0].outcome if trial.outcome.contexts else trial.outcome
    for prefix, outcome in [("", first), *others]:
        if outcome.launched is not None:
            machine = machine_of(outcome.launched, records)
            yield from (f"{prefix}{line}" for line in launch_lines(outcome.launched, machine))


def _computed(records: Store, row: StudyRow, trial: Trial) -> tuple[ComputedMetric, ...]:
    """Return metrics computed after the trial ended: every version of every metric."""
    return records.computed_metrics(row.id, trial.ordinal).get(trial.ordinal, ())


def _computed_line(computed: ComputedMetric) -> str:
    when = f"version {computed.version}, computed {computed.computed_at}"
    if computed.value is None:
        return f"no {computed.name} ({when}): {one_line(computed.absent or '', CAUSE_CHARS)}"
    return f"{computed.name} = {format_number(computed.value)} {computed.unit} ({when})"


def _is_log(artifact: Artifact) -> bool:
    return artifact.name.endswith((".log", ".stacks.txt"))


def _place(records: Store, study_id: str, digest: str) -> str:
    """Return the path of a file, or why it is missing."""
    path = str(records.artifacts.path(digest))
    return absence(study_id, digest, records) or path
