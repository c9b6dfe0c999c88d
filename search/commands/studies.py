"""`list`, `show` and `best`: what is on record."""

from typing import Annotated, Literal

import typer

from records.errors import StudyError
from search.commands.options import (
    Asked,
    JsonOption,
    LimitOption,
    MaximizeOption,
    MinimizeOption,
    OtherObjectiveOption,
    PlotOption,
    StoreOption,
    StudyArgument,
    examples,
)

app = typer.Typer(rich_markup_mode=None)


@app.command("list", epilog=examples("cclsearch list", "cclsearch list --json"))
def list_studies(
    count: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="Only so many, the newest.")
    ] = 50,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the studies on record, newest first."""
    from search.commands.study_records import print_studies

    print_studies(store, count, as_json=as_json)


@app.command(
    epilog=examples(
        "cclsearch show",
        "cclsearch show 20260131-120000-ab12",
        "cclsearch show --front --objective step_time --objective gpus --plot front.png",
    )
)
def show(
    study_id: StudyArgument = "",
    objective: OtherObjectiveOption = None,
    minimize: MinimizeOption = False,
    maximize: MaximizeOption = False,
    limit: LimitOption = None,
    front: Annotated[
        bool,
        typer.Option("--front", help="Only trials that no other beats in all of its objectives."),
    ] = False,
    plot: PlotOption = None,
    constraints: Annotated[
        bool,
        typer.Option(
            "--constraints", help="Only what must hold: as given, and as learnt from failures."
        ),
    ] = False,
    revoke: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Take a learnt constraint back; with --constraints."),
    ] = None,
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=1, help="Only so many trials, the last ones.")
    ] = 100,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a study: its trials and what it found.

    With --objective or --limit it is as if the study had been asked that: what is on record is
    scored again, and nothing is launched.
    """
    asked = Asked(
        objectives=objective or (), minimize=minimize, maximize=maximize, limits=limit or ()
    )
    if constraints or revoke is not None:
        from search.commands.constraint_records import print_constraints

        print_constraints(study_id, revoke, store, as_json=as_json)
        return
    if front:
        from search.commands.front_records import print_front

        print_front(study_id, asked, plot, store, as_json=as_json)
        return
    if plot is not None:
        raise StudyError("--plot draws a front; add --front")
    from search.commands.study_records import print_study

    print_study(study_id, asked, last, store, as_json=as_json)


@app.command(
    epilog=examples(
        "cclsearch best --format args",
        "cclsearch best --objective rank_seconds --limit 'step_time < 500 ms'",
    )
)
def best(
    study_id: StudyArgument = "",
    form: Annotated[
        Literal["json", "env", "args", "policy"],
        typer.Option(
            "--format",
            help="The knobs as a JSON object, as KEY=value lines, or as command-line arguments; or "
            "the program that decided them.",
        ),
    ] = "json",
    context: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What it is in this context. [default: the study's own]"),
    ] = None,
    objective: OtherObjectiveOption = None,
    minimize: MinimizeOption = False,
    maximize: MaximizeOption = False,
    limit: LimitOption = None,
    store: StoreOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON with the whole trial instead.")
    ] = False,
) -> None:
    """Print the best configuration in a form that other programs take.

    With --objective or --limit the best by that: what is on record is scored again, and nothing is
    launched.
    """
    from search.commands.study_records import print_best

    asked = Asked(
        objectives=objective or (), minimize=minimize, maximize=maximize, limits=limit or ()
    )
    print_best(study_id, asked, form, context, store, as_json=as_json)
