"""The command line: `cclsearch`, its commands and its exit codes.

A command's module is imported when the command is called; heavy modules are imported when it runs.
This keeps help and completion fast.
"""

import atexit
import gc
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand
from typer.main import get_group

from records.errors import CclsearchError, EnvironmentFault, StoreError, StudyError, TraceError
from search.settings import Interrupted, ProviderError, installed_version
from search.views.console import neutral_streams

if TYPE_CHECKING:
    from typer._click.core import Command, Context


OBJECTS_PER_COLLECTION = 200_000
"""Commands make many objects and drop few; collecting garbage more often costs time."""
INTERNAL, USAGE, ENVIRONMENT, INTERRUPTED = 1, 2, 4, 75

FOOT = """\b
Start with:
  cclsearch run --objective step_time

\b
Exit codes:
  0    done
  2    wrong usage, study, card or trace
  3    nothing could be measured; regression found (only with --fail-on...)
  4    problem with this machine, the store or the LLM provider
  5    undecided (only with --fail-on...)
  7    a replay differs (only with --strict)
  75   interrupted; continue with cclsearch resume
  130  interrupted twice
"""

COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("search.cli.run", "Search for the best configuration of a workload."),
    "init": ("search.cli.init", "Write a study file for your own script, and launch it once."),
    "try": ("search.cli.init", "Launch your script once, and check all that it may report."),
    "recipes": ("search.cli.recipe", "List the frameworks whose own launch line can be searched."),
    "recipe": (
        "search.cli.recipe",
        "Inspect the recipe of a framework, and check a configuration with its parser.",
    ),
    "resume": ("search.cli.run", "Resume a study, or add launches to it."),
    "race": ("search.cli.run", "Race two trials of a study: launch both again, interleaved."),
    "list": ("search.cli.studies", "List recorded studies, newest first, without archived ones."),
    "show": ("search.cli.studies", "Show a study: its trials and its result."),
    "best": ("search.cli.studies", "Print the best configuration for other programs to read."),
    "replay": ("search.cli.replay", "Repeat a recorded study and report where the results differ."),
    "report": ("search.cli.report", "Write a report of a study as one page (HTML or Markdown)."),
    "label": ("search.cli.studies", "Show or change the tags and notes of a study, or archive it."),
    "serve": ("search.cli.serve", "Serve studies over HTTP and in a browser."),
    "mcp": ("search.cli.serve", "Give language models access to a service (MCP over stdio)."),
    "leaderboard": ("search.cli.report", "Rank the best of each study."),
    "compare": ("search.cli.compare", "Check whether B is faster than A, and why."),
    "doctor": ("search.cli.store", "Check what this machine can run, and what is missing."),
    "launchers": ("search.cli.store", "List the launchers, and what is missing to use them."),
    "gc": ("search.cli.store", "Remove unused files and, on request, old traces."),
    "import": ("search.cli.transfer", "Import searches recorded by other tools or machines."),
    "export": ("search.cli.transfer", "Export a study for other programs, CCL-Bench or machines."),
    "version": ("search.cli.store", "Print the version."),
    "bench": ("search.cli.bench", "Benchmark communication libraries and search strategies."),
    "trial": ("search.cli.trial", "Inspect one trial of a study."),
    "space": ("search.cli.space", "Inspect a search space without launching anything."),
    "policy": ("search.cli.space", "Check a policy without launching anything."),
    "metrics": ("search.cli.metrics", "List and define metrics, and compute them from traces."),
    "trace": ("search.cli.trace", "Analyse traces: where the time of a step went, and why."),
}
"""The module of each command or group, and the first line of its help."""


class Later(TyperCommand):
    """A command that is imported when it is called; until then only its name and summary exist."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: "Context | None" = None,
        **extra: object,
    ) -> "Context":
        """Import the command or group, and parse its arguments."""
        return loaded(info_name or "").make_context(info_name, args, parent, **extra)


def loaded(name: str) -> "Command":
    """Import a command, or a group of commands."""
    module, _ = COMMANDS[name]
    commands = import_module(module)
    group = get_group(getattr(commands, f"{name}_app", commands.app))
    return group.commands.get(name, group)


app = typer.Typer(
    name="cclsearch",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help keeps examples as they are written
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Find the best launch configuration of a distributed ML workload in few real trials.",
    epilog=FOOT,
)
for _name, (_, _line) in COMMANDS.items():
    app.command(_name, cls=Later, help=_line)(lambda: None)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(installed_version())
        raise typer.Exit


@app.callback()
def _common(
    shown: Annotated[
        bool,
        typer.Option(
            "--version", "-V", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Handle the options before any command."""


def main() -> None:
    """Run the command line; each `CclsearchError` becomes one line and an exit code."""
    gc.set_threshold(OBJECTS_PER_COLLECTION)
    atexit.register(gc.freeze)  # else the interpreter collects everything before it ends
    with neutral_streams():
        _run()


def _run() -> None:
    try:
        app(prog_name="cclsearch")
    except CclsearchError as error:
        typer.echo(str(error) if isinstance(error, Interrupted) else f"error: {error}", err=True)
        sys.exit(exit_code(error))


def exit_code(error: CclsearchError) -> int:
    """Return the exit code of an error, which tells bad input from a problem of the machine."""
    match error:
        case Interrupted():
            return INTERRUPTED
        case EnvironmentFault() | StoreError() | ProviderError():
            return ENVIRONMENT
        case StudyError() | TraceError():
            return USAGE
        case _:
            return INTERNAL
