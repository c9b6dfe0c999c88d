"""`replay`: a study on record once more, without a launch."""

from typing import Annotated, Literal

import typer

from search.commands.options import JsonOption, StoreOption, StudyArgument

DIVERGED = 7


def replay(
    study_id: StudyArgument = "",
    mode: Annotated[
        Literal["llm"],
        typer.Option(
            help="What is done again. llm: the search as it was conducted; only what the model "
            "answered and how launches ended is taken from the record."
        ),
    ] = "llm",
    strict: Annotated[
        bool,
        typer.Option("--strict", help=f"Exit with {DIVERGED} when anything comes out otherwise."),
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a study again from its records, and tell where it comes out otherwise.

    Nothing is launched and nobody is asked. Of a study without a model it shows that its strategy
    does the same again.
    """
    from search.commands.replay_views import print_search_again

    same = {"llm": print_search_again}[mode](study_id, store, as_json=as_json)
    if strict and not same:
        raise typer.Exit(DIVERGED)
