"""`run` and `resume`: a search from its first trial, or from where it stopped."""

from dataclasses import replace
from typing import Annotated

import typer

from records.study import Budget, Study
from search.commands.options import (
    Asked,
    BandwidthsOption,
    BatchSizeOption,
    CardOption,
    CommandOption,
    ConfigOption,
    GpusOption,
    JsonOption,
    LimitOption,
    MaximizeOption,
    MinimizeOption,
    StoreOption,
    StudyArgument,
    TrustOption,
    TuningOption,
    card_given,
    chosen_study,
    examples,
    with_model,
)

app = typer.Typer(rich_markup_mode=None)

NOTHING_MEASURED = 3
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="Model to ask, by the name its provider has for it. [default: the study's]",
    ),
]


@app.command(
    epilog=examples(
        "cclsearch run --objective step_time --trials 15",
        "cclsearch run --objective tokens_per_s -c study.toml",
        'cclsearch run --objective "0.5*rank_count/4 + 0.5*step_time/0.3"',
        "cclsearch run --objective step_time --objective gpus --limit 'peak_memory < 30 GiB'",
    )
)
def run(
    objective: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EXPRESSION",
            help="Metric name, or an expression over metrics; step_time@seed is what the seed "
            "had. Given several times, the first is the main one and the search looks for all "
            "trials that no other beats in every one. [default: step_time]",
        ),
    ] = None,
    minimize: MinimizeOption = False,
    maximize: MaximizeOption = False,
    limit: LimitOption = None,
    config: ConfigOption = None,
    card: CardOption = None,
    tuning: TuningOption = None,
    card_bandwidths: BandwidthsOption = None,
    batch_size: BatchSizeOption = None,
    gpus: GpusOption = None,
    command: CommandOption = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="hybrid, llm, offline, ranked, coordinate, tpe, random, grid, replay, or auto: "
            "hybrid if ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN is set, else offline. "
            "[default: auto]",
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
    model: ModelOption = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Tokens that the model may use, in and out; then the search goes on without it. "
            "[default: no limit]",
        ),
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="USD",
            help="Money that the model may cost; then the search goes on without it. "
            "[default: no limit]",
        ),
    ] = None,
    parallel: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Trials to measure at once, where their ranks fit beside each other: each has "
            "GPUs, or cores, of its own. [default: the study's; built-in 1]",
        ),
    ] = None,
    seed_policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Built-in seed or policy file to start from. [default: sharded]",
        ),
    ] = None,
    replay_of: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="STUDY",
            help="Strategy replay: launch every policy of this study again, in order, as a new "
            "study; what else is given here changes how it is measured, and what for.",
        ),
    ] = None,
    trust: TrustOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search: launch trials, learn from each, prove the best.

    Without a study it trains a small decoder on this machine, with GPUs if there are any. The best
    few and the seed are launched again, in turns, before one of them is called the best.
    """
    # Imported here, as wherever a command works: help does not wait for what it does not need.
    from search.commands.conduct import begin, launched_again
    from search.spaces import completed

    base = None
    if replay_of is not None:
        base = launched_again(replay_of, strategy, store, trusted=trust)
    asked = Asked(
        objectives=objective or (), minimize=minimize, maximize=maximize, limits=limit or ()
    )
    given = card_given(card_bandwidths, batch_size, gpus)
    study = asked.of(chosen_study(config, card, tuning, given, command, base))
    # Whether all ranks must be used depends on the objectives.
    study = _with_budget(completed(study), trials, patience, max_wall)
    study = replace(with_model(study, model), budget=_model_limits(study, max_tokens, max_cost))
    if seed_policy is not None:
        study = replace(study, seed_policy=seed_policy)
    if parallel is not None:
        study = replace(study, parallel=parallel)
    if base is not None:  # whatever a study file says of its own search
        study, strategy = replace(study, replay_of=base.replay_of), base.strategy
    finding = begin(study, strategy or study.strategy, store, as_json=as_json)
    if finding.winner is None:
        raise typer.Exit(NOTHING_MEASURED)


@app.command(
    epilog=examples("cclsearch resume", "cclsearch resume 20260131-120000-ab12 --trials 5")
)
def resume(
    study_id: StudyArgument = "",
    trials: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Launches to add, from where the study stands."),
    ] = None,
    model: ModelOption = None,
    trust: TrustOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with a study where it stopped, or add launches to it.

    Finished trials are neither lost nor repeated.
    """
    from search.commands.conduct import go_on

    finding = go_on(study_id, trials, store, model=model, trusted=trust, as_json=as_json)
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


def _model_limits(study: Study, max_tokens: int | None, max_cost_usd: float | None) -> Budget:
    budget = study.budget
    return replace(
        budget,
        max_tokens=budget.max_tokens if max_tokens is None else max_tokens,
        max_cost_usd=budget.max_cost_usd if max_cost_usd is None else max_cost_usd,
    )
