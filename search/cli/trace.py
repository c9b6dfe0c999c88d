"""`trace breakdown|collectives|stragglers|kernels|diff|report`: analysis of traces."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from evaluator.traces.analysis.breakdown import JobSplit, StepSplit
from evaluator.traces.analysis.collectives import Matches
from evaluator.traces.analysis.difference import JobDifference, PartChange, TimeTaken, difference
from evaluator.traces.analysis.kernels import IdleCauses, JobLaunches, KernelRow
from evaluator.traces.analysis.stragglers import Imbalance, Stragglers, imbalance, stragglers
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
from search.traces.open import OpenTraces
from search.traces.tables import (
    Row,
    breakdown_rows,
    collective_rows,
    group_rows,
    idle_rows,
    kernel_rows,
    launch_rows,
    queue_rows,
    rank_rows,
    step_rows,
    traffic_rows,
    wait_rows,
)
from search.views.format import (
    ABSENT,
    format_bandwidth,
    format_decimal_bytes,
    format_duration,
    format_number,
    format_percent,
    format_time_change,
    one_line,
)
from search.views.svg import chart_file
from search.views.terminal import TerminalColumn, echo_wrapped, number_column, print_table

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Analyse traces: where the time of a step went, and why.",
)

CAVEAT_CHARS = 300
MOST_CAVEATS, MOST_RANKS, MOST_SIZES = 8, 16, 16
BAR_CELLS = 12
NO_SPLIT = "no step was profiled on every traced rank, so there is no breakdown"
NONE_MATCHED = "no collective could be matched across ranks, so ranks cannot be compared"
NOT_COMPARABLE = "one of the two has no step that was profiled on every rank; nothing to compare"


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
    split, causes = found.evidence.split, found.evidence.idle
    if as_json:
        tables = {
            "breakdown": breakdown_rows(split),
            "steps": step_rows(found.traces, split),
            "idle": idle_rows(causes, marked=bool(found.traces.common_steps.size)),
        }
        split_caveats = list(split.caveats) if split else [NO_SPLIT]
        typer.echo(json.dumps({**head_facts(found), "split_caveats": split_caveats, **tables}))
    else:
        print_head(found)
        if split is not None:
            _print_parts(split)
            for line in (*_sum_words(split.mean), *_idle_words(causes)):
                echo_wrapped(line)
        print_caveats(*(split.caveats if split else (NO_SPLIT,)), *trace_caveats(found.traces))
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
    traces = found.traces
    matches = found.matches
    instances = collective_rows(traces, matches)
    traffic = traffic_rows(found.evidence.volume, matches)
    if as_json:
        unmatched = {lack.name.lower(): count for lack, count in matches.unmatched().items()}
        facts = {
            "groups": group_rows(matches),
            "collectives": instances,
            "traffic": traffic,
            "unmatched": unmatched,
        }
        typer.echo(json.dumps({**head_facts(found), **facts}))
    else:
        print_head(found)
        _print_sizes(instances)
        _print_traffic(traffic)
        print_caveats(*_unmatched_words(matches), *_partial_words(instances))
        print_caveats(*trace_caveats(traces))
    if plot is not None:
        from search.traces.plots import bandwidth_chart
        from search.views.html import write_chart

        write_chart(bandwidth_chart(instances, found.name), found.name, plot)


@app.command("stragglers", epilog=examples("cclsearch trace stragglers traces/"))
@takes_options
def stragglers_command(options: TraceOptions, as_json: JsonOption = False) -> None:
    """Find the rank that the others wait for, and the cost."""
    found = options.read()
    traces, split = found.traces, found.evidence.split
    waits = stragglers(traces, found.matches)
    unequal = imbalance(split) if split is not None else None
    rows = wait_rows(waits, split)
    if as_json:
        facts = {
            "straggler": waits.straggler if waits else None,
            "waiting_share": waits.waiting_share if waits else None,
            "exposed_share": waits.exposed_share if waits else None,
            "compute_max_over_min": unequal.max_over_min if unequal else None,
            "compute_max_over_mean": unequal.max_over_mean if unequal else None,
            "waits": rows,
        }
        typer.echo(json.dumps({**head_facts(found), **facts}))
        return
    print_head(found)
    if waits is None:
        typer.echo(NONE_MATCHED)
    else:
        _print_waits(rows)
        echo_wrapped(_verdict(waits))
    if unequal is not None:
        typer.echo(_imbalance_words(unequal))
    partial = waits.partial_count if waits else 0
    unseen = f"{partial} collectives have ranks without a trace, which may have been later still"
    print_caveats(*([unseen] if partial else []), *trace_caveats(traces))


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
    ] = 15,
    options: TraceOptions,
    as_json: JsonOption = False,
) -> None:
    """List the longest kernels, and launch overheads."""
    found = options.read()
    tables, launches = found.kernels, found.evidence.launches
    if as_json:
        facts = {
            "kernels": kernel_rows(tables.job),
            "kernels_by_rank": {str(table.rank): kernel_rows(table) for table in tables.by_rank},
            "launches": launch_rows(launches),
            "queues": queue_rows(found.traces),
        }
        typer.echo(json.dumps({**head_facts(found), **facts}))
        return
    print_head(found)
    _print_kernel_table(tables.job.rows[:top])
    left_out = len(tables.job.rows) - top
    if left_out > 0:
        rest = sum(row.share for row in tables.job.rows[top:])
        typer.echo(f"{left_out} more names with {format_percent(rest)} of the time; --json has all")
    for line in _launch_words(launches):
        typer.echo(line)
    print_caveats(*trace_caveats(found.traces))


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
        raise StudyError(NOT_COMPARABLE)
    if as_json:
        heads = {"before": head_facts(jobs[0]), "after": head_facts(jobs[1])}
        typer.echo(json.dumps({**heads, **_facts(found)}))
        return
    for job in jobs:
        print_head(job)
    typer.echo("per step and rank, at the mean")
    _print_changes("part", found.parts, len(found.parts))
    _print_changes("kernel", found.kernels, top)
    _print_changes("collective, with waiting", found.collectives, top)
    print_caveats(*(caveat for job in jobs for caveat in trace_caveats(job.traces)))


@app.command(epilog=examples("cclsearch trace report traces/ --to report.html"))
@takes_options
def report(
    to: Annotated[Path, typer.Option(metavar="FILE.html", help="Output file.")],
    options: TraceOptions,
) -> None:
    """Write all tables, metrics and plots to one self-contained HTML file."""
    from search.traces.report import write_report

    write_report(options.read(), to)
    typer.echo(f"written: {to}")


def head_facts(found: OpenTraces) -> dict[str, object]:
    """Return a summary of the traces for JSON."""
    traces = found.traces
    alignment = traces.alignment
    return {
        "trace": found.name,
        "world_size": traces.world_size,
        "missing_ranks": list(traces.missing_ranks),
        "alignment": None
        if alignment is None
        else {
            "residual_s": alignment.residual_ns / 1e9,
            "matched_count": alignment.matched_count,
        },
        "caveats": list(traces.caveats),
        "ranks": rank_rows(traces),
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
    return f"{len(numbers)} step{'s' if len(numbers) > 1 else ''} ({which})"


def _print_parts(split: JobSplit) -> None:
    shown = split.by_rank[:MOST_RANKS]
    means = [mean for _, mean in shown] + [split.mean]
    left_out = len(split.by_rank) - len(shown)
    print_table(
        number_column("rank", [*(str(rank) for rank, _ in shown), "mean"]),
        number_column(
            "step" if split.step_numbers else "work", [format_duration(x.window_s) for x in means]
        ),
        number_column("compute", [_part(x.compute_s, x) for x in means]),
        number_column("exposed", [_part(x.exposed_communication_s, x) for x in means]),
        number_column("copies", [_part(x.exposed_copy_s, x) for x in means]),
        number_column("fills", [_part(x.fill_s, x) for x in means]),
        number_column("idle", [_part(x.idle_s, x) for x in means]),
        number_column("hidden", [_part(x.hidden_communication_s, x) for x in means]),
        TerminalColumn(heading="█ ▒ ·", cells=[bar(x) for x in means]),
    )
    if left_out:
        typer.echo(f"{left_out} more ranks are in the mean; --json has all")


def bar(split: StepSplit) -> str:
    """Return a bar of compute, exposed communication and the rest of a step."""
    if not split.window_s:
        return ""
    compute = round(BAR_CELLS * split.compute_s / split.window_s)
    busy_s = split.compute_s + split.exposed_communication_s
    busy = round(BAR_CELLS * busy_s / split.window_s)
    return "█" * compute + "▒" * (busy - compute) + "·" * (BAR_CELLS - busy)


def _part(part_s: float, of: StepSplit) -> str:
    return format_percent(part_s / of.window_s if of.window_s else None)


def _sum_words(mean: StepSplit) -> Iterator[str]:
    """Yield the sum of the parts of a step, and what overlaps."""
    parts = (
        ("compute", mean.compute_s),
        ("exposed", mean.exposed_communication_s),
        ("copies", mean.exposed_copy_s),
        ("fills", mean.fill_s),
        ("idle", mean.idle_s),
    )
    added = " + ".join(f"{format_number(part_s * 1e3)} {name}" for name, part_s in parts if part_s)
    yield f"ms:     {format_number(mean.window_s * 1e3)} = {added or 0}"
    yield f"hidden: {format_duration(mean.hidden_communication_s)} of communication behind compute"
    if mean.pipeline_bubble_s is not None:
        bubble = format_duration(mean.pipeline_bubble_s)
        yield f"bubble: {bubble} of exposed communication waits for a neighbour"


def _idle_words(causes: tuple[IdleCauses, ...] | None) -> Iterator[str]:
    """Yield why devices were idle, over all ranks and steps."""
    total_ns = sum(int(each.idle_ns.sum()) for each in causes or ())
    if causes is None or not total_ns:
        return
    named = (
        ("nothing was launched", [each.host_wait_ns for each in causes]),
        ("the host synchronised", [each.sync_ns for each in causes]),
        ("launched work waited", [each.kernel_wait_ns for each in causes]),
        ("unknown", [each.other_ns for each in causes]),
    )
    shares = ((name, sum(int(part.sum()) for part in parts) / total_ns) for name, parts in named)
    yield "idle:   " + ", ".join(f"{name} {format_percent(part)}" for name, part in shares if part)


def _print_kernel_table(rows: tuple[KernelRow, ...]) -> None:
    print_table(
        number_column("share", [format_percent(row.share) for row in rows]),
        number_column("total", [format_duration(row.total_s) for row in rows]),
        number_column("count", [str(row.count) for row in rows]),
        number_column("mean", [format_duration(row.mean_s) for row in rows]),
        TerminalColumn(heading="what", cells=[row.activity.name.lower()[:4] for row in rows]),
        TerminalColumn(
            heading="name", cells=[row.name.removeprefix("void ") for row in rows], yielding=True
        ),
    )


def _launch_words(launches: JobLaunches | None) -> Iterator[str]:
    if launches is None:
        return
    job = launches.job
    per_step = f", {job.launches_per_step:.0f} per step" if job.launches_per_step else ""
    median_s, p90_s = format_duration(job.delay_median_s), format_duration(job.delay_p90_s)
    yield f"launches: {job.launch_count}{per_step}, {format_duration(job.call_median_s)} each"
    yield f"work starts {median_s} after its launch, 90 % within {p90_s}"
    if job.short_kernel_share is not None:
        yield f"kernels shorter than 10 us: {format_percent(job.short_kernel_share)}"


def _print_sizes(instances: Sequence[Row]) -> None:
    """Print a line for each kind, group and size, by total time."""
    if not instances:
        typer.echo("no collective that can be matched across ranks")
        return
    alike: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in instances:
        alike[row["kind"], row["group_id"], row["bytes"]].append(row)
    groups = sorted(alike.values(), key=lambda rows: -sum(_floats(rows, "time_s")))
    shown = groups[:MOST_SIZES]
    print_table(
        TerminalColumn(heading="collective", cells=[str(rows[0]["kind"]) for rows in shown]),
        number_column("ranks", [str(rows[0]["group_size"] or ABSENT) for rows in shown]),
        number_column("size", [format_decimal_bytes(_number(rows[0]["bytes"])) for rows in shown]),
        number_column("count", [str(len(rows)) for rows in shown]),
        number_column("time", [format_duration(median(_floats(rows, "time_s"))) for rows in shown]),
        number_column("on the bus", [_speed(rows) for rows in shown]),
        number_column("waited", [format_duration(_mean_wait(rows)) for rows in shown]),
        TerminalColumn(
            heading="group", cells=[str(rows[0]["group"]) for rows in shown], yielding=True
        ),
    )
    if len(groups) > len(shown):
        typer.echo(f"{len(groups) - len(shown)} more kinds and sizes; --json has all")
    typer.echo("time and bandwidth are medians without waiting; waited is per call and rank")


def _mean_wait(rows: Sequence[Row]) -> float | None:
    """Return the wait per call; None if each call is in one rank's trace only."""
    shown = [row for row in rows if row["last_rank"] is not None]
    return sum(_floats(shown, "wait_s")) / sum(_floats(shown, "shown_count")) if shown else None


