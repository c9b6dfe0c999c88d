"""The command line: `cclsearch`, its commands and its exit codes.

A command's module is imported when it is called or asked for its own help, and reaches for heavy
modules when it runs, so that help and completion are instant.
"""

import gc
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand
from typer.main import get_group

from evaluator.traces.errors import TraceError
from records.errors import CclsearchError, EnvironmentFault, StoreError, StudyError
from search.settings import Interrupted, ProviderError, installed_version
from search.views.console import neutral_streams

if TYPE_CHECKING:
    from typer._click.core import Command, Context


LOADED_OBJECTS = 50_000
"""Imports make many objects and drop few: looking for garbage more often takes long."""
INTERNAL, USAGE, ENVIRONMENT, INTERRUPTED = 1, 2, 4, 75

FOOT = """\b
Start with:
  cclsearch run --objective step_time

\b
Exit codes:
  0    done
  2    wrong usage, study, card or trace
  3    nothing could be measured; something is slower or broke, where that was to fail
  4    this machine, the store or the provider does not allow it
  5    a gate could not decide (bench analyze, compare --fail-on slow)
  7    a replay came out otherwise, where that was to fail
  75   interrupted; cclsearch resume goes on
  130  interrupted twice
"""

COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("search.cli.run", "Search: launch trials, learn from each, prove the best."),
    "resume": (
        "search.cli.run",
        "Go on with a study where it stopped, or add launches to it.",
    ),
    "list": ("search.cli.studies", "List the studies on record, newest first."),
    "show": ("search.cli.studies", "Show a study: its trials and what it found."),
    "best": (
        "search.cli.studies",
        "Print the best configuration in a form that other programs take.",
    ),
    "replay": (
        "search.cli.replay",
        "Do again what a study on record did, and tell where it comes out otherwise.",
    ),
    "report": (
        "search.cli.report",
        "Write a study as one page: what was asked, the best with its evidence, every trial, the "
        "cost.",
    ),
    "serve": (
        "search.cli.serve",
        "Serve studies over HTTP and in a browser: submit, watch, explore, cancel.",
    ),
    "mcp": (
        "search.cli.serve",
        "Offer a service to language models, by the Model Context Protocol over standard input.",
    ),
    "leaderboard": (
        "search.cli.report",
        "Rank the best of each study, beside entries of others: metrics as columns, works as "
        "groups.",
    ),
    "compare": (
        "search.cli.compare",
        "Tell whether B is faster than A: FAST, SLOW, SAME, UNDECIDED or UNKNOWN, and why.",
    ),
    "doctor": (
        "search.cli.store",
        "Tell what this machine can do, and what to do about what is missing.",
    ),
    "gc": (
        "search.cli.store",
        "Remove kept files that no record cites, and what killed processes left.",
    ),
    "import": (
        "search.cli.transfer",
        "Import recorded searches: afterwards they can be shown, compared, re-scored and reported.",
    ),
    "export": (
        "search.cli.transfer",
        "Write a study for other programs, for CCL-Bench, or for another machine.",
    ),
    "version": ("search.cli.store", "Print the version."),
    "entry": ("search.cli.transfer", "Look at an entry of CCL-Bench."),
    "bench": (
        "search.cli.bench",
        "Measure communication libraries, tell what changed, and compare search strategies.",
    ),
    "trial": ("search.cli.trial", "Look at one trial of a study."),
    "space": ("search.cli.space", "Look at a search space; nothing is launched."),
    "policy": ("search.cli.space", "Look at a policy; nothing is launched."),
    "metrics": (
        "search.cli.metrics",
        "Metrics: what there is, what it means, and the values of traces.",
    ),
    "trace": (
        "search.cli.trace",
        "Look into traces: where the time of a step went, and why.",
    ),
}
"""The module that has each command, or is it as a group, and the first line of its help."""


class Later(TyperCommand):
    """A command of which only the name and a line of help are loaded until it is called."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: "Context | None" = None,
        **extra: object,
    ) -> "Context":
        """Load the command, or a group of commands, and parse its arguments."""
        return loaded(info_name or "").make_context(info_name, args, parent, **extra)


def loaded(name: str) -> "Command":
    """A command, or a group of commands, from its module."""
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
    """Take the options that stand before any command."""


def main() -> None:
    """Run the command line; every error of ours becomes one line and an exit code."""
    gc.set_threshold(LOADED_OBJECTS)
    with neutral_streams():
        _run()


def _run() -> None:
    try:
        app(prog_name="cclsearch")
    except CclsearchError as error:
        typer.echo(str(error) if isinstance(error, Interrupted) else f"error: {error}", err=True)
        sys.exit(exit_code(error))


def exit_code(error: CclsearchError) -> int:
    """Exit code that says whose turn it is: the user's text, or the machine around it."""
    match error:
        case Interrupted():
            return INTERRUPTED
        case EnvironmentFault() | StoreError() | ProviderError():
            return ENVIRONMENT
        case StudyError() | TraceError():
            return USAGE
        case _:
            return INTERNAL
