"""`trace breakdown|collectives|stragglers|kernels|operators|diff|...`: analysis of traces."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evaluator.traces.analysis.breakdown import JobSplit
from evaluator.traces.analysis.difference import JobDifference, difference
from evaluator.traces.analysis.stragglers import imbalance
from evaluator.traces.model import TraceSet
from records.errors import StudyError
from search.cli.options import (
    JsonOption,
    NoCacheOption,
    PlotOption,
    StoreOption,
    TraceArgument,
    TraceOptions,
    examples,
    takes_options,
)
from search.traces import view
from search.traces.open import OpenTraces
from search.traces.tables import kernel_rows, table_rows
from search.views.document import Block
from search.views.format import (
    format_count,
    format_decimal_bytes,
    format_duration,
    one_line,
)
from search.views.svg import chart_file
from search.views.terminal import print_blocks

if TYPE_CHECKING:
    from search.traces.merge import MergedTrace, OverlaySpan

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Analyse traces: where the time of a step went, and why.",
)

CAVEAT_CHARS = 300
MOST_CAVEATS = 8


@app.command(
    epilog=examples(
        "cclsearch trace breakdown traces/",
        "cclsearch trace breakdown trial:3 --plot breakdown.svg",
        "cclsearch trace breakdown traces/rank0_trace.json --json",
    )
)
@takes_options
def breakdown(
    *,
    plot: PlotOption = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            "--timeline",
            metavar="FILE.svg",
            callback=chart_file,
            help="Draw the timeline of one step into this file.",
        ),
    ] = None,
    options: TraceOptions,
    as_json: JsonOption = False,
) -> None:
    """Break down the step time of each rank, and explain idle time."""
    found = options.read()
    split = found.evidence.split
    if as_json:
        facts: dict[str, object] = {
            "split_caveats": list(split.caveats) if split else [view.NO_SPLIT],
            **_tables(found, "breakdown", "steps", "idle"),
        }
        _print_json(found, facts)
    else:
        caveats = split.caveats if split else (view.NO_SPLIT,)
        _print_view(found, view.breakdown(found), caveats)
    if plot is None and timeline is None:
        return
    # Imported here, as templates take a while to load.
    from search.traces.plots import breakdown_chart, timeline_chart
    from search.views.html import write_chart

    if plot is not None:
        write_chart(breakdown_chart(split, found.name), found.name, plot)
    if timeline is not None:
        write_chart(timeline_chart(found.traces, found.name), found.name, timeline)


@app.command(
    epilog=examples(
        "cclsearch trace collectives traces/",
        "cclsearch trace collectives traces/ --plot bandwidth.svg",
    )
)
@takes_options
def collectives(
    *,
    plot: PlotOption = None,
    options: TraceOptions,
    as_json: JsonOption = False,
) -> None:
    """List collectives by kind, size and process group, with bandwidths."""
    found = options.read()
    if as_json:
        lacks = found.matches.unmatched()
        unmatched = {lack.name.lower(): count for lack, count in lacks.items()}
        tables = _tables(found, "groups", "collectives", "traffic")
        _print_json(found, {**tables, "unmatched": unmatched})
    else:
        _print_view(found, view.collectives(found), view.matching_caveats(found))
    if plot is not None:
        from search.traces.plots import bandwidth_chart
        from search.views.html import write_chart

        rows = table_rows(found, "collectives")
        write_chart(bandwidth_chart(rows, found.name), found.name, plot)


@app.command("stragglers", epilog=examples("cclsearch trace stragglers traces/"))
@takes_options
def stragglers_command(options: TraceOptions, as_json: JsonOption = False) -> None:
    """Find the rank that the others wait for, and the cost."""
    found = options.read()
    waits, split = found.waits, found.evidence.split
    if as_json:
        unequal = imbalance(split) if split is not None else None
        facts = {
            "straggler": waits.straggler if waits else None,
            "waiting_share": waits.waiting_share if waits else None,
            "exposed_share": waits.exposed_share if waits else None,
            "compute_max_over_min": unequal.max_over_min if unequal else None,
            "compute_max_over_mean": unequal.max_over_mean if unequal else None,
            "waits": table_rows(found, "stragglers"),
        }
        _print_json(found, facts)
        return
    partial = waits.partial_count if waits else 0
    unseen = f"{partial} collectives have ranks without a trace, which may have been later still"
    _print_view(found, view.stragglers(found), [unseen] if partial else [])


@app.command(
    epilog=examples(
        "cclsearch trace kernels traces/ --top 30", "cclsearch trace kernels trial:3 --json"
    )
)
@takes_options
def kernels(
    *,
    top: Annotated[
        int, typer.Option(metavar="N", min=1, help="Rows to print; --json has all.")
    ] = view.MOST_KERNELS,
    options: TraceOptions,
    as_json: JsonOption = False,
) -> None:
    """List the longest kernels, and launch overheads."""
    found = options.read()
    if as_json:
        by_rank = {str(table.rank): kernel_rows(table) for table in found.kernels.by_rank}
        facts = {
            **_tables(found, "kernels"),
            "kernels_by_rank": by_rank,
            **_tables(found, "launches", "queues"),
        }
        _print_json(found, facts)
    else:
        _print_view(found, view.kernels(found, top))


@app.command(
    "operators",
    epilog=examples(
        "cclsearch trace operators traces/", "cclsearch trace operators trial:3 --json"
    ),
)
@takes_options
def operators_command(
    *,
    top: Annotated[
        int, typer.Option(metavar="N", min=1, help="Rows of each table to print; --json has all.")
    ] = view.MOST_OPERATORS,
    options: TraceOptions,
    as_json: JsonOption = False,
) -> None:
    """Show which phases, operators, modules and ranges take the time."""
    found = options.read()
    if as_json:
        _print_json(found, _tables(found, "phases", "operators", "modules", "ranges"))
    else:
        _print_view(found, view.operators(found, top))


@app.command(
    epilog=examples(
        "cclsearch trace diff before/ after/", "cclsearch trace diff trial:0 trial:7 --json"
    )
)
def diff(
    before: TraceArgument,
    after: TraceArgument,
    top: Annotated[
        int, typer.Option(metavar="N", min=1, help="Rows to print; --json has all.")
    ] = 10,
    no_cache: NoCacheOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the traces of two jobs by effect on the step time."""
    from search.traces.open import open_traces

    jobs = [open_traces(name, store, use_cache=not no_cache) for name in (before, after)]
    found = difference(jobs[0].traces, jobs[1].traces)
    if found is None:
        raise StudyError(view.NOT_COMPARABLE)
    if as_json:
        heads = {"before": head_facts(jobs[0]), "after": head_facts(jobs[1])}
        typer.echo(json.dumps({**heads, **_facts(found)}))
        return
    for job in jobs:
        print_head(job)
    typer.echo("per step and rank, at the mean")
    for blocks in view.changes(found, top):
        typer.echo("")
        print_blocks(blocks)
    print_caveats(*(caveat for job in jobs for caveat in trace_caveats(job.traces)))


