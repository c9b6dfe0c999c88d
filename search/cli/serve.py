"""`serve` and `mcp`: the service with its web pages, and its tools for language models."""

from importlib.util import find_spec
from pathlib import Path

import typer

from records.errors import EnvironmentFault
from search.cli.options import (
    StoreOption,
    examples,
    option,
    takes_options,
)

app = typer.Typer(rich_markup_mode=None)


@app.command(
    epilog=examples(
        "cclsearch serve",
        "cclsearch serve -c service.toml --port 9000",
        "cclsearch serve --new-token ci:submit",
    )
)
@takes_options
def serve(
    config: Path | None = option(
        None,
        "Service configuration (TOML). [default: the built-in study, on loopback]",
        "-c",
        "--config",
        metavar="FILE",
    ),
    port: int | None = option(
        None, "Port; 0 takes a free one. [default: 8765]", metavar="N", min=0, max=65535
    ),
    new_token: str | None = option(
        None,
        "Create a token (roles: read, submit, admin), print it with its configuration "
        "line, and exit.",
        metavar="NAME:ROLE",
    ),
    store: StoreOption = None,
) -> None:
    """Serve studies over HTTP and in a browser.

    Users submit, watch, explore and cancel searches. By default only this machine can reach it,
    with the link that it prints. Searches run as
    separate processes: they survive a restart of the service.
    """
    from search.service.app import print_new_token, run_service

    if new_token is not None:
        print_new_token(new_token)
        return
    run_service(config, port, store)


@app.command(epilog=examples("cclsearch mcp", "cclsearch mcp --url https://searches.example.org"))
@takes_options
def mcp(
    url: str | None = option(
        None,
        "Address of the service. [default: $CCLSEARCH_URL, else http://127.0.0.1:8765]",
        metavar="URL",
    ),
) -> None:
    """Give language models access to a service (MCP over stdio).

    Models can read studies, trials, policies, comparisons and the leaderboard, and submit studies
    if the token in $CCLSEARCH_TOKEN allows it. The service is first contacted when a model calls a
    tool.
    """
    if find_spec("mcp") is None:
        raise EnvironmentFault("this command needs the MCP SDK: pip install 'cclsearch[mcp]'")
    from search.client.client import Client
    from search.client.mcp_server import server_over

    with Client(url) as client:
        server_over(client).run()
