"""`metrics list|show|compute`: what can be measured, what it means, and the values of traces."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from search.commands.options import (
    BandwidthsOption,
    CardOption,
    JsonOption,
    NoCacheOption,
    StoreOption,
    TraceArgument,
    examples,
)

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Metrics: what there is, what it means, and the values of traces.",
)

MetricsFileOption = Annotated[
    Path | None,
    typer.Option(
        "--metrics-file",
        metavar="FILE",
        help="Python file with metrics of your own; it is run, so it must be trusted.",
    ),
]


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
    )
)
def compute(
    trace: TraceArgument,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Metrics. [default: all]", show_default=False),
    ] = None,
    card: CardOption = None,
    card_bandwidths: BandwidthsOption = None,
    metrics_file: MetricsFileOption = None,
    compat: Annotated[
        Literal["ccl-bench"] | None,
        typer.Option("--compat", help="As the published toolkit defines them, in its units."),
    ] = None,
    no_cache: NoCacheOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute metrics of traces: each value with its unit, or why there is none.

    Ends with exit code 3 where nothing that was asked for has a value.
    """
    from search.commands.metric_values import Asked, print_values

    asked = Asked(
        trace=trace,
        names=names or (),
        card=card,
        bandwidths=card_bandwidths,
        metrics_file=metrics_file,
        store=store,
        as_published=compat is not None,
        use_cache=not no_cache,
    )
    print_values(asked, as_json=as_json)
