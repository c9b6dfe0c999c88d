"""The command line: `cclsearch`, its commands and its exit codes.

Commands reach for heavy modules when they run, so that help and completion are instant.
"""

import io
import sys

import typer

from evaluator.traces.errors import TraceError
from records.errors import CclsearchError, EnvironmentFault, StoreError, StudyError
from search.commands import (
    bench,
    compare,
    doctor,
    metrics,
    policies,
    replay,
    run,
    spaces,
    studies,
    traces,
    trials,
)
from search.commands.options import examples, installed_version
from search.errors import Interrupted
from search.llm.errors import ProviderError

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
  7    a replay came out otherwise, where that was to fail
  75   interrupted; cclsearch resume goes on
  130  interrupted twice
"""

app = typer.Typer(
    name="cclsearch",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help keeps examples as they are written
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Find the best launch configuration of a distributed ML workload in few real trials.",
    epilog=FOOT,
)
app.command(
    "run",
    epilog=examples(
        "cclsearch run --objective step_time --trials 15",
        "cclsearch run --objective tokens_per_s -c study.toml",
        'cclsearch run --objective "0.5*rank_count/4 + 0.5*step_time/0.3"',
        "cclsearch run --objective step_time --objective gpus --limit 'peak_memory < 30 GiB'",
    ),
)(run.run)
app.command(
    "resume",
    epilog=examples("cclsearch resume", "cclsearch resume 20260131-120000-ab12 --trials 5"),
)(run.resume)
app.command("list", epilog=examples("cclsearch list", "cclsearch list --json"))(
    studies.list_studies
)
app.command(
    "show",
    epilog=examples(
        "cclsearch show",
        "cclsearch show 20260131-120000-ab12",
        "cclsearch show --front --objective step_time --objective gpus --plot front.png",
    ),
)(studies.show)
app.command(
    "best",
    epilog=examples(
        "cclsearch best --format args",
        "cclsearch best --objective rank_seconds --limit 'step_time < 500 ms'",
    ),
)(studies.best)
app.command(
    "replay",
    epilog=examples("cclsearch replay", "cclsearch replay 20260131-120000-ab12 --strict --json"),
)(replay.replay)
app.command(
    "compare",
    cls=compare.InOrder,
    epilog=examples(
        "cclsearch compare trial:0 best",
        "cclsearch compare torchcomms/ c10d/ --fail-on slow",
        "cclsearch compare before.json after.json --display explain",
    ),
)(compare.compare)
app.command("doctor", epilog=examples("cclsearch doctor", "cclsearch doctor --noise --json"))(
    doctor.doctor
)
app.add_typer(bench.app, name="bench")
app.add_typer(trials.app, name="trial")
app.add_typer(spaces.app, name="space")
app.add_typer(policies.app, name="policy")
app.add_typer(metrics.app, name="metrics")
app.add_typer(traces.app, name="trace")


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(installed_version())


def main() -> None:
    """Run the command line; every error of ours becomes one line and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a log in another script must not end a search
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