def _speed(rows: Sequence[Row]) -> str:
    """Return the median; a lower bound if the last rank may have no trace."""
    speeds = _floats(rows, "bus_bytes_per_s")
    if not speeds:
        return ABSENT
    least = "≥ " if any(row["partial"] for row in rows) else ""
    return f"{least}{format_bandwidth(median(speeds))}"


def _print_traffic(traffic: Sequence[Row]) -> None:
    for row in traffic[:MOST_SIZES]:
        count, moved = row["calls_per_step"], _number(row["bytes_per_step"])
        amount = format_decimal_bytes(moved) if moved is not None else "an unknown number of bytes"
        group = row["group"] or "an unnamed group"
        typer.echo(f"per step and rank: {amount} in {count:.4g} {row['kind']} of {group}")


def _unmatched_words(matches: Matches) -> Iterator[str]:
    lacks = matches.unmatched()
    if lacks:
        reasons = ", ".join(f"{count} {lack.words}" for lack, count in lacks.items())
        yield f"{sum(lacks.values())} calls have no match on another rank: {reasons}"


def _partial_words(instances: Sequence[Row]) -> Iterator[str]:
    partial = sum(bool(row["partial"]) for row in instances)
    if partial:
        yield (
            f"{partial} of {len(instances)} collectives are not shown by all of their ranks: times "
            "may include waiting, bandwidths are lower bounds"
        )


