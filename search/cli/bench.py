"""`bench collectives|analyze|mix|search`: benchmarks of communication libraries and strategies."""

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from records.codec import to_json
from records.errors import StoreError, StudyError
from records.study import Llm
from search.cli.options import JsonOption, StoreOption, TraceOptions, examples, takes_options
from search.views.console import Terminal
from search.views.format import format_count, parse_share

if TYPE_CHECKING:
    from search.collective_bench.verdicts import Analysis


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Benchmark communication libraries and search strategies.",
)
ADAPTERS = "torchcomms, c10d, c10d_torchcomms or mpi"
MORE = """\b
Ranks are started by this command, or by torchrun or mpirun:
  torchrun --nproc-per-node 4 --no-python cclsearch bench collectives all_reduce --c10d
  mpirun -n 4 cclsearch bench collectives all_reduce --mpi
"""
EXAMPLES = ("generated:small-1", "generated:medium-1", "generated:medium-2-anonymous")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """What to measure, and how; texts, as all faults are reported together."""

    all_adapters: Annotated[
        bool, typer.Option("--all-comm-adapters", help="Every library available on this machine.")
    ] = False
    backend: Annotated[
        str | None, typer.Option(metavar="NAME", help="[default: by library and device]")
    ] = None
    device: Annotated[
        str | None, typer.Option(metavar="cpu|cuda", help="[default: cuda if there are GPUs]")
    ] = None
    min_size: Annotated[
        str, typer.Option(metavar="BYTES", help="Smallest message; also as 64K, 1M, 1G.")
    ] = "4"
    max_size: Annotated[str, typer.Option(metavar="BYTES", help="Largest message.")] = "64M"
    size_scaling_factor: Annotated[
        str, typer.Option(metavar="N", help="Ratio of successive sizes.")
    ] = "2"
    dtype: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="float32, float16, bfloat16, float64, int32, int64 or an alias."
        ),
    ] = "float32"
    reduce_op: Annotated[
        str | None,
        typer.Option(metavar="OP|all", help="sum, min, max, avg or product. [default: sum]"),
    ] = None
    warmup: Annotated[str, typer.Option(metavar="N", help="Calls before the timed ones.")] = "5"
    iters: Annotated[str, typer.Option(metavar="N", help="Timed calls.")] = "1000"
    sync_interval: Annotated[
        str,
        typer.Option(metavar="N", help="Calls between clock readings; 0: one reading at the end."),
    ] = "0"
    async_op: Annotated[
        bool, typer.Option("--async", help="Start each call, then wait for it.")
    ] = False
    csv: Annotated[
        bool, typer.Option("--csv", help="Write a CSV per collective, and all samples.")
    ] = False
    output_dir: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="[default: name of the library]")
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")] = False
    bw_convention: Annotated[
        str, typer.Option(metavar="nccl-tests|torchcomms", help="Definition of bus bandwidth.")
    ] = "nccl-tests"
    rank_count: Annotated[
        str | None,
        typer.Option(
            "--nproc-per-node", metavar="N", help="Ranks to start. [default: one per GPU, else 2]"
        ),
    ] = None
    rounds: Annotated[
        str, typer.Option(metavar="N", help="Restart each library N times, interleaved.")
    ] = "1"
    timeout: Annotated[str, typer.Option(metavar="SECONDS", help="Timeout of one point.")] = "60"


