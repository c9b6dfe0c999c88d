"""Frees the space of kept files, and prints what goes and what stays."""

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import typer

from records.artifacts import Kept
from records.errors import StudyError
from search.commands.options import store_flag
from search.kept.collecting import Plan, Rules, collect, planned
from search.reading import recorded
from search.terminal import Terminal, on_terminal
from search.words.quantities import size


def free_space(
    rules: Rules, store: Path | None, *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Remove what can go, or only tell it; asks before what a record cites is removed."""
    console = Terminal(stderr=True)
    with recorded(store) as records:
        with console.status("looking through the records"):
            plan = planned(records, rules)
        if plan.traces and not (dry_run or yes) and (as_json or not on_terminal()):
            raise StudyError(
                f"{_trace_words(plan)} would be removed for good; "
                "look at them with --dry-run, or add --yes"
            )
        if not as_json:
            _print_plan(plan)
        asked = bool(plan.traces) and not (dry_run or yes)
        if asked and not typer.confirm("Remove these traces for good?"):
            typer.echo("nothing was removed")
            return
        with console.status("removing"):
            count, freed_bytes = (0, 0) if dry_run else collect(records, plan)
        if as_json:
            typer.echo(json.dumps(_facts(plan, count, freed_bytes)))
            return
        flag = store_flag(records.root)
    if dry_run:
        would = sum(kept.disk_bytes for kept in _going(plan))
        typer.echo(f"{size(would)} would be freed of {size(plan.disk_bytes)}")
    else:
        typer.echo(f"{_count(count, 'file')} removed, {size(freed_bytes)} freed")
        typer.echo(f"next: cclsearch doctor --verify{flag}")


def _going(plan: Plan) -> Iterator[Kept]:
    yield from plan.orphans
    yield from (kept for kept, _ in plan.unfinished)
    yield from (trace.kept for trace in plan.traces)


def _print_plan(plan: Plan) -> None:
    for line in _trace_lines(plan):
        typer.echo(line)
    unfinished = [kept for kept, _ in plan.unfinished]
    for files, what in (
        (plan.orphans, "that no record cites"),
        (unfinished, "that the records know as removed"),
    ):
        if files:
            typer.echo(f"{_count(len(files), 'file')} {what}: {_disk(files)}")
    if plan.traces:
        typer.echo(f"{_trace_words(plan)}: {_disk(trace.kept for trace in plan.traces)}")
    if plan.young:
        typer.echo(
            f"{_count(len(plan.young), 'file')} of the last day, {_disk(plan.young)}, that no "
            "record cites yet: a trial under way may do so, they stay"
        )


def _trace_lines(plan: Plan) -> Iterator[str]:
    """A line for each trial of which traces go."""
    cited = sorted(
        (each.study_id, each.ordinal, each.ended_at or "", trace.kept.disk_bytes)
        for trace in plan.traces
        for each in trace.cited
    )
    for (study_id, ordinal, ended_at), found in groupby(cited, key=lambda each: each[:3]):
        sizes = [disk_bytes for *_, disk_bytes in found]
        yield (
            f"study {study_id}, trial {ordinal} of {ended_at[:10]}: {_count(len(sizes), 'trace')}, "
            f"{size(sum(sizes))}"
        )


def _trace_words(plan: Plan) -> str:
    trials = {(each.study_id, each.ordinal) for trace in plan.traces for each in trace.cited}
    return f"{_count(len(plan.traces), 'trace')} of {_count(len(trials), 'trial')}"


def _count(count: int, of: str) -> str:
    return f"1 {of}" if count == 1 else f"{count} {of}s"


def _disk(files: Iterable[Kept]) -> str:
    return size(sum(kept.disk_bytes for kept in files))


def _facts(plan: Plan, count: int, freed_bytes: int) -> dict[str, object]:
    """The same for programs."""
    return {
        "disk_bytes": plan.disk_bytes,
        "removed": count,
        "freed_bytes": freed_bytes,
        "rule": plan.rules.words if plan.rules.is_any else None,
        "uncited": [str(kept.path) for kept in plan.orphans],
        "uncited_of_the_last_day": [str(kept.path) for kept in plan.young],
        "removed_before": [str(kept.path) for kept, _ in plan.unfinished],
        "traces": [
            {
                "study_id": each.study_id,
                "trial": each.ordinal,
                "name": each.name,
                "digest": each.digest,
                "disk_bytes": trace.kept.disk_bytes,
                "ended_at": each.ended_at,
            }
            for trace in plan.traces
            for each in trace.cited
        ],
    }
