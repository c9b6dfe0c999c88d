"""`metrics list|show|compute`: definitions of metrics, and their values for traces and trials."""

import json
import shlex
import textwrap
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from evaluator.metrics.base import TRACES, Metric
from evaluator.metrics.card_mismatches import mismatches
from evaluator.metrics.registry import (
    Definition,
    definitions,
    loaded_metrics,
    measure_each,
    metric,
    read_metrics_file,
)
from records.errors import StudyError
from records.store.rows import StudyRow
from records.store.store import Store
from records.trial import MetricValue
from search.cli.options import (
    BandwidthsOption,
    BatchSizeOption,
    CardOption,
    GpusOption,
    JsonOption,
    MetricsFileOption,
    NoCacheOption,
    StoreOption,
    TraceArgument,
    argument,
    card_given,
    examples,
    option,
    print_result,
    store_flag,
    takes_options,
)
from search.settings import Interrupted, open_store
from search.views.console import progress_bar
from search.views.document import Column, number_column
from search.views.format import absence_lines, format_count, format_number, one_line
from search.views.study import definition_facts
from search.views.terminal import PAGE_CELLS, page_cells, print_table

if TYPE_CHECKING:
    from search.replay.metrics import RecomputedTrial
    from search.traces.open import OpenTraces


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List and define metrics, and compute them from traces.",
)


LETTERS: Final = {"samples": "T", "kineto": "K", "xla": "X", "nsys": "N", "card": "C"}
NEEDED: Final = {
    "samples": "the timed steps of a trial",
    "kineto": "a trace of PyTorch's profiler",
    "xla": "a trace of XLA",
    "nsys": "a trace of Nsight Systems",
}
NOTHING_MEASURED = 3
SHOWN_VALUES = 4
REASON_CHARS = 200


@app.command("list", epilog=examples("cclsearch metrics list", "cclsearch metrics list --json"))
def list_metrics(metrics_file: MetricsFileOption = None, as_json: JsonOption = False) -> None:
    """List every metric with its unit, direction and sources."""
    metrics, broken = _requested((), metrics_file)
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


@app.command(
    epilog=examples("cclsearch metrics show mfu", "cclsearch metrics show straggler bw_allgather")
)
def show(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Metrics.", show_default=False)
    ],
    metrics_file: MetricsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the definition of metrics, their sources, and differences from CCL-Bench."""
    metrics, _ = _requested(names, metrics_file)
    texts = "\n\n".join("\n".join(_lines(each)) for each in metrics)
    print_result([definition_facts(each) for each in metrics], [texts], as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeOptions:
    """Which metrics to compute of which traces or studies; no names means all."""

    trace: TraceArgument = ""
    names: list[str] = argument([], "Metrics. [default: all]", metavar="[NAME]...")
    card: CardOption = None
    card_bandwidths: BandwidthsOption = None
    batch_size: BatchSizeOption = None
    gpus: GpusOption = None
    metrics_file: MetricsFileOption = None
    no_cache: NoCacheOption = False
    study: list[str] = option(
        [],
        "Compute and store missing metrics of this study's trials; then all arguments "
        "are metric names. Repeatable.",
        metavar="STUDY",
    )
    every_study: bool = option(False, "Like --study, for every recorded study.", "--all")
    store: StoreOption = None


@app.command(
    epilog=examples(
        "cclsearch metrics compute traces/",
        "cclsearch metrics compute traces/ mfu tokens_per_s --card card.yaml",
        "cclsearch metrics compute traces/rank0.json.gz compute_comm_overlap --json",
        "cclsearch metrics compute trial:3 straggler",
        "cclsearch metrics compute --study 20260131-120000-ab12 --metrics-file mine.py",
        "cclsearch metrics compute --all mfu",
    )
)
@takes_options
def compute(asked: ComputeOptions, as_json: JsonOption = False) -> None:
    """Compute metrics of traces: each value with its unit, or why it is missing.

    With --study or --all, compute metrics of recorded trials that are missing or were computed by
    an older version. After an interruption, the same command continues.

    Exits with status 3 if no requested metric has a value.
    """
    if asked.study or asked.every_study:
        if asked.card is not None:
            raise StudyError("--card is for traces; recorded trials have a workload")
        print_computed(asked, as_json=as_json)
    elif asked.trace:
        print_values(asked, as_json=as_json)
    else:
        raise StudyError("give a TRACE, a trial as trial:3, or studies with --study or --all")


def _requested(
    names: Sequence[str], metrics_file: Path | None
) -> tuple[Sequence[Metric], dict[str, str]]:
    """Return these metrics, or all, with the user's own, and why some are broken."""
    added = () if metrics_file is None else read_metrics_file(metrics_file)
    if names:
        return [metric(name, added) for name in names], {}
    found, broken = loaded_metrics(added)
    return list(found.values()), broken