@app.command(
    epilog=examples(
        "cclsearch bench collectives all_reduce --min-size 4 --max-size 64M --csv",
        "cclsearch bench collectives all_reduce --reduce-op all --csv --quiet",
        "cclsearch bench collectives all --all-comm-adapters --rounds 6 --csv --output-dir new",
    )
    + "\n\n"
    + MORE
)
@takes_options
def collectives(
    *,
    collective: Annotated[
        str,
        typer.Argument(
            metavar="COLLECTIVE|all", help="Such as all_reduce or barrier.", show_default=False
        ),
    ] = "",
    comm_adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"Library: {ADAPTERS}. [default: torchcomms if installed, else c10d]",
        ),
    ] = None,
    torchcomms: Annotated[
        bool, typer.Option("--torchcomms", help="Short for --comm-adapter torchcomms.")
    ] = False,
    c10d: Annotated[bool, typer.Option("--c10d", help="Short for --comm-adapter c10d.")] = False,
    c10d_torchcomms: Annotated[
        bool, typer.Option("--c10d-torchcomms", help="c10d, routed through torchcomms.")
    ] = False,
    mpi: Annotated[bool, typer.Option("--mpi", help="Short for --comm-adapter mpi.")] = False,
    sweep: SweepOptions,
    window: Annotated[
        str | None, typer.Option("--window", hidden=True, help="--sync-interval.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure latency and bandwidth of a collective over message sizes."""
    if window is not None:
        raise StudyError(
            "there is no --window; --sync-interval N reads the clock after every N calls"
        )
    # Imported here: it loads torch, which help does not need.
    from search.collective_bench.run import bench_collectives

    short = {
        "torchcomms": torchcomms,
        "c10d": c10d,
        "c10d_torchcomms": c10d_torchcomms,
        "mpi": mpi,
    }
    options = {
        "collective": collective,
        "adapters": (*(comm_adapter or ()), *(name for name, given in short.items() if given)),
        "as_json": as_json,
        **asdict(sweep),
    }
    raise typer.Exit(bench_collectives(options))


@app.command(
    epilog=examples(
        "cclsearch bench analyze --dir c10d --dir mpi --baseline c10d",
        "cclsearch bench analyze --dir old:runs/1 --dir new:runs/2 --baseline old "
        "--fail-on-regression",
    )
)
def analyze(
    folders: Annotated[
        list[str],
        typer.Option(
            "--dir",
            metavar="LABEL:PATH",
            help="Folder with the CSV files of one benchmark. Repeatable. [default label: the "
            "folder's name]",
        ),
    ],
    baseline: Annotated[
        str | None,
        typer.Option(metavar="LABEL", help="Compare all others with this label."),
    ] = None,
    outdir: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Output folder for tables, plots and verdicts.")
    ] = Path("perf_results"),
    regression_threshold: Annotated[
        float, typer.Option(metavar="PERCENT", help="Slower by more than this is a regression.")
    ] = 5.0,
    improvement_threshold: Annotated[
        float, typer.Option(metavar="PERCENT", help="Faster by more than this is an improvement.")
    ] = 5.0,
    alpha: Annotated[
        float, typer.Option(metavar="SHARE", help="Error rate of the verdicts.")
    ] = 0.05,
    summary_only: Annotated[
        bool, typer.Option("--summary-only", help="Summarise each label without comparing.")
    ] = False,
    unreplicated: Annotated[
        bool,
        typer.Option(
            "--unreplicated",
            help="Compare points with too few rounds by their plain difference.",
        ),
    ] = False,
    fail_on_regression: Annotated[
        bool,
        typer.Option(
            "--fail-on-regression",
            help="Exit with status 3 if anything regressed or failed, with 5 if a point may be "
            "slower by twice the threshold.",
        ),
    ] = False,
    allow_undecided: Annotated[
        bool,
        typer.Option("--allow-undecided", help="Let --fail-on-regression pass undecided points."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Summarise benchmark results, compare them with a baseline, and plot them.

    Reads the CSV files of `cclsearch bench collectives` and of torchcomms. A point is a regression
    or an improvement if the shared rounds (equal RunId with LaunchId or Block) show a significant
    change beyond the threshold, after Holm's correction. Points measured only once are shown
    without a verdict.
    """
    # Imported here: statistics and plotting take a second to load.
    from search.collective_bench.analyze import analysis_facts, undecided_words
    from search.collective_bench.analyze import analyze as run_analysis
    from search.collective_bench.verdicts import UNDECIDED, AnalysisOptions, Limits

    console = Terminal(stderr=True)
    with console.status("reading") as line:
        found = run_analysis(
            AnalysisOptions(
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
        typer.echo(f"undecided: {undecided_words(found)}", err=True)
    if found.exit_status:
        raise typer.Exit(found.exit_status)


def _print(found: "Analysis", outdir: Path, *, summary_only: bool) -> None:
    for results in found.results:
        points = format_count(len(results.rows), "point")
        typer.echo(f"{results.label}: {points} in {results.folder}")
    for pair in found.pairs:
        counts = [f"{count} {standing}" for standing, count in pair.counts.items() if count]
        typer.echo(f"{pair.words}: {', '.join(counts)}")
    for caveat in found.caveats:
        typer.echo(f"caveat: {caveat}")
    typer.echo(f"written: {outdir}")
    typer.echo(f"start with {outdir / _first(found)}")
    if found.baseline is None and len(found.results) > 1 and not summary_only:
        typer.echo("next: add --baseline LABEL to compare them")


def _first(found: "Analysis") -> Path:
    """Return the most informative file."""
    if not found.pairs:
        return Path(f"perf_summary_{found.results[0].label}.txt")
    worst = max(found.pairs, key=lambda pair: pair.regression_count)
    return Path(worst.name, "perf_regress.txt" if worst.regression_count else "perf_highlights.txt")


@app.command(
    epilog=examples(
        "cclsearch bench mix traces/", "cclsearch bench mix trial:3 --out messages.toml"
    )
)
@takes_options
def mix(
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.toml", help="Output file. [default: print]"),
    ] = None,
    options: TraceOptions,
) -> None:
    """Print the collectives of a recorded step as a study file that tunes them.

    Run the file unchanged, or copy its [[message]] tables into another study file.
    """
    from search.traces.message_mix import mix_of

    text = mix_of(options.read()).toml()
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {out}: {error.strerror}") from error
    typer.echo(f"written: {out}")
    typer.echo(f"next: cclsearch run -c {shlex.quote(str(out))}")


@app.command(
    epilog=examples(
        "cclsearch bench search",
        "cclsearch bench search generated:7 my_landscape.json --strategies offline,tpe -o results",
        "cclsearch bench search benchmarks/landscapes/builtin_cpu.json --seeds 50 --json",
        "cclsearch bench search study:20260131-120000-ab12 --strategies offline,tpe",
    )
)
def search(
    landscapes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LANDSCAPE...",
            help="Landscape file (docs/landscapes.md), generated:[small-|medium-|large-]SEED"
            "[-anonymous], or study:ID for a recorded or imported study. "
            "[default: three generated ones]",
            show_default=False,
        ),
    ] = None,
    strategies: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Strategies to compare. [default: all that need no LLM]"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Searches per strategy.")] = 20,
    trials: Annotated[int, typer.Option(min=2, metavar="N", help="Trials per search.")] = 40,
    target: Annotated[
        str,
        typer.Option(metavar="SHARE", help="A hit is at most this much worse than the optimum."),
    ] = "5%",
    start: Annotated[
        str,
        typer.Option(
            metavar="seed|random",
            help="Start at the landscape's seed, or at a random configuration.",
        ),
    ] = "seed",
    transcripts: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="For hybrid and llm: replay LLM responses from this folder; with "
            "ANTHROPIC_API_KEY set, missing ones are requested and saved.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the LLM. [default: the studies' default]"),
    ] = None,
    outdir: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--outdir",
            metavar="FOLDER",
            help="Write results (JSON) and a chart to this folder.",
        ),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare search strategies on landscapes where the value of every configuration is known.

    All strategies start at the same configuration, see only feasible ones and never repeat one. A
    trial draws one noisy sample; a better-looking challenger and the leader get two more each. The
    score is the true value of the announced configuration. Nothing is launched.
    """
    # Imported here: statistics and plotting take a second to load.
    from search.strategy_bench.comparison import (
        compare,
        comparison_document,
        strategies_of,
        write,
    )
    from search.strategy_bench.run import Asking, landscapes_of
    from search.views.terminal import print_document

    if start not in ("seed", "random"):
        raise StudyError(f"--start {start!r} is unknown; use seed or random")
    asking = None
    if transcripts is not None:
        asking = Asking(transcripts=transcripts, llm=Llm() if model is None else Llm(model=model))
    console = Terminal(stderr=True)
    with console.status("starting") as line:
        found = compare(
            landscapes_of(landscapes or EXAMPLES, store, lambda words: console.print(Text(words))),
            strategies_of(strategies, asking),
            seed_count=seeds,
            trial_count=trials,
            reach=parse_share(target, "--target"),
            start="random" if start == "random" else "seed",
            asking=asking,
            done=lambda landscape, strategy, done, count: line.update(
                Text(f"{done} of {count}: {strategy} on {landscape}")
            ),
        )
        written = () if outdir is None else write(found, outdir)
    if as_json:
        typer.echo(to_json(found))
    else:
        print_document(comparison_document(found))
        for path in written:
            typer.echo(f"written: {path}")
        if not written:
            typer.echo("next: add -o FOLDER for the JSON and the picture")
