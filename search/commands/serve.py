"""`serve`: the service with its web pages."""

from pathlib import Path
from typing import Annotated

import typer

from search.commands.options import StoreOption, examples

app = typer.Typer(rich_markup_mode=None)


@app.command(
    epilog=examples(
        "cclsearch serve",
        "cclsearch serve -c service.toml --port 9000",
        "cclsearch serve --new-token ci:submit",
    )
)
def serve(
    config: Annotated[
        Path | None,
        typer.Option(
            "-c",
            "--config",
            metavar="FILE",
            help="What is offered to whom (TOML). [default: the built-in study, on loopback]",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, metavar="N", help="Port; 0 takes a free one. [default: 8765]"
        ),
    ] = None,
    new_token: Annotated[
        str | None,
        typer.Option(
            "--new-token",
            metavar="NAME:ROLE",
            help="Make a token (roles: read, submit, admin), print what to hand out and what to "
            "configure, and leave.",
        ),
    ] = None,
    store: StoreOption = None,
) -> None:
    """Serve studies over HTTP and in a browser: submit, watch, explore, cancel.

    As it stands only this machine can reach it, with the link that it prints. Searches are
    processes of their own: they outlive the service, which finds them again when it comes back.
    """
    from search.service.serving import print_new_token, serve_until_told

    if new_token is not None:
        print_new_token(new_token)
        return
    serve_until_told(config, port, store)
