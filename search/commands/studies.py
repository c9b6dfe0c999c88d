"""`list`, `show` and `best`: what is on record."""

from typing import Annotated, Literal

import typer

from search.commands.options import JsonOption, StoreOption, StudyArgument


def list_studies(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the studies on record, newest first."""
    from search.commands.study_records import print_studies

    print_studies(store, as_json=as_json)


def show(
    study_id: StudyArgument = "", store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Show a study: all its trials and what it found."""
    from search.commands.study_records import print_study

    print_study(study_id, store, as_json=as_json)


def best(
    study_id: StudyArgument = "",
    form: Annotated[
        Literal["json", "env", "args"],
        typer.Option(
            "--format",
            help="The knobs as a JSON object, as KEY=value lines, or as command-line arguments.",
        ),
    ] = "json",
    store: StoreOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON with the whole trial instead.")
    ] = False,
) -> None:
    """Print the best configuration in a form that other programs take."""
    from search.commands.study_records import print_best

    print_best(study_id, form, store, as_json=as_json)
