"""`trace breakdown|collectives|stragglers|kernels|diff|report`: what traces tell."""

from pathlib import Path
from typing import Annotated

import typer

from search.commands.options import (
    JsonOption,
    NoCacheOption,
    PlotOption,
    StoreOption,
    TraceArgument,
    examples,
)

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look into traces: where the time of a step went, and why.",
)


@app.command(
    epilog=examples(
        "cclsearch trace breakdown traces/",
        "cclsearch trace breakdown trial:3 --plot breakdown.png",
        "cclsearch trace breakdown traces/rank0_trace.json --json",
    )
)
def breakdown(
    trace: TraceArgument,
    plot: PlotOption = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            "--timeline", metavar="FILE.png", help="Draw what overlaps in one step into this file."
        ),
    ] = None,
    no_cache: NoCacheOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell where the steps of each rank went, and why its device was idle."""
    from search.commands.time_views import print_breakdown
    from search.traces.source import traced

    found = traced(trace, store, use_cache=not no_cache)
    print_breakdown(found, plot, timeline, as_json=as_json)


@app.command(
    epilog=examples(
        "cclsearch trace collectives traces/",
        "cclsearch trace collectives traces/ --plot bandwidth.png",
    )
)
def collectives(
    trace: TraceArgument,
    plot: PlotOption = None,
    no_cache: NoCacheOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what is communicated, between whom, and how fast."""
    from search.commands.collective_views import print_collectives
    from search.traces.source import traced

    found = traced(trace, store, use_cache=not no_cache)
    print_collectives(found, plot, as_json=as_json)


@app.command("stragglers", epilog=examples("cclsearch trace stragglers traces/"))
def stragglers(
    trace: TraceArgument,
    no_cache: NoCacheOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Name the rank that the others wait for, and what that costs."""
    from search.commands.collective_views import print_stragglers
    from search.traces.source import traced

    print_stragglers(traced(trace, store, use_cache=not no_cache), as_json=as_json)


@app.command(
    epilog=examples(
        "cclsearch trace kernels traces/ --top 30", "cclsearch trace kernels trial:3 --json"
    )
)
def kernels(
    trace: TraceArgument,
    top: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many to print; --json has all.")
    ] = 15,
    no_cache: NoCacheOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the kernels that take longest, and how they are launched."""
    from search.commands.time_views import print_kernels
    from search.traces.source import traced

    print_kernels(traced(trace, store, use_cache=not no_cache), top, as_json=as_json)


@app.command(
    epilog=examples(
        "cclsearch trace diff before/ after/", "cclsearch trace diff trial:0 trial:7 --json"
    )
)
def diff(
    before: TraceArgument,
    after: TraceArgument,
    top: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many to print; --json has all.")
    ] = 10,
    no_cache: NoCacheOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what changed from one job to another, by its effect on the step."""
    from search.commands.difference_views import print_difference
    from search.traces.source import traced

    pair = [traced(name, store, use_cache=not no_cache) for name in (before, after)]
    print_difference(pair[0], pair[1], top, as_json=as_json)


@app.command(epilog=examples("cclsearch trace report traces/ --to report.html"))
def report(
    trace: TraceArgument,
    to: Annotated[Path, typer.Option(metavar="FILE.html", help="Where to put it.")],
    no_cache: NoCacheOption = False,
    store: StoreOption = None,
) -> None:
    """Write one HTML file with all tables, metrics and plots; it needs nothing else."""
    from search.traces.report import write_report
    from search.traces.source import traced

    write_report(traced(trace, store, use_cache=not no_cache), to)
    typer.echo(f"written: {to}")
