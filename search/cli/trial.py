"""`trial show|logs|files|script`: one recorded trial, its files and a script to start it."""

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from records.codec import to_json
from records.errors import StoreError, StudyError
from records.store.rows import StudyRow
from records.store.store import Store
from records.trial import Artifact, Measured, Trial
from search.cli.options import (
    JsonOption,
    StoreOption,
    examples,
    option,
    print_result,
    store_flag,
    takes_options,
    write_file,
)
from search.loop.study_result import leader_of
from search.report.data import trial_record
from search.settings import open_store
from search.storage import POLICY, copy_files, stored_text
from search.transfer.script import launch_script
from search.views.diagnosis import diagnosis_of, diagnosis_words
from search.views.terminal import print_document
from search.views.trial import TrialRecord, absences, trial_document, trial_facts

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
        record = trial_record(row, trial, leader_of(row, records), records)
        if as_json:
            typer.echo(json.dumps(_facts(record, records)))
            return
        print_document(trial_document(record))
        for command in _next_commands(trial, row):
            typer.echo(f"next: {command}{store_flag(records.root)}")


@app.command(epilog=examples("cclsearch trial logs 3", "cclsearch trial logs 3 --rank 0"))
@takes_options
def logs(
    which: WhichTrial,
    rank: int | None = option(None, "Only this rank. [default: all]", metavar="N", min=0),
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the output of the ranks of a trial."""
    with _chosen(which, store) as (row, trial, records):
        whose = "" if rank is None else f"rank{rank}."
        found = [a for a in trial.outcome.artifacts if _is_log(a) and a.name.startswith(whose)]
        texts = {a.name: stored_text(row.id, trial.ordinal, a, records) for a in found}
        if not (found or as_json):
            whose = f" of rank {rank}" if rank is not None else ""
            command = f"cclsearch trial show {row.id} {trial.ordinal}{store_flag(records.root)}"
            raise StudyError(f"trial {trial.ordinal} has no log{whose}; see `{command}`")
        lines = (line for name, text in texts.items() for line in (f"== {name}", text))
        print_result(texts, lines, as_json=as_json)


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
    print_result(paths, paths, as_json=as_json)
    for line in copies.removed:
        typer.echo(line, err=True)
    if copies.faults:
        raise StoreError("; ".join(copies.faults))


@app.command(
    epilog=examples(
        "cclsearch trial script 3", "cclsearch trial script 3 -o again.sh && sh again.sh"
    )
)
@takes_options
def script(
    which: WhichTrial,
    output: Path | None = option(
        None, "File to write. [default: print]", "--output", "-o", metavar="FILE"
    ),
    context: str | None = option(
        None, "Launch in this context. [default: the study's own]", metavar="NAME"
    ),
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
        write_file(output, text, mode="x")
        output.chmod(0o755)
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


def _facts(of: TrialRecord, records: Store) -> dict[str, object]:
    """Return all of a trial for programs."""
    trial, artifacts = of.trial, of.trial.outcome.artifacts
    diagnosis, launched = diagnosis_of(trial.outcome), trial.outcome.launched
    machine = of.machines.get(launched.machine or "") if launched else None
    exchange = None if trial.exchange is None else records.exchange(trial.exchange)
    paths = {each.name: str(records.artifacts.path(each.digest)) for each in artifacts}
    return {
        "study_id": of.study_id,
        **trial_facts(trial, of.reached, detail=True),
        "absent": absences(trial),
        "policy_source": trial.policy.source,
        "outcome": json.loads(to_json(trial.outcome)),
        "where_time_went": None if diagnosis is None else diagnosis_words(diagnosis),
        "contexts": [asdict(found) for found in of.contexts],
        "files": paths,
        "absent_files": {n: why for n, why in of.places.items() if why != paths[n]},
        "exchange": None if exchange is None else json.loads(to_json(exchange)),
        "machine": None if machine is None else json.loads(to_json(machine)),
        "computed_metrics": [asdict(each) for each in of.computed],
    }


def _is_log(artifact: Artifact) -> bool:
    return artifact.name.endswith((".log", ".stacks.txt"))
