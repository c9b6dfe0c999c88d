"""`run` and `resume`: a search from its first trial, or from where it stopped."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from records.codec import to_json
from records.errors import CclsearchError
from records.store import Store
from records.study import Study
from search.commands.options import (
    BandwidthsOption,
    CardOption,
    ConfigOption,
    JsonOption,
    StoreOption,
    StudyArgument,
    TuningOption,
    chosen_study,
    with_objective,
)
from search.compose import new_study_id, resolved_strategy, search_of
from search.finding import Finding
from search.live import LiveProgress
from search.ports import Observer
from search.progress import JsonProgress, PlainProgress
from search.report import finding_lines
from search.settings import store_root

NOTHING_MEASURED, INTERRUPTED = 3, 75

TrialsOption = Annotated[
    int | None, typer.Option("--trials", min=1, help="Launches that the search may use.")
]
PatienceOption = Annotated[
    int | None,
    typer.Option("--patience", min=1, help="Stop after so many launches without improvement."),
]
MaxWallOption = Annotated[
    float | None, typer.Option("--max-wall", min=1, help="Stop proposing after so many seconds.")
]


def run(
    objective: Annotated[
        str | None,
        typer.Option(help="Metric name, or an expression over metrics. [default: step_time]"),
    ] = None,
    minimize: Annotated[bool, typer.Option("--minimize", help="Lower is better.")] = False,
    maximize: Annotated[bool, typer.Option("--maximize", help="Higher is better.")] = False,
    config: ConfigOption = None,
    card: CardOption = None,
    tuning: TuningOption = None,
    card_bandwidths: BandwidthsOption = None,
    strategy: Annotated[
        str | None, typer.Option(help="auto, llm, coordinate or random. [default: auto]")
    ] = None,
    trials: TrialsOption = None,
    patience: PatienceOption = None,
    max_wall: MaxWallOption = None,
    seed_policy: Annotated[
        str | None, typer.Option(help="Built-in seed or policy file to start from.")
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search: launch real trials, learn from each, re-measure the best, report.

    Without a study it trains a small decoder on this machine, with GPUs if there are any. Example:

        cclsearch run --objective step_time --trials 15
    """
    study = with_objective(
        chosen_study(config, card, tuning, card_bandwidths), objective, minimize, maximize
    )
    study = _with_budget(study, trials, patience, max_wall)
    if seed_policy is not None:
        study = replace(study, seed_policy=seed_policy)
    chosen, why = resolved_strategy(strategy or study.strategy)
    study = replace(study, strategy=chosen)
    study_id = new_study_id()
    records = Store(store_root(store))
    with _progress(as_json) as observer, search_of(study_id, study, records, observer) as search:
        records.create(study_id, study, installed_version())
        observer.study_started(study_id, study, why)
        with _resumable(study_id, records):
            finding = search.run()
    _report(finding, study_id, records, as_json)


def resume(
    study_id: StudyArgument = "",
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Launches to add to the budget.")
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with a study where it stopped; finished trials are neither lost nor repeated.

    Example:
        cclsearch resume --trials 5

    """
    records = Store(store_root(store))
    row = records.find(study_id)
    study = row.study
    if trials is not None:
        study = _extended(study, records.history(row.id).launched_count, trials)
        records.replace_study(row.id, study)
    with _progress(as_json) as observer, search_of(row.id, study, records, observer) as search:
        observer.study_started(row.id, study, f"strategy {study.strategy}, resumed")
        with _resumable(row.id, records):
            finding = search.run()
    _report(finding, row.id, records, as_json)


def _extended(study: Study, launched: int, more: int) -> Study:
    """The study with a budget that lasts for `more` launches from here."""
    budget = study.budget
    return replace(
        study,
        budget=replace(budget, trials=launched + more, patience=budget.patience + more),
    )


def installed_version() -> str:
    """Version of this installation."""
    return version("cclsearch")


def _with_budget(
    study: Study, trials: int | None, patience: int | None, max_wall_s: float | None
) -> Study:
    budget = study.budget
    return replace(
        study,
        budget=replace(
            budget,
            trials=budget.trials if trials is None else trials,
            patience=budget.patience if patience is None else patience,
            max_wall_s=budget.max_wall_s if max_wall_s is None else max_wall_s,
        ),
    )


@contextmanager
def _progress(as_json: bool) -> Iterator[Observer]:
    """The face that fits whoever looks: JSON on request, a live table on a terminal, else lines."""
    console = Console()
    if as_json:
        yield JsonProgress(sys.stdout)
    elif console.is_terminal and not console.is_dumb_terminal:
        with LiveProgress(console) as live:
            yield live
    else:
        yield PlainProgress(sys.stdout)


@contextmanager
def _resumable(study_id: str, store: Store) -> Iterator[None]:
    """On an interruption or a fault of the surroundings, say how to go on."""
    signal.signal(signal.SIGTERM, _interrupt)
    again = f"cclsearch resume {study_id}" + _store_flag(store)
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"interrupted; every finished trial is on record\nnext: {again}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except CclsearchError as error:
        raise type(error)(f"{error}\nnext: {again}") from error


def _interrupt(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _report(finding: Finding, study_id: str, store: Store, as_json: bool) -> None:
    if as_json:
        event = {"event": "finished", "study_id": study_id, **json.loads(to_json(finding))}
        typer.echo(json.dumps(event))
    else:
        row = store.find(study_id)
        for line in finding_lines(finding, store.history(study_id), row, store.root):
            typer.echo(line)
    if finding.winner is None:
        raise typer.Exit(NOTHING_MEASURED)


def _store_flag(store: Store) -> str:
    default = store_root(None).absolute()
    return "" if store.root == default else f" --store {store.root}"
