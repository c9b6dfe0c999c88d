"""`bench collectives|analyze|mix|search`: benchmarks of communication libraries and strategies."""

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from records.codec import to_json
from records.errors import StudyError
from search.cli.options import (
    JsonOption,
    PythonOption,
    StoreOption,
    TraceOptions,
    argument,
    examples,
    option,
    takes_options,
    write_file,
)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """What to measure, and how; texts, as all faults are reported together."""

    all_adapters: bool = option(
        False, "Every library available on this machine.", "--all-comm-adapters"
    )
    backend: str | None = option(None, "[default: by library and device]", metavar="NAME")
    device: str | None = option(None, "[default: cuda if there are GPUs]", metavar="cpu|cuda")
    min_size: str = option("4", "Smallest message; also as 64K, 1M, 1G.", metavar="BYTES")
    max_size: str = option("64M", "Largest message.", metavar="BYTES")
    size_scaling_factor: str = option("2", "Ratio of successive sizes.", metavar="N")
    dtype: str = option(
        "float32", "float32, float16, bfloat16, float64, int32, int64 or an alias.", metavar="NAME"
    )
    reduce_op: str | None = option(
        None, "sum, min, max, avg or product. [default: sum]", metavar="OP|all"
    )
    warmup: str = option("5", "Calls before the timed ones.", metavar="N")
    iters: str = option("1000", "Timed calls.", metavar="N")
    sync_interval: str = option(
        "0", "Calls between clock readings; 0: one reading at the end.", metavar="N"
    )
    async_op: bool = option(False, "Start each call, then wait for it.", "--async")
    csv: bool = option(False, "Write a CSV per collective, and all samples.")
    output_dir: str | None = option(None, "[default: name of the library]", metavar="FOLDER")
    quiet: bool = option(False, "Print nothing.", "--quiet", "-q")
    bw_convention: str = option(
        "nccl-tests", "Definition of bus bandwidth.", metavar="nccl-tests|torchcomms"
    )
    rank_count: str | None = option(
        None, "Ranks to start. [default: one per GPU, else 2]", "--nproc-per-node", metavar="N"
    )
    rounds: str = option("1", "Restart each library N times, interleaved.", metavar="N")
    timeout: str = option("60", "Timeout of one point.", metavar="SECONDS")


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
    collective: str = argument("", "Such as all_reduce or barrier.", metavar="COLLECTIVE|all"),
    comm_adapter: list[str] | None = option(
        None, f"Library: {ADAPTERS}. [default: torchcomms if installed, else c10d]", metavar="NAME"
    ),
    torchcomms: bool = option(False, "Short for --comm-adapter torchcomms."),
    c10d: bool = option(False, "Short for --comm-adapter c10d."),
    c10d_torchcomms: bool = option(False, "c10d, routed through torchcomms."),
    mpi: bool = option(False, "Short for --comm-adapter mpi."),
    python: PythonOption = None,
    sweep: SweepOptions,
    as_json: JsonOption = False,
) -> None:
    """Measure latency and bandwidth of a collective over message sizes."""
    # Imported here: it loads what help does not need.
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
        "python": python,
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
@takes_options
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
    baseline: str | None = option(None, "Compare all others with this label.", metavar="LABEL"),
    outdir: Path = option(
        Path("perf_results"), "Output folder for table, charts and verdicts.", metavar="FOLDER"
    ),
    threshold: float = option(
        5.0, "A change of latency by more than this counts.", metavar="PERCENT"
    ),
    alpha: float = option(0.05, "Error rate of the verdicts.", metavar="SHARE"),
    fail_on_regression: bool = option(
        False,
        "Exit with status 3 if anything regressed or failed, with 5 if a point may be "
        "slower by twice the threshold.",
    ),
    allow_undecided: bool = option(False, "Let --fail-on-regression pass undecided points."),
    as_json: JsonOption = False,
) -> None:
    """Compare benchmark results with a baseline, and plot them.

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
                limits=Limits(percent=threshold, alpha=alpha),
                fail_on_regression=fail_on_regression,
                allow_undecided=allow_undecided,
                warn=lambda text: typer.echo(f"warning: {text}", err=True),
                doing=lambda text: line.update(Text(text)),
            )
        )
    if as_json:
        typer.echo(json.dumps(analysis_facts(found), allow_nan=False))
    else:
        _print(found, outdir)
    if found.exit_status == UNDECIDED:
        typer.echo(f"undecided: {undecided_words(found)}", err=True)
    if found.exit_status:
        raise typer.Exit(found.exit_status)


def _print(found: "Analysis", outdir: Path) -> None:
    from search.collective_bench.analyze import differing_table, label_table
    from search.views.terminal import print_blocks

    for results in found.results:
        typer.echo(
            f"{results.label}: {format_count(len(results.rows), 'point')} in {results.folder}"
        )
        if found.baseline is None:
            print_blocks((label_table(results),), spaced=True)
    for pair in found.pairs:
        counts = [f"{count} {standing}" for standing, count in pair.counts.items() if count]
        typer.echo(f"{pair.words}: {', '.join(counts)}")
        differing = differing_table(pair)
        if differing.rows:
            print_blocks((differing,), spaced=True)
    for caveat in found.caveats:
        typer.echo(f"caveat: {caveat}")
    typer.echo(f"written: {outdir}")
    if found.baseline is None and len(found.results) > 1:
        typer.echo("next: add --baseline LABEL to compare them")


@app.command(
    epilog=examples(
        "cclsearch bench mix traces/", "cclsearch bench mix trial:3 --out messages.toml"
    )
)
@takes_options
def mix(
    *,
    out: Path | None = option(None, "Output file. [default: print]", metavar="FILE.toml"),
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
    write_file(out, text)
    typer.echo(f"written: {out}")
    typer.echo(f"next: cclsearch run -c {shlex.quote(str(out))}")


@app.command(
    epilog=examples(
        "cclsearch bench search",
        "cclsearch bench search builtin-cpu my_landscape.json --strategies offline,tpe",
        "cclsearch bench search study:20260131-120000-ab12 --strategies offline,tpe",
        "cclsearch bench search --strategies offline,hybrid --seeds 5 --transcripts said.jsonl",
    )
)
@takes_options
def search(
    landscapes: list[str] | None = argument(
        None,
        "study:ID for a recorded or imported study, a landscape file (docs/landscapes.md), or "
        "builtin-cpu or mpi-all-reduce, which were measured. [default: these two]",
        metavar="LANDSCAPE...",
    ),
    strategies: str | None = option(
        None,
        "Strategies to compare; hybrid and llm ask a model and search with the default budget "
        "only. [default: all that ask none]",
        metavar="A,B",
    ),
    model: str | None = option(
        None, "Name of the LLM that hybrid and llm ask. [default: that of a study]", metavar="NAME"
    ),
    transcripts: Path | None = option(
        None,
        "Answers of the model: those in this file are used again, others are asked for and added.",
        metavar="FILE.jsonl",
    ),
    seeds: int = option(20, "Searches per strategy.", metavar="N", min=1),
    trials: int = option(40, "Trials per search.", metavar="N", min=2),
    target: str = option(
        "5%", "A hit is at most this much worse than the optimum.", metavar="SHARE"
    ),
    start: str = option(
        "seed",
        "Start at the landscape's seed, or at a random configuration.",
        metavar="seed|random",
    ),
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare search strategies on landscapes where the value of every configuration is known.

    Each search is the one that `run` makes, with its races, its self-test and its final, but its
    launches are simulated: once with the default budget, and once for all trials whatever the stop
    rules say. All strategies start at the same configuration and see only feasible ones.
    """
    # Imported here: statistics and plotting take a second to load.
    from records.study import Llm
    from search.strategy_bench.answers import Model
    from search.strategy_bench.comparison import (
        compare,
        comparison_document,
        strategies_of,
    )
    from search.strategy_bench.run import MEASURED, landscapes_of
    from search.views.terminal import print_document

    if start not in ("seed", "random"):
        raise StudyError(f"--start {start!r} is unknown; use seed or random")
    console = Terminal(stderr=True)
    with console.status("starting") as line:
        found = compare(
            landscapes_of(landscapes or MEASURED, store, lambda words: console.print(Text(words))),
            strategies_of(strategies),
            seed_count=seeds,
            trial_count=trials,
            reach=parse_share(target, "--target"),
            start="random" if start == "random" else "seed",
            model=Model(llm=Llm(model=model) if model else Llm(), answers=transcripts),
            done=lambda landscape, strategy, done, count: line.update(
                Text(f"{done} of {count}: {strategy} on {landscape}")
            ),
        )
    if as_json:
        typer.echo(to_json(found))
    else:
        print_document(comparison_document(found))
