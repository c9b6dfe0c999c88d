"""`bench collectives|analyze|mix|search`: how fast libraries carry messages, how well we search."""

from typing import Annotated

import typer

from records.errors import StudyError
from search.commands.bench_analyze import analyze
from search.commands.bench_mix import mix
from search.commands.bench_search import search
from search.commands.options import JsonOption, examples

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure communication libraries, tell what changed, and compare search strategies.",
)
ADAPTERS = "torchcomms, c10d, c10d_torchcomms or mpi"
MORE = """\b
Ranks are started here, by torchrun or mpirun, or are there already:
  torchrun --nproc-per-node 4 --no-python cclsearch bench collectives all_reduce --c10d
  mpirun -n 4 cclsearch bench collectives all_reduce --mpi
"""


@app.command(
    epilog=examples(
        "cclsearch bench collectives all_reduce --min-size 4 --max-size 64M --csv",
        "cclsearch bench collectives all_reduce --reduce-op all --csv --quiet",
        "cclsearch bench collectives all --all-comm-adapters --rounds 6 --csv --output-dir new",
    )
    + "\n\n"
    + MORE
)
def collectives(
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
            help=f"Library: {ADAPTERS}. [default: torchcomms if it is here, else c10d]",
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
    all_comm_adapters: Annotated[
        bool, typer.Option("--all-comm-adapters", help="Every library that can be used here.")
    ] = False,
    backend: Annotated[
        str | None, typer.Option(metavar="NAME", help="[default: that of library and device]")
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="cpu|cuda", help="[default: cuda where there are GPUs]")
    ] = None,
    min_size: Annotated[str, typer.Option(metavar="BYTES", help="Or as in 64K, 1M, 1G.")] = "4",
    max_size: Annotated[str, typer.Option(metavar="BYTES", help="Likewise.")] = "64M",
    size_scaling_factor: Annotated[str, typer.Option(metavar="N", help="Between sizes.")] = "2",
    dtype: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="float32, float16, bfloat16, float64, int32, int64 or an alias."
        ),
    ] = "float32",
    reduce_op: Annotated[
        str | None,
        typer.Option(metavar="OP|all", help="sum, min, max, avg or product. [default: sum]"),
    ] = None,
    warmup: Annotated[str, typer.Option(metavar="N", help="Calls before the timed ones.")] = "5",
    iters: Annotated[str, typer.Option(metavar="N", help="Timed calls.")] = "1000",
    sync_interval: Annotated[
        str,
        typer.Option(
            metavar="N", help="Calls between two looks at the clock; 0: one look at the end."
        ),
    ] = "0",
    async_op: Annotated[
        bool, typer.Option("--async", help="Start each call, then wait for it.")
    ] = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="Write a CSV for each collective, and all samples.")
    ] = False,
    output_dir: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="[default: named like the library]")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")] = False,
    bw_convention: Annotated[
        str, typer.Option(metavar="nccl-tests|torchcomms", help="Whose bus bandwidth.")
    ] = "nccl-tests",
    nproc_per_node: Annotated[
        str | None, typer.Option(metavar="N", help="Ranks to start. [default: the GPUs, else 2]")
    ] = None,
    rounds: Annotated[
        str, typer.Option(metavar="N", help="Start each library anew so often, in turns.")
    ] = "1",
    timeout: Annotated[str, typer.Option(metavar="SECONDS", help="For one point.")] = "60",
    window: Annotated[
        str | None, typer.Option("--window", hidden=True, help="--sync-interval.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure latency and bandwidth of a collective over message sizes."""
    if window is not None:
        raise StudyError(
            "there is no --window; --sync-interval N looks at the clock after every N calls"
        )
    # Imported here: it takes torch, and help does without.
    from evaluator.bench.asked import Asked
    from search.bench.running import bench_collectives

    short = {
        "torchcomms": torchcomms,
        "c10d": c10d,
        "c10d_torchcomms": c10d_torchcomms,
        "mpi": mpi,
    }
    asked = Asked(
        collective=collective,
        adapters=(*(comm_adapter or ()), *(name for name, given in short.items() if given)),
        all_adapters=all_comm_adapters,
        backend=backend,
        device=device,
        min_size=min_size,
        max_size=max_size,
        size_scaling_factor=size_scaling_factor,
        dtype=dtype,
        reduce_op=reduce_op,
        warmup=warmup,
        iters=iters,
        sync_interval=sync_interval,
        async_op=async_op,
        csv=csv,
        output_dir=output_dir,
        quiet=quiet,
        as_json=as_json,
        bw_convention=bw_convention,
        rank_count=nproc_per_node,
        rounds=rounds,
        timeout=timeout,
    )
    raise typer.Exit(bench_collectives(asked))


app.command(
    "analyze",
    epilog=examples(
        "cclsearch bench analyze --dir c10d --dir mpi --baseline c10d",
        "cclsearch bench analyze --dir old:runs/1 --dir new:runs/2 --baseline old "
        "--fail-on-regression",
    ),
)(analyze)
app.command(
    "mix",
    epilog=examples(
        "cclsearch bench mix traces/", "cclsearch bench mix trial:3 --out messages.toml"
    ),
)(mix)
app.command(
    "search",
    epilog=examples(
        "cclsearch bench search",
        "cclsearch bench search generated:7 my_landscape.json --strategies offline,tpe -o results",
        "cclsearch bench search benchmarks/landscapes/builtin_cpu.json --seeds 50 --json",
        "cclsearch bench search study:20260131-120000-ab12 --strategies offline,tpe",
    ),
)(search)
