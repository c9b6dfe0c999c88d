"""`report`: a study as one page."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from search.commands.options import JsonOption, StoreOption, StudyArgument, examples

app = typer.Typer(rich_markup_mode=None)


@app.command(
    epilog=examples(
        "cclsearch report",
        "cclsearch report 20260131-120000-ab12 -o report.html --open",
        "cclsearch report -o report.md",
    )
)
def report(
    study_id: StudyArgument = "",
    to: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="File or folder to put it in. [default: STUDY.html or STUDY.md, here]",
        ),
    ] = None,
    form: Annotated[
        Literal["html", "markdown"] | None,
        typer.Option("--format", help="[default: as the file's name ends, else html]"),
    ] = None,
    opened: Annotated[
        bool, typer.Option("--open", help="Show it in the browser when it is written.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file that -o names.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a study as one page: what was asked, the best with its evidence, every trial, the cost.

    It is one file that needs nothing beside it and reaches for nothing: charts, tables and programs
    are within. Any study on record has one, also while its search is running.
    """
    from search.commands.report_files import write_report

    write_report(study_id, to, form, store, opened=opened, force=force, as_json=as_json)
