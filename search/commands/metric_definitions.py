"""Prints what metrics there are and what they mean."""

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import typer

from evaluator.metrics.base import Metric
from evaluator.metrics.from_file import read_metrics_file
from evaluator.metrics.registry import loaded_metrics, metric
from search.metric_facts import definition_facts
from search.tables import PAGE_CELLS, Column, page_cells, print_table

TRACES: Final = frozenset({"kineto", "xla", "nsys"})
LETTERS: Final = {"samples": "T", "kineto": "K", "xla": "X", "nsys": "N", "card": "C"}
NEEDED: Final = {
    "samples": "the timed steps of a trial",
    "kineto": "a trace of PyTorch's profiler",
    "xla": "a trace of XLA",
    "nsys": "a trace of Nsight Systems",
}


def added_metrics(metrics_file: Path | None) -> tuple[Metric, ...]:
    """The metrics of the user's own file, none without one."""
    return () if metrics_file is None else read_metrics_file(metrics_file)


def loaded(added: Sequence[Metric]) -> tuple[list[Metric], dict[str, str]]:
    """Every metric by rising name, and why those that are broken cannot be asked."""
    found, broken = loaded_metrics(added)
    return list(found.values()), broken


def print_list(metrics_file: Path | None, *, as_json: bool) -> None:
    """Print a line for each metric."""
    metrics, broken = loaded(added_metrics(metrics_file))
    if as_json:
        typer.echo(json.dumps([definition_facts(each) for each in metrics]))
        return
    print_table(
        Column(heading="metric", cells=[each.name for each in metrics]),
        Column(heading="v", cells=[str(each.version) for each in metrics]),
        Column(heading="from", cells=[_letters(each) for each in metrics]),
        Column(heading="", cells=["↑" if each.better == "higher" else "↓" for each in metrics]),
        Column(heading="unit", cells=[each.unit for each in metrics]),
        Column(heading="label", cells=[each.label for each in metrics], yielding=True),
    )
    for reason in broken.values():
        typer.echo(reason)
    typer.echo("from: T timed steps, K kineto, X xla, N nsys, C card; ↑ higher is better, ↓ lower")
    typer.echo("next: cclsearch metrics show NAME, or cclsearch metrics compute TRACE")


def print_definitions(names: Sequence[str], metrics_file: Path | None, *, as_json: bool) -> None:
    """Print what each of these metrics means. Raises MetricError for a name that is none."""
    added = added_metrics(metrics_file)
    metrics = [metric(name, added) for name in names]
    if as_json:
        typer.echo(json.dumps([definition_facts(each) for each in metrics]))
    else:
        typer.echo("\n\n".join("\n".join(_lines(each)) for each in metrics))


def _lines(of: Metric) -> list[str]:
    """A metric's definition for people, wrapped to the page."""
    paragraphs = (
        f"{of.name}: {of.label}; {of.unit}, {of.better} is better, version {of.version}",
        of.description,
        f"Needs: {_needs_words(of)}.",
        f"CCL-Bench: {of.differs}" if of.differs else "",
    )
    width = min(page_cells(), PAGE_CELLS)
    return [
        line
        for place, paragraph in enumerate(paragraphs)
        for line in textwrap.wrap(
            paragraph, width, initial_indent="  " if place else "", subsequent_indent="  "
        )
    ]


def _letters(of: Metric) -> str:
    """What a metric can be computed from, a letter each."""
    return "".join(letter for source, letter in LETTERS.items() if source in of.sources)


def _needs_words(of: Metric) -> str:
    sources = sorted(of.sources - {"card"})
    told = ["a trace"] if of.sources >= TRACES else []
    told += [NEEDED[each] for each in sources if not (told and each in TRACES)]
    card = "; and what ran, from a workload card or a trial" if "card" in of.sources else ""
    return f"{' or '.join(told)}{card}"
