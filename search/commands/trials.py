"""`trial show`, `trial logs`, `trial files` and `trial script`: one trial in full."""

from pathlib import Path
from typing import Annotated

import typer

from records.errors import StudyError
from search.commands.options import JsonOption, StoreOption, examples

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at one trial of a study.")

WhichTrial = Annotated[
    list[str],
    typer.Argument(
        metavar="TRIAL",
        help="Number of the trial, after the id of its study if that is not the newest.",
        show_default=False,
    ),
]


@app.command(epilog=examples("cclsearch trial show 3", "cclsearch trial show 20260131-1200 3"))
def show(which: WhichTrial, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show a trial: its policy, configuration, result, metrics, files and LLM exchange."""
    from search.commands.trial_records import print_trial

    print_trial(*_chosen(which), store, as_json=as_json)


@app.command(epilog=examples("cclsearch trial logs 3", "cclsearch trial logs 3 --rank 0"))
def logs(
    which: WhichTrial,
    rank: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Only this rank. [default: all]")
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what the ranks of a trial wrote."""
    from search.commands.trial_records import print_logs

    print_logs(*_chosen(which), rank, store, as_json=as_json)


@app.command(epilog=examples("cclsearch trial files 3 --to trial-3"))
def files(
    which: WhichTrial,
    to: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where to put them; made if it is missing.")
    ],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy what a trial left (traces, logs, job) out of the record, under its own names.

    Open a rank's trace in Perfetto. To start the job again by hand, see `cclsearch trial script`.
    """
    from search.commands.trial_records import copy_files

    copy_files(*_chosen(which), to, store, as_json=as_json)


@app.command(
    epilog=examples(
        "cclsearch trial script 3", "cclsearch trial script 3 -o again.sh && sh again.sh"
    )
)
def script(
    which: WhichTrial,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write it. [default: print]"),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The launch in this context. [default: the study's own]"),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a shell script that starts the job of a trial again by hand.

    It holds all that the job needs: its files, its environment and its command. What it was part
    of, where it ran and what came of it then is told in comments.
    """
    from search.commands.trial_scripts import write_script

    write_script(*_chosen(which), output, context, store, as_json=as_json)


def _chosen(which: list[str]) -> tuple[str, int]:
    """Study and ordinal; the empty study id means the newest."""
    *studies, ordinal = which
    if len(studies) > 1 or not ordinal.isdecimal():
        raise StudyError(
            f"{' '.join(which)!r} names no trial; give its number, as in `cclsearch trial show 3`"
        )
    return "".join(studies), int(ordinal)