def _print_waits(rows: Sequence[Row]) -> None:
    shown = sorted(rows, key=lambda row: -(_number(row["caused_wait_s"]) or 0))[:MOST_RANKS]
    print_table(
        number_column("rank", [str(row["rank"]) for row in shown]),
        number_column(
            "others waited", [format_duration(_number(row["caused_wait_s"])) for row in shown]
        ),
        number_column("it waited", [format_duration(_number(row["waited_s"])) for row in shown]),
        number_column("came last", [format_percent(_number(row["last_share"])) for row in shown]),
        number_column("by chance", [format_percent(_number(row["chance_share"])) for row in shown]),
        number_column("computes", [format_duration(_number(row["compute_s"])) for row in shown]),
    )
    if len(rows) > len(shown):
        typer.echo(f"{len(rows) - len(shown)} more ranks with less waiting")
    typer.echo("per step; waits in concurrent collectives add up")


def _verdict(waits: Stragglers) -> str:
    if waits.straggler is None:
        return "no rank waited for another"
    exposed, waiting = format_percent(waits.exposed_share), format_percent(waits.waiting_share)
    return (
        f"straggler: rank {waits.straggler}; the others wait for it {waiting} of their steps, "
        f"{exposed} exposed"
    )


def _imbalance_words(unequal: Imbalance) -> str:
    return (
        f"compute: rank {unequal.busiest} takes {unequal.max_over_min:.3f} times the quickest "
        f"rank's time, {unequal.max_over_mean:.3f} times the mean"
    )