@app.command(epilog=examples("cclsearch trace report traces/ --to report.html"))
@takes_options
def report(
    to: Annotated[Path, typer.Option(metavar="FILE.html", help="Output file.")],
    options: TraceOptions,
) -> None:
    """Write all tables, metrics and plots to one self-contained HTML file."""
    from search.views.html import write_html

    write_html(view.trace_report(options.read()), to)
    typer.echo(f"written: {to}")


@app.command(
    epilog=examples(
        "cclsearch trace merge traces/ -o merged.json.gz",
        "cclsearch trace merge trial:3 -o merged.json.gz",
    )
)
@takes_options
def merge(
    *,
    to: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE.json.gz", help="Output file, .json[.gz]."),
    ],
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file given by -o.")] = False,
    options: TraceOptions,
    as_json: JsonOption = False,
) -> None:
    """Merge the traces of all ranks into one Chrome trace for Perfetto, on one clock.

    Each rank is a process with its streams and threads; open the file in ui.perfetto.dev.
    """
    _is_packed(to)
    found = options.read()
    done = _write_merged(found, to, (), force=force)
    if as_json:
        facts = {"path": str(to), "size_bytes": to.stat().st_size, **asdict(done)}
        typer.echo(json.dumps({**head_facts(found), **facts}))
        return
    ranks, events = format_count(done.rank_count, "rank"), format_count(done.event_count, "event")
    typer.echo(f"written: {to}, {ranks}, {events}, {format_decimal_bytes(to.stat().st_size)}")
    typer.echo(done.clocks)
    lost = format_count(done.left_out, "event")
    left_out = [f"{lost} without a time, or damaged, left out"] if done.left_out else []
    print_caveats(*left_out, *found.traces.caveats)
    typer.echo("next: open it in ui.perfetto.dev, or in a Perfetto of your own without internet")


