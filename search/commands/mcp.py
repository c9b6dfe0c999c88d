"""`mcp`: a service as tools for a language model."""

from importlib.util import find_spec
from typing import Annotated

import typer

from records.errors import EnvironmentFault
from search.commands.options import examples

app = typer.Typer(rich_markup_mode=None)


@app.command(epilog=examples("cclsearch mcp", "cclsearch mcp --url https://searches.example.org"))
def mcp(
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Address of the service. [default: $CCLSEARCH_URL, else http://127.0.0.1:8765]",
        ),
    ] = None,
) -> None:
    """Offer a service to language models, by the Model Context Protocol over standard input.

    Models can read studies, trials, policies, comparisons and the leaderboard, and submit studies
    as far as the token in $CCLSEARCH_TOKEN allows. Nothing is asked of the service before a model
    asks.
    """
    if find_spec("mcp") is None:
        raise EnvironmentFault(
            "the Model Context Protocol takes its SDK: pip install 'cclsearch[mcp]'"
        )
    from search.remote.client import Client
    from search.remote.tools import server_over

    with Client(url) as client:
        server_over(client).run()
