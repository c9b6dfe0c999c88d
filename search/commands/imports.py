"""`import`: histories of other tools, or of another machine, as studies on record."""

from pathlib import Path
from typing import Annotated

import typer

from search.commands.options import JsonOption, StoreOption, examples

app = typer.Typer(rich_markup_mode=None)


@app.command(
    "import",
    epilog=examples(
        "cclsearch import runs/20260429_093910 --card workload_card.yaml",
        "cclsearch import histories.jsonl --dry-run",
        "cclsearch import optuna.db --as baseline",
    ),
)
def import_histories(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help="Run folder or results.csv of CCL-Search, workload card with runs, JSON lines of "
            "recorded searches, storage of Optuna (SQLite file, journal file or URL), or bundle. "
            "What it is, is told by its content.",
            show_default=False,
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="Name of the study. [default: as it was called]"),
    ] = None,
    card: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Workload card (YAML) of run folders, which do not hold one; only read.",
        ),
    ] = None,
    skip_bad: Annotated[
        bool,
        typer.Option("--skip-bad", help="Leave out rows that cannot be read, and say which."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be imported.")
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import recorded searches: afterwards they can be shown, compared, re-scored and reported.

    Nothing that is read is changed, and no policy is run. What is on record already is skipped.
    An imported study cannot be resumed, as nothing here knows how its trials are launched.
    """
    from search.commands.import_records import Asked, import_all

    asked = Asked(name=name, card=card, skip_bad=skip_bad, dry_run=dry_run)
    import_all(sources, asked, store, as_json=as_json)
