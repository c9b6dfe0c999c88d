"""What every command says of traces before and after its own tables."""

from collections.abc import Sequence

import typer

from evaluator.analysis.breakdown import JobSplit
from evaluator.traces.job import TraceSet
from search.traces.tables import rank_rows
from search.traces.traced import Traced
from search.words.quantities import duration
from search.words.trial import one_line

CAVEAT_CHARS = 300
MOST_CAVEATS = 8
MOST_RANKS = 16


def head_facts(found: Traced) -> dict[str, object]:
    """What was read, for programs."""
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


def print_head(found: Traced) -> None:
    """Say what was read."""
    typer.echo(one_line(found.name, CAVEAT_CHARS))
    typer.echo(one_line("; ".join(_head_parts(found)), CAVEAT_CHARS))


def print_caveats(*caveats: str) -> None:
    """Say what to keep in mind about the numbers."""
    told = list(dict.fromkeys(caveats))
    for caveat in told[:MOST_CAVEATS]:
        typer.echo(f"caveat: {one_line(caveat, CAVEAT_CHARS)}")
    if len(told) > MOST_CAVEATS:
        typer.echo(f"caveat: {len(told) - MOST_CAVEATS} more; --json has all")


def trace_caveats(traces: TraceSet) -> tuple[str, ...]:
    """What is wrong with the traces, how well clocks are aligned included."""
    alignment = traces.alignment
    if alignment is None or not alignment.residual_ns:
        return traces.caveats
    words = (
        f"aligned clocks still differ by {duration(alignment.residual_ns / 1e9)} at the median "
        f"over {alignment.matched_count} collectives"
    )
    return (*traces.caveats, words)


def _head_parts(found: Traced) -> Sequence[str]:
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