def _floats(rows: Sequence[Row], name: str) -> list[float]:
    values = (_number(row[name]) for row in rows)
    return [value for value in values if value is not None]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _facts(found: JobDifference) -> dict[str, object]:
    sections = {
        "parts": found.parts,
        "kernels": found.kernels,
        "collectives": found.collectives,
    }
    return {
        name: [{**asdict(each), "change_s": each.change_s} for each in changes]
        for name, changes in sections.items()
    }


def _print_changes(heading: str, changes: Sequence[PartChange], top: int) -> None:
    moved = [each for each in changes if each.change_s] or changes[:1]
    shown = moved[:top]
    if not shown:
        return
    typer.echo("")
    print_table(
        number_column("change", [format_time_change(each.change_s) for each in shown]),
        number_column("before", [_taken(each.before) for each in shown]),
        number_column("after", [_taken(each.after) for each in shown]),
        *(
            [number_column("count", [_counts(each) for each in shown])]
            if any(each.before and each.before.count is not None for each in shown)
            else []
        ),
        TerminalColumn(
            heading=heading,
            cells=[
                each.name.replace("_", " ") if heading == "part" else each.name for each in shown
            ],
            yielding=True,
        ),
    )
    if len(moved) > len(shown):
        rest = sum(each.change_s for each in moved[top:])
        typer.echo(f"{format_time_change(rest)} by {len(moved) - len(shown)} more; --json has all")


def _taken(taken: TimeTaken | None) -> str:
    return ABSENT if taken is None else format_duration(taken.time_s)


def _counts(each: PartChange) -> str:
    """Return the counts before and after, or one if equal."""
    counts = [
        ABSENT if taken is None or taken.count is None else format_number(taken.count)
        for taken in (each.before, each.after)
    ]
    return counts[0] if counts[0] == counts[1] else " > ".join(counts)