@app.command(
    epilog=examples(
        "cclsearch trace chakra traces/ -o chakra/", "cclsearch trace chakra trial:3 -o chakra/"
    )
)
@takes_options
def chakra(
    *,
    to: Annotated[
        Path, typer.Option("-o", "--output", metavar="FOLDER", help="Folder to write into.")
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Replace the traces in the folder given by -o.")
    ] = False,
    options: TraceOptions,
    as_json: JsonOption = False,
) -> None:
    """Convert to Chakra execution traces, as simulators such as ASTRA-sim read them.

    FOLDER gets chakra.RANK.et for each rank: the graph that `trace whatif` replays.
    """
    from search.traces import whatif as views
    from search.traces.chakra import write_chakra
    from search.transfer.export import replaced

    found = options.read()
    replayed = views.checked_replay(found)
    with replaced(to, force=force, mark=f"chakra.{found.traces.ranks[0].rank}.et") as draft:
        done = write_chakra(replayed, draft)
    if as_json:
        typer.echo(json.dumps({**head_facts(found), "path": str(to), **asdict(done)}))
        return
    ranks, nodes = format_count(done.rank_count, "rank"), format_count(done.node_count, "node")
    typer.echo(f"written: {to}, {ranks}, {nodes}")
    fixed = (
        f"{done.fixed_count} of {done.communication_count} pieces of communication keep their "
        "recorded duration, as their size or their ranks are not known"
    )
    print_caveats(*([fixed] if done.fixed_count else []), *trace_caveats(found.traces))


_Factors = Annotated[
    list[str] | None,
    typer.Option(
        "--scale",
        metavar="NAME=K",
        help="Speed times K: of scale_up, scale_out, communication, a kind of collective such as "
        "all_reduce, compute, copies, or kernels with NAME in their name. Repeatable.",
    ),
]


@app.command(
    epilog=examples(
        "cclsearch trace whatif traces/",
        "cclsearch trace whatif traces/ --scale scale_out=2 --ranks-per-node 8",
        "cclsearch trace whatif traces/ --nodes 64 --ranks-per-node 8",
        "cclsearch trace whatif trial:3 --scale all_gather=4 --no-straggler --json",
    )
)
@takes_options
def whatif(
    *,
    scale: _Factors = None,
    latency: Annotated[
        list[str] | None,
        typer.Option(
            "--latency",
            metavar="NAME=K",
            help="Latency times K: of a tier or kind of collective, as in --scale. Repeatable.",
        ),
    ] = None,
    slow: Annotated[
        list[str] | None,
        typer.Option(
            "--slow", metavar="RANK=K", help="The kernels of a rank take K times as long."
        ),
    ] = None,
    no_straggler: Annotated[
        bool,
        typer.Option("--no-straggler", help="Kernels take as long as on the median rank."),
    ] = False,
    domain: Annotated[
        int | None,
        typer.Option("--domain", metavar="N", min=1, help="Nodes hold N ranks each instead."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            metavar="N",
            min=1,
            help="On N nodes, with the same work for each rank: more data-parallel replicas.",
        ),
    ] = None,
    ranks_per_node: Annotated[
        int | None,
        typer.Option(
            "--ranks-per-node",
            metavar="N",
            min=1,
            help="How many ranks a node held; known for traces of a trial.",
        ),
    ] = None,
    options: TraceOptions,
    as_json: JsonOption = False,
) -> None:
    """Predict the step time on another machine by replaying the traces.

    Without a change, list what the usual ones would bring. There is no answer where the unchanged
    replay of any step is more than 1 % off what was measured.
    """
    from search.traces import whatif as views

    asked = views.read_question(
        scale or (),
        latency or (),
        slow or (),
        no_straggler=no_straggler,
        domain=domain,
        nodes=nodes,
    )
    found = options.read()
    replayed = views.open_whatif(found, ranks_per_node)
    questions = {views.question_words(asked): asked} if asked else views.usual_questions(replayed)
    answers = {words: views.answered(replayed, each) for words, each in questions.items()}
    if as_json:
        _print_json(found, views.whatif_facts(replayed, answers))
    else:
        _print_view(found, views.whatif_blocks(replayed, answers), views.whatif_caveats(replayed))


@app.command(
    "critical-path",
    epilog=examples(
        "cclsearch trace critical-path traces/",
        "cclsearch trace critical-path traces/ -o path.json.gz",
    ),
)
@takes_options
def critical_path_command(
    *,
    to: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE.json.gz",
            help="Merge all ranks into this Chrome trace, with the path above them, for Perfetto.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file given by -o.")] = False,
    options: TraceOptions,
    as_json: JsonOption = False,
) -> None:
    """Show the critical path through all ranks: what would have to be faster."""
    from search.traces import whatif as views

    if to is not None:
        _is_packed(to)
    found = options.read()
    replayed = views.checked_replay(found)
    path = replayed.path
    if as_json:
        _print_json(found, views.path_facts(replayed, path))
    else:
        _print_view(found, views.path_blocks(replayed, path), views.whatif_caveats(replayed))
    if to is not None:
        done = _write_merged(found, to, views.overlay(replayed, path), force=force)
        typer.echo(f"written: {to}, {format_count(done.event_count, 'event')}", err=as_json)


