"""`bench mix`: what a recorded job communicates, as messages that a study can exchange."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from records.errors import StoreError
from search.commands.options import NoCacheOption, StoreOption, TraceArgument


def mix(
    trace: TraceArgument,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.toml", help="Write it into this file.")
    ] = None,
    no_cache: NoCacheOption = False,
    store: StoreOption = None,
) -> None:
    """Print the collectives of a recorded job's step as a study file that tunes them.

    It can be run as it is, or its [[message]] tables be pasted into another study file.
    """
    from search.message_mix import mix_of
    from search.traces.source import traced

    text = mix_of(traced(trace, store, use_cache=not no_cache)).toml()
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {out}: {error.strerror}") from error
    typer.echo(f"written: {out}")
    typer.echo(f"next: cclsearch run -c {shlex.quote(str(out))}")
