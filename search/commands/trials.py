"""`trial show` and `trial logs`: one trial in full."""

import gzip
import json
from typing import Annotated

import typer

from records.codec import to_json
from records.errors import StoreError
from records.store import Store
from records.trial import Artifact, Measured, Trial
from search.commands.options import JsonOption, StoreOption
from search.progress import trial_line, trial_summary
from search.settings import store_root
from search.trial_words import number

app = typer.Typer(no_args_is_help=True, help="Look at one trial of a study.")

StudyId = Annotated[str, typer.Argument(help="Study id or its beginning.")]
Ordinal = Annotated[int, typer.Argument(help="Number of the trial in its study.", min=0)]


@app.command()
def show(
    study_id: StudyId, ordinal: Ordinal, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Show a trial: its policy, configuration, result, metrics, files and LLM exchange."""
    records = Store(store_root(store))
    trial = _trial(records, study_id, ordinal)
    if as_json:
        facts = {
            **trial_summary(trial),
            "policy_source": trial.policy.source,
            "rationale": trial.policy.rationale,
            "outcome": json.loads(to_json(trial.outcome)),
            "exchange": _exchange(records, trial),
        }
        typer.echo(json.dumps(facts))
        return
    typer.echo(trial_line(trial, records.history(records.find(study_id).id)))
    typer.echo(f"started {trial.started_at}, ended {trial.ended_at}, attempts {trial.attempts}")
    typer.echo(f"rationale: {trial.policy.rationale}\n\n{trial.policy.source.rstrip()}\n")
    for metric in trial.outcome.metrics if isinstance(trial.outcome, Measured) else ():
        typer.echo(f"{metric.name} = {number(metric.value)} {metric.unit}".rstrip())
    for artifact in trial.outcome.artifacts:
        path = records.artifacts.path(artifact.digest)
        typer.echo(f"{artifact.name}  {artifact.size_bytes} bytes  {path}")
    if trial.exchange is not None:
        typer.echo(f"exchange.json  {records.artifacts.path(trial.exchange)}")


@app.command()
def logs(
    study_id: StudyId,
    ordinal: Ordinal,
    rank: Annotated[int | None, typer.Option(help="Only this rank.", min=0)] = None,
    store: StoreOption = None,
) -> None:
    """Print what the ranks of a trial wrote."""
    records = Store(store_root(store))
    trial = _trial(records, study_id, ordinal)
    wanted = f"rank{rank}.log" if rank is not None else ".log"
    found = [a for a in trial.outcome.artifacts if a.name.endswith(wanted)]
    if not found:
        raise StoreError(
            f"trial {ordinal} has no log{f' of rank {rank}' if rank is not None else ''}; "
            f"see `cclsearch trial show {study_id} {ordinal}`"
        )
    for artifact in found:
        typer.echo(f"== {artifact.name}")
        typer.echo(_text(records, artifact))


def _trial(records: Store, study_id: str, ordinal: int) -> Trial:
    row = records.find(study_id)
    history = records.history(row.id)
    if ordinal >= len(history):
        raise StoreError(
            f"study {row.id} has no trial {ordinal}; it has {len(history)}, "
            f"see `cclsearch show {row.id}`"
        )
    return history.trials[ordinal]


def _exchange(records: Store, trial: Trial) -> object:
    if trial.exchange is None:
        return None
    return json.loads(to_json(records.exchange(trial.exchange)))


def _text(records: Store, artifact: Artifact) -> str:
    data = records.artifacts.path(artifact.digest).read_bytes()
    if artifact.name.endswith(".gz"):
        data = gzip.decompress(data)
    return data.decode(errors="replace").rstrip()
