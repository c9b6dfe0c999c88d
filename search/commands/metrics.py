"""`metrics list|show|compute`: what can be measured, what it means, and the values of traces."""

from typing import Annotated, Literal

import typer

from records.errors import StudyError
from search.commands.options import (
    BandwidthsOption,
    BatchSizeOption,
    CardOption,
    GpusOption,
    JsonOption,
    MetricsFileOption,
    NoCacheOption,
    StoreOption,
    TraceArgument,
    card_given,
    examples,
)

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Metrics: what there is, what it means, and the values of traces.",
)


@app.command("list", epilog=examples("cclsearch metrics list", "cclsearch metrics list --json"))
def list_metrics(metrics_file: MetricsFileOption = None, as_json: JsonOption = False) -> None:
    """List every metric with its unit, which way is better, and what it is computed from."""
    from search.commands.metric_definitions import print_list

    print_list(metrics_file, as_json=as_json)


@app.command(
    epilog=examples("cclsearch metrics show mfu", "cclsearch metrics show straggler bw_allgather")
)
def show(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Metrics.", show_default=False)
    ],
    metrics_file: MetricsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what metrics mean, what they need, and how the published toolkit's differ."""
    from search.commands.metric_definitions import print_definitions

    print_definitions(names, metrics_file, as_json=as_json)


@app.command(
    epilog=examples(
        "cclsearch metrics compute traces/",
        "cclsearch metrics compute traces/ mfu tokens_per_s --card card.yaml",
        "cclsearch metrics compute traces/rank0.json.gz compute_comm_overlap --json",
        "cclsearch metrics compute trial:3 straggler",
        "cclsearch metrics compute --study 20260131-120000-ab12 --metrics-file mine.py",
        "cclsearch metrics compute --all mfu",
    )
)
def compute(
    trace: TraceArgument = "",
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Metrics. [default: all]", show_default=False),
    ] = None,
    card: CardOption = None,
    card_bandwidths: BandwidthsOption = None,
    batch_size: BatchSizeOption = None,
    gpus: GpusOption = None,
    metrics_file: MetricsFileOption = None,
    compat: Annotated[
        Literal["ccl-bench"] | None,
        typer.Option("--compat", help="As the published toolkit defines them, in its units."),
    ] = None,
    no_cache: NoCacheOption = False,
    study: Annotated[
        list[str] | None,
        typer.Option(
            "--study",
            metavar="STUDY",
            help="Compute what the trials of this study lack, and keep it on record; then all "
            "arguments are metrics. May be given several times.",
        ),
    ] = None,
    every_study: Annotated[
        bool, typer.Option("--all", help="The same of every study on record.")
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute metrics of traces: each value with its unit, or why there is none.

    With --study or --all, of trials on record: each metric that a trial lacks, or that an older
    version of its definition computed. It can be interrupted; the same command goes on.

    Ends with exit code 3 where nothing that was asked for has a value.
    """
    from search.commands.metric_values import Asked, print_values

    if study or every_study:
        from search.commands.metrics_afterwards import Afterwards, print_computed

        if card is not None or compat is not None:
            raise StudyError("--card and --compat are for traces; trials on record know their work")
        wanted = Afterwards(
            studies=study or (),
            names=[*([trace] if trace else []), *(names or ())],
            metrics_file=metrics_file,
            store=store,
        )
        print_computed(wanted, as_json=as_json)
        return
    if not trace:
        raise StudyError("name a TRACE, a trial as in trial:3, or studies with --study or --all")
    asked = Asked(
        trace=trace,
        names=names or (),
        card=card,
        given=card_given(card_bandwidths, batch_size, gpus),
        metrics_file=metrics_file,
        store=store,
        as_published=compat is not None,
        use_cache=not no_cache,
    )
    print_values(asked, as_json=as_json)
