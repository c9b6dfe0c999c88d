"""`run` and `resume`: a search from its first trial, or from where it stopped."""

from dataclasses import replace
from typing import Annotated

import typer

from records.study import Study
from search.commands.options import (
    BandwidthsOption,
    CardOption,
    CommandOption,
    ConfigOption,
    JsonOption,
    StoreOption,
    StudyArgument,
    TuningOption,
    chosen_study,
    with_objective,
)

NOTHING_MEASURED = 3


def run(
    objective: Annotated[
        str | None,
        typer.Option(
            metavar="EXPRESSION",
            help="Metric name, or an expression over metrics. [default: step_time]",
        ),
    ] = None,
    minimize: Annotated[
        bool, typer.Option("--minimize", help="Lower is better; an expression needs to be told.")
    ] = False,
    maximize: Annotated[bool, typer.Option("--maximize", help="Higher is better.")] = False,
    config: ConfigOption = None,
    card: CardOption = None,
    tuning: TuningOption = None,
    card_bandwidths: BandwidthsOption = None,
    command: CommandOption = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="llm, coordinate, random, or auto: llm if ANTHROPIC_API_KEY is set, else "
            "coordinate. [default: auto]",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Launches that the search may use, before the best are launched again. "
            "[default: the study's; built-in 10]",
        ),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Stop after so many launches in a row without improvement. "
            "[default: the study's; built-in 6]",
        ),
    ] = None,
    max_wall: Annotated[
        float | None,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="Propose nothing more after so many seconds. [default: no limit]",
        ),
    ] = None,
    seed_policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Built-in seed or policy file to start from. [default: sharded]",
        ),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search: launch trials, learn from each, prove the best.

    Without a study it trains a small decoder on this machine, with GPUs if there are any. The best
    few and the seed are launched again, in turns, before one of them is called the best.
    """
    # Imported here, as wherever a command works: help does not wait for what it does not need.
    from search.commands.conduct import begin
    from search.spaces import completed

    study = with_objective(
        chosen_study(config, card, tuning, card_bandwidths, command), objective, minimize, maximize
    )
    # Whether all ranks must be used depends on the objective.
    study = _with_budget(completed(study), trials, patience, max_wall)
    if seed_policy is not None:
        study = replace(study, seed_policy=seed_policy)
    finding = begin(study, strategy or study.strategy, store, as_json=as_json)
    if finding.winner is None:
        raise typer.Exit(NOTHING_MEASURED)


def resume(
    study_id: StudyArgument = "",
    trials: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Launches to add, from where the study stands."),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with a study where it stopped, or add launches to it.

    Finished trials are neither lost nor repeated.
    """
    from search.commands.conduct import go_on

    finding = go_on(study_id, trials, store, as_json=as_json)
    if finding.winner is None:
        raise typer.Exit(NOTHING_MEASURED)


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