def _lines(of: Metric) -> list[str]:
    """Return a metric's definition as text, wrapped to the page."""
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
    """Return a letter for each source of a metric."""
    return "".join(letter for source, letter in LETTERS.items() if source in of.sources)


def _needs_words(of: Metric) -> str:
    sources = sorted(of.sources - {"card"})
    needed = ["a trace"] if of.sources >= TRACES else []
    needed += [NEEDED[each] for each in sources if not (needed and each in TRACES)]
    card = "; and the workload, from a card or a trial" if "card" in of.sources else ""
    return f"{' or '.join(needed)}{card}"


def print_values(asked: ComputeOptions, *, as_json: bool) -> None:
    """Print each metric's value, or why it is missing; exit with 3 if there is none.

    Raise `MetricError` for an unknown name before any trace is read.
    """
    from search.cli.trace import head_facts, print_caveats, print_head, trace_caveats

    known, broken = _requested(asked.names, asked.metrics_file)
    found, unfit, inferences = _with_card(asked)
    measures = measure_each(known, found.evidence)
    values = {value.name: value for value in measures.values}
    if as_json:
        facts = {
            "mismatches": unfit,
            "inferences": inferences,
            "broken": broken,
            "metrics": [
                {
                    "name": each.name,
                    "label": each.label,
                    "value": values[each.name].value if each.name in values else None,
                    "unit": each.unit,
                    "better": each.better,
                    "version": each.version,
                    "absent": measures.absent.get(each.name),
                }
                for each in known
            ],
        }
        typer.echo(json.dumps({**head_facts(found), **facts}, allow_nan=False))
    else:
        print_head(found)
        _print_measures([each for each in known if each.name in values], values)
        for line in (*absence_lines(measures.absent), *absence_lines(broken)):
            typer.echo(line)
        split = found.evidence.split
        print_caveats(*(f"card: {words}" for words in inferences))
        print_caveats(*(f"{words}; is it the right card?" for words in unfit))
        print_caveats(*(split.caveats if split else ()), *trace_caveats(found.traces))
    if not any(each.name in values for each in known):
        raise typer.Exit(NOTHING_MEASURED)


def _with_card(asked: ComputeOptions) -> "tuple[OpenTraces, Sequence[str], Sequence[str]]":
    """Return the traces with the card's workload, mismatches, and the card's inferences."""
    from search.traces.open import open_traces

    if asked.card is None:
        return open_traces(asked.trace, asked.store, use_cache=not asked.no_cache), (), ()
    # Imported here: only a card needs it.
    from search.study.card_reader import Card, CardReader

    # The card is read first: it is small, and reading traces may take minutes.
    reader = CardReader(
        Card(asked.card), card_given(asked.card_bandwidths, asked.batch_size, asked.gpus)
    )
    workload, environment = reader.workload(), reader.stated_environment()
    if len(reader.batch_sizes()) > 1:
        raise StudyError(
            f"{asked.card}: lists several batch sizes; give the traces' one with --batch-size"
        )
    found = open_traces(asked.trace, asked.store, use_cache=not asked.no_cache)
    seen = replace(found.evidence, workload=workload, environment=environment)
    unfit = mismatches(found.traces, workload, environment)
    return replace(found, evidence=seen), unfit, reader.inferences


def _print_measures(measured: Sequence[Metric], values: Mapping[str, MetricValue]) -> None:
    if measured:
        numbers = [format_number(values[each.name].value) for each in measured]
        print_table(
            Column(heading="metric", cells=[each.name for each in measured]),
            number_column("value", numbers),
            Column(heading="unit", cells=[values[each.name].unit for each in measured]),
            Column(heading="what", cells=[each.label for each in measured], yielding=True),
        )


def print_computed(asked: ComputeOptions, *, as_json: bool) -> None:
    """Compute, store and print; raise `Interrupted` on Ctrl-C, with everything so far stored."""
    from search.replay.metrics import recompute_metrics

    names = [*([asked.trace] if asked.trace else []), *asked.names]
    found = definitions(asked.metrics_file, names)
    with open_store(asked.store) as records:
        rows = [records.find(study) for study in asked.study] or list(records.studies())
        tally, due = _Tally(), list[int]()
        with (
            progress_bar("computing", shown=not as_json) as update,
            closing(
                recompute_metrics(
                    rows, records, found.known, asked.metrics_file, lambda _, n: due.append(n)
                )
            ) as computed,
        ):
            try:
                for done in computed:
                    tally.add(done)
                    typer.echo(json.dumps(_trial_facts(done)) if as_json else _line(done))
                    update(tally.trial_count, sum(due))
            except KeyboardInterrupt:
                what = "interrupted; computed values are stored"
                raise Interrupted(f"{what}\nnext: repeat the command to continue") from None
        if not as_json:
            _print_summary(tally, found.known, found.broken, rows, records)


