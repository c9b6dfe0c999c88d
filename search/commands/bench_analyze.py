"""`bench analyze`: what folders of benchmark results say, beside each other."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from search.commands.options import JsonOption
from search.terminal import Terminal

if TYPE_CHECKING:
    from search.bench_analysis.analysis import Analysis


def analyze(
    folders: Annotated[
        list[str],
        typer.Option(
            "--dir",
            metavar="LABEL:PATH",
            help="Folder of CSV files of one benchmark; repeat it. Without a label, its own name.",
        ),
    ],
    baseline: Annotated[
        str | None,
        typer.Option(metavar="LABEL", help="What all others are compared with."),
    ] = None,
    outdir: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where tables, plots and verdicts go.")
    ] = Path("perf_results"),
    regression_threshold: Annotated[
        float, typer.Option(metavar="PERCENT", help="Slower by more than this is a regression.")
    ] = 5.0,
    improvement_threshold: Annotated[
        float, typer.Option(metavar="PERCENT", help="Faster by more than this is an improvement.")
    ] = 5.0,
    alpha: Annotated[
        float, typer.Option(metavar="SHARE", help="How often a verdict may be wrong.")
    ] = 0.05,
    summary_only: Annotated[
        bool, typer.Option("--summary-only", help="Summarise each label, and compare nothing.")
    ] = False,
    unreplicated: Annotated[
        bool,
        typer.Option(
            "--unreplicated",
            help="Judge by the bare change what was measured too seldom to decide.",
        ),
    ] = False,
    fail_on_regression: Annotated[
        bool,
        typer.Option(
            "--fail-on-regression",
            help="Exit with 3 if anything regressed or failed, with 5 if points stay undecided.",
        ),
    ] = False,
    allow_undecided: Annotated[
        bool,
        typer.Option("--allow-undecided", help="Let --fail-on-regression pass undecided points."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Summarise benchmark results, compare them with a baseline, and draw them.

    Reads the CSV files of `cclsearch bench collectives` and of torchcomms. A point is a regression
    or an improvement where rounds that both sides share (equal RunId with LaunchId or Block) show a
    change beyond the threshold, after Holm's correction for the number of points; what was measured
    once is shown and not judged.
    """
    # Imported here: what decides and draws takes a second to load.
    from search.bench_analysis.analysis import UNDECIDED
    from search.bench_analysis.analyze import AnalysisAsked
    from search.bench_analysis.analyze import analyze as analysed
    from search.bench_analysis.facts import analysis_facts
    from search.bench_analysis.verdicts import Limits

    console = Terminal(stderr=True)
    with console.status("reading") as line:
        found = analysed(
            AnalysisAsked(
                folders=tuple(folders),
                outdir=outdir,
                baseline=baseline,
                limits=Limits(
                    regression_percent=regression_threshold,
                    improvement_percent=improvement_threshold,
                    alpha=alpha,
                    unreplicated=unreplicated,
                ),
                summary_only=summary_only,
                fail_on_regression=fail_on_regression,
                allow_undecided=allow_undecided,
                warn=lambda text: typer.echo(f"warning: {text}", err=True),
                doing=lambda text: line.update(Text(text)),
            )
        )
    if as_json:
        typer.echo(json.dumps(analysis_facts(found), allow_nan=False))
    else:
        _print(found, outdir, summary_only=summary_only)
    if found.exit_status == UNDECIDED:
        typer.echo(
            f"undecided: a regression may hide at {found.open_count} points, so the gate does not "
            "pass (exit code 5); measure both sides in turns (cclsearch bench collectives with "
            "--rounds 8), or accept these points with --allow-undecided",
            err=True,
        )
    if found.exit_status:
        raise typer.Exit(found.exit_status)


def _print(found: "Analysis", outdir: Path, *, summary_only: bool) -> None:
    for results in found.results:
        count = len(results.rows)
        points = f"{count} point{'s' if count != 1 else ''}"
        typer.echo(f"{results.label}: {points} in {results.folder}")
    for pair in found.pairs:
        told = [f"{count} {standing}" for standing, count in pair.counts.items() if count]
        typer.echo(f"{pair.label} against {pair.baseline}: {', '.join(told)}")
    for caveat in found.caveats:
        typer.echo(f"caveat: {caveat}")
    typer.echo(f"written: {outdir}")
    typer.echo(f"look first at {outdir / _first(found)}")
    if found.baseline is None and len(found.results) > 1 and not summary_only:
        typer.echo("next: add --baseline LABEL to compare them")


def _first(found: "Analysis") -> Path:
    """The file that tells most."""
    if not found.pairs:
        return Path(f"perf_summary_{found.results[0].label}.txt")
    worst = max(found.pairs, key=lambda pair: pair.regression_count)
    return Path(worst.name, "perf_regress.txt" if worst.regression_count else "perf_highlights.txt")