def _is_packed(to: Path) -> bool:
    """Return whether a Chrome trace of this name is packed; raise StudyError for another name."""
    is_packed = to.name.lower().endswith(".json.gz")
    if not is_packed and to.suffix.lower() != ".json":
        raise StudyError(f"{to}: a Chrome trace is a .json or .json.gz file; name it so with -o")
    return is_packed


def _write_merged(
    found: OpenTraces, to: Path, overlay: Sequence["OverlaySpan"], *, force: bool
) -> "MergedTrace":
    """Write all ranks into one Chrome trace; progress goes to the terminal."""
    from evaluator.traces.readers.files import LARGE_LIMITS
    from search.traces.merge import write_merged
    from search.transfer.export import replaced
    from search.views.console import progress_bar

    if to.resolve() in {path.resolve() for path in found.traces.files}:
        raise StudyError(f"{to} is one of the traces to be merged; give another with -o")
    with replaced(to, force=force) as draft, progress_bar("writing") as update:
        return write_merged(
            found.traces,
            draft,
            LARGE_LIMITS,
            packed=_is_packed(to),
            on_rank=update,
            overlay=overlay,
        )


def _tables(found: OpenTraces, *names: str) -> dict[str, object]:
    return {name: table_rows(found, name) for name in names}


def _print_json(found: OpenTraces, facts: Mapping[str, object]) -> None:
    typer.echo(json.dumps({**head_facts(found), **facts}))


def _print_view(found: OpenTraces, blocks: Sequence[Block], caveats: Iterable[str] = ()) -> None:
    print_head(found)
    print_blocks(blocks)
    print_caveats(*caveats)
    print_caveats(*trace_caveats(found.traces))


def head_facts(found: OpenTraces) -> dict[str, object]:
    """Return a summary of the traces for JSON."""
    traces, aligned = found.traces, None
    if traces.alignment is not None:
        residual_s = traces.alignment.residual_ns / 1e9
        aligned = {"residual_s": residual_s, "matched_count": traces.alignment.matched_count}
    return {
        "trace": found.name,
        "world_size": traces.world_size,
        "missing_ranks": list(traces.missing_ranks),
        "alignment": aligned,
        "caveats": list(traces.caveats),
        "ranks": table_rows(found, "ranks"),
    }


def print_head(found: OpenTraces) -> None:
    """Print a summary of the traces."""
    typer.echo(one_line(found.name, CAVEAT_CHARS))
    typer.echo(one_line("; ".join(_head_parts(found)), CAVEAT_CHARS))


def print_caveats(*caveats: str) -> None:
    """Print the caveats of the numbers."""
    distinct = list(dict.fromkeys(caveats))
    for caveat in distinct[:MOST_CAVEATS]:
        typer.echo(f"caveat: {one_line(caveat, CAVEAT_CHARS)}")
    if len(distinct) > MOST_CAVEATS:
        typer.echo(f"caveat: {len(distinct) - MOST_CAVEATS} more; --json has all")


def trace_caveats(traces: TraceSet) -> tuple[str, ...]:
    """Return the caveats of the traces, including clock alignment."""
    alignment = traces.alignment
    if alignment is None or not alignment.residual_ns:
        return traces.caveats
    words = (
        f"aligned clocks still differ by {format_duration(alignment.residual_ns / 1e9)} at the "
        f"median over {alignment.matched_count} collectives"
    )
    return (*traces.caveats, words)


def _head_parts(found: OpenTraces) -> Sequence[str]:
    traces, split = found.traces, found.evidence.split
    count = len(traces.ranks)
    of_all = f" of {traces.world_size}" if traces.world_size not in {None, count} else ""
    devices = dict.fromkeys(trace.device.name for trace in traces.ranks if trace.device)
    formats = dict.fromkeys(trace.source for trace in traces.ranks)
    return (
        f"{count}{of_all} rank{'s' if count > 1 or of_all else ''}",
        ", ".join(name or "an unnamed device" for name in devices) or "no accelerator",
        ", ".join(formats),
        _steps_words(split),
    )


def _steps_words(split: JobSplit | None) -> str:
    if split is None:
        return "no step in common"
    numbers = split.step_numbers
    if not numbers:
        return "no step marked"
    which = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    return f"{format_count(len(numbers), 'step')} ({which})"


def _facts(found: JobDifference) -> dict[str, object]:
    return {
        name: [{**asdict(each), "change_s": each.change_s} for each in getattr(found, name)]
        for name in ("parts", "kernels", "collectives")
    }
