"""Prints what changed between the traces of two jobs."""

import json
from collections.abc import Sequence
from dataclasses import asdict

import typer

from evaluator.analysis.difference import Change, Difference, Taken, difference
from records.errors import StudyError
from search.commands.trace_heads import head_facts, print_caveats, print_head, trace_caveats
from search.tables import Column, numbers, print_table
from search.traces.traced import Traced
from search.words.quantities import ABSENT, change, duration
from search.words.trial import number

NOT_COMPARABLE = "of one of the two no step was profiled on every traced rank; nothing to compare"


def print_difference(before: Traced, after: Traced, top: int, *, as_json: bool) -> None:
    """Print changes by their effect on the step. Raises StudyError where a job has no steps."""
    found = difference(before.traces, after.traces)
    if found is None:
        raise StudyError(NOT_COMPARABLE)
    if as_json:
        jobs = {"before": head_facts(before), "after": head_facts(after)}
        typer.echo(json.dumps({**jobs, **_facts(found)}))
        return
    for job in (before, after):
        print_head(job)
    typer.echo("per step and rank, at the mean")
    _print_changes("part", found.parts, len(found.parts))
    _print_changes("kernel", found.kernels, top)
    _print_changes("collective, with waiting", found.collectives, top)
    print_caveats(*trace_caveats(before.traces), *trace_caveats(after.traces))


def _facts(found: Difference) -> dict[str, object]:
    sections = {
        "parts": found.parts,
        "kernels": found.kernels,
        "collectives": found.collectives,
    }
    return {
        name: [{**asdict(each), "change_s": each.change_s} for each in changes]
        for name, changes in sections.items()
    }


def _print_changes(heading: str, changes: Sequence[Change], top: int) -> None:
    moved = [each for each in changes if each.change_s] or changes[:1]
    shown = moved[:top]
    if not shown:
        return
    typer.echo("")
    print_table(
        numbers("change", [change(each.change_s) for each in shown]),
        numbers("before", [_taken(each.before) for each in shown]),
        numbers("after", [_taken(each.after) for each in shown]),
        *(
            [numbers("count", [_counts(each) for each in shown])]
            if any(each.before and each.before.count is not None for each in shown)
            else []
        ),
        Column(
            heading=heading,
            cells=[
                each.name.replace("_", " ") if heading == "part" else each.name for each in shown
            ],
            yielding=True,
        ),
    )
    if len(moved) > len(shown):
        rest = sum(each.change_s for each in moved[top:])
        typer.echo(f"{change(rest)} by {len(moved) - len(shown)} more; --json has all")


def _taken(taken: Taken | None) -> str:
    return ABSENT if taken is None else duration(taken.time_s)


def _counts(each: Change) -> str:
    """How often before and after, once if that is the same."""
    counts = [
        ABSENT if taken is None or taken.count is None else number(taken.count)
        for taken in (each.before, each.after)
    ]
    return counts[0] if counts[0] == counts[1] else " > ".join(counts)
