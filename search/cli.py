"""The command line: `cclsearch`, its commands and its exit codes.

Commands reach for heavy modules when they run, so that help and completion are instant.
"""

import sys
from typing import Annotated

import typer

from evaluator.traces.errors import TraceError
from records.errors import CclsearchError, EnvironmentFault, StoreError, StudyError
from search.commands import (
    bench,
    compare,
    doctor,
    export,
    gc,
    imports,
    leaderboard,
    mcp,
    metrics,
    policies,
    replay,
    reports,
    run,
    serve,
    spaces,
    studies,
    traces,
    trials,
)
from search.commands.options import examples
from search.errors import Interrupted
from search.llm.errors import ProviderError
from search.terminal import neutral_streams
from search.version import installed_version

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
    epilog=examples(
        "cclsearch replay 20260131-120000-ab12 --strict --json",
        "cclsearch replay --mode measure --trial all --within 5%",
        "cclsearch replay --mode policy --vary world_size=4,8 --vary global_batch=16,32",
        "cclsearch replay --mode score --objective tokens_per_s",
    ),
)(replay.replay)
app.command(
    "report",
    epilog=examples(
        "cclsearch report",
        "cclsearch report 20260131-120000-ab12 -o report.html --open",
        "cclsearch report -o report.md",
    ),
)(reports.report)
app.command(
    "serve",
    epilog=examples(
        "cclsearch serve",
        "cclsearch serve -c service.toml --port 9000",
        "cclsearch serve --new-token ci:submit",
    ),
)(serve.serve)
app.command(
    "mcp",
    epilog=examples("cclsearch mcp", "cclsearch mcp --url https://searches.example.org"),
)(mcp.mcp)
app.command(
    "leaderboard",
    epilog=examples(
        "cclsearch leaderboard",
        "cclsearch leaderboard --entries ccl_leaderboard.jsonl --workload WL4 --absent",
        "cclsearch leaderboard --by tokens_per_s --metric mfu --metric peak_memory",
        "cclsearch leaderboard -o leaderboard.html",
    ),
)(leaderboard.leaderboard)
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
app.command(
    "gc",
    epilog=examples(
        "cclsearch gc --dry-run",
        "cclsearch gc --traces-older-than 30d --keep-best 3",
        "cclsearch gc --max-size 10GB --yes",
    ),
)(gc.gc)
app.command(
    "import",
    epilog=examples(
        "cclsearch import runs/20260429_093910 --card workload_card.yaml",
        "cclsearch import histories.jsonl --dry-run",
        "cclsearch import optuna.db --as baseline",
    ),
)(imports.import_histories)
app.command(
    "export",
    epilog=examples(
        "cclsearch export --format csv -o trials.csv",
        "cclsearch export 20260131 --format bundle -o study.cclsearch",
        "cclsearch export --format entry -o entry/ --set contributor=Me --set contact=me@b.org",
        "cclsearch export --format bundle --redact --hash-names --perturb-times 2%",
    ),
)(export.export)
app.add_typer(export.app, name="entry")
app.add_typer(bench.app, name="bench")
app.add_typer(trials.app, name="trial")
app.add_typer(spaces.app, name="space")
app.add_typer(policies.app, name="policy")
app.add_typer(metrics.app, name="metrics")
app.add_typer(traces.app, name="trace")


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


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(installed_version())


def main() -> None:
    """Run the command line; every error of ours becomes one line and an exit code."""
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
