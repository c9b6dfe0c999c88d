"""Reports of search strategies as tables on a terminal, and as one JSON document."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from search.search_bench.summary import MARKS, Paired, Quartiles, Report, Summary

TABLE_WIDTH = 104
"""In less, cells are cut."""
MARKED = f"% by {'/'.join(str(mark) for mark in MARKS)}"
COLUMNS = ("strategy", "trials", "quartiles", "hits", MARKED, "expected", "launches", "failed")


def print_reports(
    console: Console, reports: Sequence[Report], *, trial_count: int, seed_count: int
) -> None:
    """Print a table for each landscape, one row a strategy."""
    for report in reports:
        console.print(Text(head(report)), soft_wrap=True)
        console.print(_table(report, trial_count, seed_count))
        for line in pair_lines(report):
            console.print(Text(line), soft_wrap=True)
        console.print()
    console.print(Text(_legend(trial_count)), soft_wrap=True)


def head(report: Report) -> str:
    """The landscape in one line: its size, its targets, and what random draws would need."""
    return (
        f"{report.landscape}: {report.size} configurations, {report.measurable_count} measurable, "
        f"{report.target_count} within reach of {report.best:.4g} {report.unit}; "
        f"random draws need {report.random_trials:.1f} on average"
    )


def pair_lines(report: Report) -> list[str]:
    """How the strategies compare with each other, seed by seed."""
    return [
        f"  {summary.strategy} against {pair.against}: {pair_words(pair)}"
        for summary in report.summaries
        for pair in summary.paired
    ]


def pair_words(pair: Paired) -> str:
    """A paired difference with its interval and its p-value."""
    p_value = "no pair differs" if pair.p_value is None else f"p = {pair.p_value:.2g}"
    return f"{pair.mean:+.1f} trials [{pair.low:+.1f}, {pair.high:+.1f}], {p_value}"


def trials_words(value: float | None, trial_count: int) -> str:
    """A number of trials; a miss is more than there were."""
    return f">{trial_count}" if value is None else f"{value:g}"


def _table(report: Report, trial_count: int, seed_count: int) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in (*COLUMNS, "s each"):
        table.add_column(name, justify="left" if name == "strategy" else "right", no_wrap=True)
    for summary in report.summaries:
        table.add_row(*_row(summary, trial_count, seed_count))
    return table


def _row(summary: Summary, trial_count: int, seed_count: int) -> list[str]:
    needed = summary.running_time
    return [
        summary.strategy,
        trials_words(summary.trials.median, trial_count),
        _range(summary.trials, trial_count),
        f"{summary.hit_count}/{seed_count}",
        "/".join(f"{100 * summary.success[mark]:.0f}" for mark in MARKS),
        "never" if needed is None else f"{needed:.1f}",
        f"{summary.launches:.1f}",
        f"{summary.failures:.1f}",
        f"{summary.thinking_s:.2f}",
    ]


def _range(trials: Quartiles, trial_count: int) -> str:
    return f"{trials_words(trials.low, trial_count)}-{trials_words(trials.high, trial_count)}"


def _legend(trial_count: int) -> str:
    return (
        "trials: median number until who leads is within reach; "
        f">{trial_count}: not in {trial_count}.\n"
        "expected: trials to a hit where a search that misses begins again.\n"
        "launches, failed: mean up to the hit, launches with those of races. s each: one proposal."
    )
