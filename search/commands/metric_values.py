"""Prints the values of metrics that traces have, and why the others have none."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from evaluator.metrics.base import Metric, MetricError
from evaluator.metrics.compat import CCL_BENCH
from evaluator.metrics.mismatches import mismatches
from evaluator.metrics.registry import Measures, measure_each, metric
from records.errors import StudyError
from records.trial import MetricValue
from search.card_reader import Given
from search.commands.metric_definitions import added_metrics, loaded
from search.commands.trace_heads import head_facts, print_caveats, print_head, trace_caveats
from search.study_file import suggestion
from search.tables import Column, numbers, print_table
from search.traces.source import traced
from search.traces.traced import Traced
from search.words.trial import absences, number

NOTHING_MEASURED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which metrics are to be computed, and from what; all of them where `names` is empty."""

    trace: str
    names: Sequence[str]
    card: Path | None
    given: Given
    metrics_file: Path | None
    as_published: bool
    """As CCL-Bench's toolkit computes them, instead of as here."""
    store: Path | None
    use_cache: bool


def print_values(asked: Asked, *, as_json: bool) -> None:
    """Print each metric's value, or why there is none; leaves with 3 where none has one.

    Raises MetricError for a name that is none, before any trace is read.
    """
    known, broken = _published(asked.names) if asked.as_published else _ours(asked)
    found, unfit, inferences = _with_card(asked)
    measures = measure_each(known, found.evidence)
    values = {value.name: value for value in measures.values}
    if as_json:
        facts = {
            "mismatches": unfit,
            "inferences": inferences,
            "broken": broken,
            "metrics": [_facts(each, measures, values) for each in known],
        }
        typer.echo(json.dumps({**head_facts(found), **facts}, allow_nan=False))
    else:
        print_head(found)
        _print_measures(known, measures, values)
        for line in absences(broken):
            typer.echo(line)
        split = found.evidence.split
        print_caveats(*(f"card: {words}" for words in inferences))
        print_caveats(*(f"{words}; is it the right card?" for words in unfit))
        print_caveats(*(split.caveats if split else ()), *trace_caveats(found.traces))
    if not any(each.name in values for each in known):
        raise typer.Exit(NOTHING_MEASURED)


def _ours(asked: Asked) -> tuple[Sequence[Metric], Mapping[str, str]]:
    """The metrics asked for, and why some of all are broken."""
    added = added_metrics(asked.metrics_file)
    if not asked.names:
        return loaded(added)
    return [metric(name, added) for name in asked.names], {}


def _published(names: Sequence[str]) -> tuple[Sequence[Metric], Mapping[str, str]]:
    """Those of the published toolkit; none is broken."""
    known = {each.name: each for each in CCL_BENCH}
    for name in names:
        if name not in known:
            told = suggestion(name, list(known))
            raise MetricError(f"CCL-Bench's Table 3 has no metric {name!r}; {told}")
    return [known[name] for name in names or known], {}


def _with_card(asked: Asked) -> tuple[Traced, Sequence[str], Sequence[str]]:
    """The traces with what the card says of them, what of that does not fit, and was concluded."""
    if asked.card is None:
        return traced(asked.trace, asked.store, use_cache=asked.use_cache), (), ()
    # Imported here: without a card nothing of it is needed.
    from search.card_file import Card
    from search.card_reader import CardReader

    # First the card: it is small, and reading traces may take minutes.
    reader = CardReader(Card(asked.card), asked.given)
    workload, environment = reader.workload(), reader.stated_environment()
    if len(reader.batch_sizes()) > 1:
        raise StudyError(
            f"{asked.card}: lists several batch sizes; say with --batch-size which one the traces "
            "are of"
        )
    found = traced(asked.trace, asked.store, use_cache=asked.use_cache)
    seen = replace(found.evidence, workload=workload, environment=environment)
    unfit = mismatches(found.traces, workload, environment)
    return replace(found, evidence=seen), unfit, reader.inferences


def _facts(of: Metric, measures: Measures, values: dict[str, MetricValue]) -> dict[str, object]:
    """A value for programs; null with a reason where there is none."""
    value = values.get(of.name)
    return {
        "name": of.name,
        "label": of.label,
        "value": value.value if value else None,
        "unit": of.unit,
        "better": of.better,
        "version": of.version,
        "absent": measures.absent.get(of.name),
    }


def _print_measures(
    known: Sequence[Metric], measures: Measures, values: dict[str, MetricValue]
) -> None:
    told = [values[each.name] for each in known if each.name in values]
    if told:
        print_table(
            Column(heading="metric", cells=[value.name for value in told]),
            numbers("value", [number(value.value) for value in told]),
            Column(heading="unit", cells=[value.unit for value in told]),
            Column(
                heading="what",
                cells=[each.label for each in known if each.name in values],
                yielding=True,
            ),
        )
    for line in absences(measures.absent):
        typer.echo(line)
