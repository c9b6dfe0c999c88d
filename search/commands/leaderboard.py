"""`leaderboard`: the best of studies on record and entries of others, side by side."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from search.commands.options import StoreOption, examples

app = typer.Typer(rich_markup_mode=None)


@app.command(
    "leaderboard",
    epilog=examples(
        "cclsearch leaderboard",
        "cclsearch leaderboard --entries ccl_leaderboard.jsonl --workload WL4 --absent",
        "cclsearch leaderboard --by tokens_per_s --metric mfu --metric peak_memory",
        "cclsearch leaderboard -o leaderboard.html",
    ),
)
def leaderboard(
    studies: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STUDY]...",
            help="Studies, by their ids or the beginnings. [default: all on record]",
            show_default=False,
        ),
    ] = None,
    entries: Annotated[
        list[Path] | None,
        typer.Option(
            "--entries",
            metavar="PATH",
            help="Entries of others: a file of leaderboard rows (JSON lines), a CCL-Bench card "
            "with metrics, or a folder of them. May be given several times.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="METRIC",
            help="What submissions are ranked by. [default: the step time]",
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only this work: a model, or a standard name as WL4."),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="Show this metric; may be given several times. [default: all; text has the few "
            "that fit a page]",
        ),
    ] = None,
    form: Annotated[
        Literal["table", "csv", "json", "html"] | None,
        typer.Option("--format", help="[default: as the file's name ends, else table]"),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write it into this file."),
    ] = None,
    absent: Annotated[
        bool, typer.Option("--absent", help="Say in the text why cells are empty.")
    ] = False,
    store: StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Rank the best of each study, beside entries of others: metrics as columns, works as groups.

    Only what did the same work is ranked together: model, phase, batch, sequence length, precision
    and tokens per step. What cannot be told apart shares a rank. A published number is never in one
    column with ours, as it was computed in another way; -1 and the like are empty.
    """
    from search.commands.leaderboard_views import Wanted, print_leaderboard

    print_leaderboard(
        Wanted(
            studies=studies or (),
            entries=entries or (),
            by=by,
            workload=workload,
            metrics=metric or (),
            form="json" if as_json else form,
            to=to,
            absent=absent,
        ),
        store,
    )
