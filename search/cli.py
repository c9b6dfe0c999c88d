"""The command line: `cclsearch`, its commands and its exit codes."""

import sys

import click
import typer

from records.errors import (
    CclsearchError,
    EnvironmentFault,
    StoreError,
    StudyError,
)
from search.commands import run, spaces, studies, trials
from search.llm.errors import ProviderError

INTERNAL, USAGE, ENVIRONMENT, INTERRUPTED_TWICE = 1, 2, 4, 130

app = typer.Typer(
    name="cclsearch",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help=(
        "Find the best launch configuration of a distributed ML workload in few real trials.\n\n"
        "Start with: cclsearch run --objective step_time\n\n"
        "Exit codes: 0 done, 2 wrong usage or study, 3 nothing could be measured, 4 this machine "
        "or the store or the provider does not allow it, 75 interrupted and can be resumed, "
        "130 interrupted twice."
    ),
)
app.command("run")(run.run)
app.command("resume")(run.resume)
app.command("list")(studies.list_studies)
app.command("show")(studies.show)
app.command("best")(studies.best)
app.add_typer(trials.app, name="trial")
app.add_typer(spaces.app, name="space")


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(run.installed_version())


def main() -> None:
    """Run the command line; every error of ours becomes one line and an exit code."""
    try:
        app(standalone_mode=False)
    except click.exceptions.Exit as leave:
        sys.exit(leave.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(USAGE)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(INTERRUPTED_TWICE)
    except CclsearchError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(exit_code(error))
    except BrokenPipeError:
        sys.exit(INTERNAL)  # whoever read our output has gone


def exit_code(error: CclsearchError) -> int:
    """Exit code that says whose turn it is: the user's text, or the machine around it."""
    match error:
        case EnvironmentFault() | StoreError() | ProviderError():
            return ENVIRONMENT
        case StudyError():
            return USAGE
        case _:
            return INTERNAL
