"""`replay`: a study on record once more, in one of several ways."""

from collections.abc import Mapping
from typing import Annotated, Literal

import typer

from records.errors import StudyError
from search.commands.options import (
    BandwidthsOption,
    BatchSizeOption,
    CardOption,
    CommandOption,
    ConfigOption,
    GpusOption,
    JsonOption,
    LimitOption,
    MaximizeOption,
    MetricsFileOption,
    MinimizeOption,
    OtherObjectiveOption,
    StoreOption,
    StudyArgument,
    TrustOption,
    TuningOption,
    card_given,
    examples,
)

app = typer.Typer(rich_markup_mode=None)

OTHERWISE = 7
BELONGS: Mapping[str, tuple[str, ...]] = {
    "--trial": ("measure", "policy"),
    "--rounds": ("measure",),
    "--within": ("measure",),
    "--vary": ("policy",),
    "--config": ("policy",),
    "--card": ("policy",),
    "--tuning": ("policy",),
    "--card-bandwidths": ("policy",),
    "--batch-size": ("policy",),
    "--gpus": ("policy",),
    "--command": ("policy",),
    "--objective": ("score",),
    "--minimize": ("score",),
    "--maximize": ("score",),
    "--limit": ("score",),
    "--metrics-file": ("score",),
    "--trust": ("measure",),
}
"""Options that only some modes have."""


@app.command(
    epilog=examples(
        "cclsearch replay 20260131-120000-ab12 --strict --json",
        "cclsearch replay --mode measure --trial all --within 5%",
        "cclsearch replay --mode policy --vary world_size=4,8 --vary global_batch=16,32",
        "cclsearch replay --mode score --objective tokens_per_s",
    )
)
def replay(
    study_id: StudyArgument = "",
    mode: Annotated[
        Literal["llm", "policy", "measure", "score"],
        typer.Option(
            help="What is done again. llm: the search as it was conducted; only what the model "
            "answered and how launches ended is taken from the record. policy: its policies "
            "decide once more, for another workload or environment; nothing is launched. "
            "measure: the best, or others, are launched here, and it is decided whether their "
            "results hold. score: metrics are computed again of the samples and traces it kept, "
            "and its trials scored by them.",
        ),
    ] = "llm",
    trial: Annotated[
        str | None,
        typer.Option(
            metavar="best|seed|N|all",
            help="Which trials are measured again, or whose policies decide. "
            "[default: best for measure, all for policy]",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=2,
            metavar="N",
            help="For measure: the most rounds of launches for each trial. "
            "[default: the study's, at least 12]",
        ),
    ] = None,
    within: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="For measure: how much worse a value may be than the record is sure of, for the "
            "time between. [default: 10%]",
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=A,B",
            help="For policy: ask for these values of a workload or environment field; of several "
            "fields for every combination.",
        ),
    ] = None,
    config: ConfigOption = None,
    card: CardOption = None,
    tuning: TuningOption = None,
    card_bandwidths: BandwidthsOption = None,
    batch_size: BatchSizeOption = None,
    gpus: GpusOption = None,
    command: CommandOption = None,
    objective: OtherObjectiveOption = None,
    minimize: MinimizeOption = False,
    maximize: MaximizeOption = False,
    limit: LimitOption = None,
    metrics_file: MetricsFileOption = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help=f"Exit with {OTHERWISE} when anything comes out otherwise, or is undecided.",
        ),
    ] = False,
    trust: TrustOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Do again what a study on record did, and tell where it comes out otherwise.

    Only --mode measure launches anything, in a new study that names the old one; the old one is
    never changed. With --json that mode prints one event per line, the others one document.
    """
    chosen = {"--trial": trial, "--rounds": rounds, "--within": within, "--vary": vary}
    place = {"--config": config, "--card": card, "--tuning": tuning, "--command": command}
    question = {"--objective": objective, "--limit": limit, "--metrics-file": metrics_file}
    ways = {"--minimize": minimize or None, "--maximize": maximize or None}
    instead = {"--card-bandwidths": card_bandwidths, "--batch-size": batch_size, "--gpus": gpus}
    given = {**chosen, **place, **question, **ways, **instead}
    given["--trust"] = trust or None
    _refuse_others(mode, given)
    match mode:
        case "llm":
            from search.commands.replay_views import print_search_again

            same = print_search_again(study_id, store, as_json=as_json)
        case "measure":
            from search.commands.replay_measure import WITHIN, Asked, print_measured_again
            from search.words.quantities import share_of

            worse = WITHIN if within is None else share_of(within, "--within")
            asked = Asked(trial=trial, rounds=rounds, within=worse, trusted=trust)
            same = print_measured_again(study_id, asked, store, as_json=as_json)
        case "policy":
            from search.commands.replay_policies import Elsewhere, print_policies_again

            elsewhere = Elsewhere(
                config=config,
                card=card,
                tuning=tuning,
                given=card_given(card_bandwidths, batch_size, gpus),
                command=command,
                vary=tuple(vary or ()),
            )
            same = print_policies_again(study_id, trial or "all", elsewhere, store, as_json=as_json)
        case "score":
            from search.commands import options
            from search.commands.replay_scores import print_scored_today

            wanted = options.Asked(
                objectives=objective or (),
                minimize=minimize,
                maximize=maximize,
                limits=limit or (),
            )
            same = print_scored_today(study_id, wanted, metrics_file, store, as_json=as_json)
    if strict and not same:
        raise typer.Exit(OTHERWISE)


def _refuse_others(mode: str, given: Mapping[str, object]) -> None:
    """Raise `StudyError` for an option that the mode has not."""
    for option, value in given.items():
        modes = BELONGS[option]
        if value is not None and value != [] and mode not in modes:
            raise StudyError(f"{option} belongs to --mode {' and '.join(modes)}, not to {mode}")