class _Tally:
    """Counts by metric: values, absent, not read, and replaced versions."""

    def __init__(self) -> None:
        self.trial_count = 0
        self.values, self.absent, self.unread = Counter[str](), Counter[str](), Counter[str]()
        self.replaced: dict[str, set[int]] = defaultdict(set)

    def add(self, done: "RecomputedTrial") -> None:
        """Count the metrics of one trial."""
        answer = done.answer
        self.trial_count += 1
        self.values.update(value.name for value in answer.values)
        self.absent.update(answer.absent.keys())
        self.unread.update(answer.unread.keys())
        for name, value in done.before.items():
            if name not in answer.unread:
                self.replaced[name].add(value.version)


def _line(done: "RecomputedTrial") -> str:
    """Return a line for one trial: the first values, and why others are missing."""
    answer = done.answer
    facts = [_value_words(value, done.before.get(value.name)) for value in answer.values]
    if len(facts) > SHOWN_VALUES:
        facts = [*facts[:SHOWN_VALUES], f"{len(facts) - SHOWN_VALUES} more"]
    if answer.absent:
        named = ", ".join(list(answer.absent)[:SHOWN_VALUES])
        first = next(iter(answer.absent.values()))
        alike = set(answer.absent.values()) == {first}
        many = len(answer.absent) > SHOWN_VALUES or not alike
        words = f"no value of {len(answer.absent)} metrics" if many else f"no {named}: {first}"
        facts.append(one_line(words, REASON_CHARS))
    facts += [one_line(line, REASON_CHARS) for line in absence_lines(answer.unread)]
    return f"trial {done.study_id}:{answer.ordinal}: {'; '.join(facts)}"


def _value_words(value: MetricValue, before: MetricValue | None) -> str:
    words = f"{value.name} {format_number(value.value)} {value.unit}".rstrip()
    if before is None:
        return words
    return f"{words} (version {before.version}: {format_number(before.value)})"


def _trial_facts(done: "RecomputedTrial") -> dict[str, object]:
    """Return one trial for JSON."""
    answer = done.answer
    return {
        "study_id": done.study_id,
        "ordinal": answer.ordinal,
        "values": [asdict(value) for value in answer.values],
        "absent": dict(answer.absent),
        "unread": dict(answer.unread),
        "before": [asdict(value) for value in done.before.values()],
    }


def _print_summary(
    tally: _Tally,
    known: Sequence[Definition],
    broken: Mapping[str, str],
    rows: Sequence[StudyRow],
    records: Store,
) -> None:
    """Print the counts by metric, and the next command."""
    for line in absence_lines(broken):
        typer.echo(line)
    looked_at = format_count(len(rows), "study", "studies")
    if not tally.trial_count:
        typer.echo(f"nothing to compute: every trial of {looked_at} has all of these metrics")
        return
    touched = {*tally.values, *tally.absent, *tally.unread}
    shown = [each.metric for each in known if each.metric.name in touched]
    typer.echo("")
    print_table(
        Column(heading="metric", cells=[each.name for each in shown], yielding=True),
        number_column("version", [str(each.version) for each in shown]),
        number_column("values", [str(tally.values[each.name]) for each in shown]),
        number_column("absent", [str(tally.absent[each.name]) for each in shown]),
        number_column("not read", [str(tally.unread[each.name]) for each in shown]),
        Column(
            heading="in place of",
            cells=[
                ", ".join(f"version {old}" for old in sorted(tally.replaced[each.name]))
                for each in shown
            ],
        ),
    )
    typer.echo(f"computed and stored for {tally.trial_count} trials of {looked_at}")
    if tally.unread:
        typer.echo("restore the files that could not be read, then repeat the command")
    new = next((each for each in shown if tally.values[each.name]), None)
    if new is not None:
        one = f"cclsearch show {rows[0].id} --objective {shlex.quote(new.name)}"
        command = one if len(rows) == 1 else f"cclsearch leaderboard --by {shlex.quote(new.name)}"
        typer.echo(f"next: {command}{store_flag(records.root)}")
