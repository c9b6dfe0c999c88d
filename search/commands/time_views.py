"""Prints where time went: the parts of steps, causes of idling, kernels and launches."""

import json
from pathlib import Path

import typer

from evaluator.analysis.breakdown import JobSplit, StepSplit
from evaluator.analysis.idle import IdleCauses
from evaluator.analysis.kernels import KernelRow
from evaluator.analysis.launches import JobLaunches
from search.commands.trace_heads import (
    MOST_RANKS,
    head_facts,
    print_caveats,
    print_head,
    trace_caveats,
)
from search.tables import Column, numbers, print_table, print_words
from search.traces.tables import (
    breakdown_rows,
    idle_rows,
    kernel_rows,
    launch_rows,
    queue_rows,
    step_rows,
)
from search.traces.traced import Traced
from search.words.quantities import duration, share
from search.words.trial import number

BAR_CELLS = 12
NO_SPLIT = "no step was profiled on every traced rank, so there is no breakdown"


def print_breakdown(
    found: Traced, plot: Path | None, timeline: Path | None, *, as_json: bool
) -> None:
    """Print where the steps of each rank went, and draw it if asked."""
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
                print_words(line)
        print_caveats(*(split.caveats if split else (NO_SPLIT,)), *trace_caveats(found.traces))
    if plot is not None or timeline is not None:
        # Imported here: matplotlib takes a second, and only drawing needs it.
        from search.traces.plots import breakdown_figure, save, timeline_figure

        if plot is not None:
            save(breakdown_figure(split, found.name), plot)
        if timeline is not None:
            save(timeline_figure(found.traces, found.name), timeline)


def _print_parts(split: JobSplit) -> None:
    shown = split.by_rank[:MOST_RANKS]
    means = [mean for _, mean in shown] + [split.mean]
    left_out = len(split.by_rank) - len(shown)
    print_table(
        numbers("rank", [*(str(rank) for rank, _ in shown), "mean"]),
        numbers("step" if split.step_numbers else "work", [duration(x.window_s) for x in means]),
        numbers("compute", [_part(x.compute_s, x) for x in means]),
        numbers("exposed", [_part(x.exposed_communication_s, x) for x in means]),
        numbers("copies", [_part(x.exposed_copy_s, x) for x in means]),
        numbers("fills", [_part(x.fill_s, x) for x in means]),
        numbers("idle", [_part(x.idle_s, x) for x in means]),
        numbers("hidden", [_part(x.hidden_communication_s, x) for x in means]),
        Column(heading="█ ▒ ·", cells=[bar(x) for x in means]),
    )
    if left_out:
        typer.echo(f"{left_out} more ranks are in the mean; --json has all")


def bar(split: StepSplit) -> str:
    """Compute, exposed communication, and the rest of a step as blocks."""
    if not split.window_s:
        return ""
    compute = round(BAR_CELLS * split.compute_s / split.window_s)
    busy_s = split.compute_s + split.exposed_communication_s
    busy = round(BAR_CELLS * busy_s / split.window_s)
    return "█" * compute + "▒" * (busy - compute) + "·" * (BAR_CELLS - busy)


def _part(part_s: float, of: StepSplit) -> str:
    return share(part_s / of.window_s if of.window_s else None)


def _sum_words(mean: StepSplit) -> list[str]:
    """The identity that every step keeps, and what lies within its parts."""
    parts = (
        ("compute", mean.compute_s),
        ("exposed", mean.exposed_communication_s),
        ("copies", mean.exposed_copy_s),
        ("fills", mean.fill_s),
        ("idle", mean.idle_s),
    )
    added = " + ".join(f"{number(part_s * 1e3)} {name}" for name, part_s in parts if part_s)
    lines = [f"ms:     {number(mean.window_s * 1e3)} = {added or 0}"]
    lines.append(f"hidden: {duration(mean.hidden_communication_s)} of communication behind compute")
    if mean.pipeline_bubble_s is not None:
        bubble = duration(mean.pipeline_bubble_s)
        lines.append(f"bubble: {bubble} of exposed communication waits for a neighbour")
    return lines


def _idle_words(causes: tuple[IdleCauses, ...] | None) -> list[str]:
    """Why devices were idle, over all ranks and steps."""
    if causes is None:
        return []
    total_ns = sum(int(each.idle_ns.sum()) for each in causes)
    if not total_ns:
        return []
    named = (
        ("nothing was launched", [each.host_wait_ns for each in causes]),
        ("the host synchronised", [each.sync_ns for each in causes]),
        ("launched work waited", [each.kernel_wait_ns for each in causes]),
        ("untold", [each.other_ns for each in causes]),
    )
    shares = ((name, sum(int(part.sum()) for part in parts) / total_ns) for name, parts in named)
    return ["idle:   " + ", ".join(f"{name} {share(part)}" for name, part in shares if part)]


def print_kernels(found: Traced, top: int, *, as_json: bool) -> None:
    """Print the kernels that take longest, over all ranks, and how they are launched."""
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
        typer.echo(f"{left_out} more names with {share(rest)} of the time; --json has all")
    for line in _launch_words(launches):
        typer.echo(line)
    print_caveats(*trace_caveats(found.traces))


def _print_kernel_table(rows: tuple[KernelRow, ...]) -> None:
    print_table(
        numbers("share", [share(row.share) for row in rows]),
        numbers("total", [duration(row.total_s) for row in rows]),
        numbers("count", [str(row.count) for row in rows]),
        numbers("mean", [duration(row.mean_s) for row in rows]),
        Column(heading="what", cells=[row.activity.name.lower()[:4] for row in rows]),
        Column(
            heading="name", cells=[row.name.removeprefix("void ") for row in rows], yielding=True
        ),
    )


def _launch_words(launches: JobLaunches | None) -> list[str]:
    if launches is None:
        return []
    job = launches.job
    per_step = f", {job.launches_per_step:.0f} per step" if job.launches_per_step else ""
    lines = [
        f"launches: {job.launch_count}{per_step}, {duration(job.call_median_s)} each",
        f"work starts {duration(job.delay_median_s)} after its launch, 90 % within "
        f"{duration(job.delay_p90_s)}",
    ]
    if job.short_kernel_share is not None:
        lines.append(f"kernels shorter than 10 us: {share(job.short_kernel_share)}")
    return lines
