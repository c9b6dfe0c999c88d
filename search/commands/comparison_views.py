"""Compares two sides by what they are, and prints what was found."""

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from evaluator.timing.interval.thresholds import read_thresholds, to_toml
from evaluator.timing.verdict import Verdict
from records.errors import StudyError
from search.commands.options import store_flag
from search.comparing.bench import compare_bench
from search.comparing.compared import Comparisons, Terms
from search.comparing.facts import comparisons_facts
from search.comparing.launches import compare_launches
from search.comparing.sides import Bench, Nvbench, OneLaunch, OnRecord, Side, Timings, side
from search.comparing.tables import comparison_lines
from search.comparing.timings import compare_timings
from search.comparing.trials import compare_trials
from search.interval_tables import (
    Display,
    View,
    comparison_facts,
    report_lines,
    report_renderables,
)
from search.settings import store_root
from search.tables import echo_words
from search.terminal import Terminal, echo_styled, on_terminal

if TYPE_CHECKING:
    from evaluator.timing.nvbench.compare import ComparedFiles

SLOWER, UNDECIDED = 3, 5
KINDS = {
    OnRecord: "a trial",
    OneLaunch: "a stored measurement",
    Timings: "stored timings",
    Bench: "benchmark CSV",
    Nvbench: "nvbench results",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which results of nvbench are compared, and where a program that loads their samples goes."""

    filters: Sequence[tuple[Literal["benchmark", "axis"], str]] = ()
    reference_devices: str = "all"
    candidate_devices: str = "all"
    ignore_devices: bool = False
    bulk_script: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Two sides, what counts as a difference, and how much to tell."""

    a: str
    b: str
    margin: float | None
    alpha: float | None
    preset: str | None
    config: Path | None
    display: str
    threshold_percent: float
    fail_on_slow: bool
    allow_undecided: bool
    chosen: Chosen
    store: Path | None

    @property
    def view(self) -> View:
        """What of it to show."""
        return View(display=Display(self.display), threshold_percent=self.threshold_percent)

    @property
    def terms(self) -> Terms:
        """What counts as a difference."""
        thresholds = read_thresholds(self.config, self.preset)
        return Terms(thresholds=thresholds, margin=self.margin, alpha=self.alpha)


def print_thresholds(preset: str | None, config: Path | None) -> None:
    """Print the limits for single launches as TOML that `--config` takes."""
    typer.echo(to_toml(read_thresholds(config, preset)), nl=False)


def print_comparison(asked: Asked, *, as_json: bool) -> None:
    """Print what was found; where slower is to fail, exit with 3 if B is and 5 if that is open."""
    view, terms = asked.view, asked.terms
    a, b = side(asked.a, asked.store), side(asked.b, asked.store)
    if isinstance(a, Nvbench) and isinstance(b, Nvbench):
        counts = _print_nvbench(a, b, asked.chosen, view, terms, as_json=as_json)
    else:
        if asked.chosen != Chosen():
            raise StudyError(
                "-b, -a, --bulk-script and those of devices are for nvbench files; leave them out"
            )
        found = _compared(a, b, terms)
        _print(found, asked.store, view, as_json=as_json)
        counts = found.counts
    if asked.fail_on_slow:
        _gate(counts, allow_undecided=asked.allow_undecided)


def _gate(counts: Mapping[Verdict, int], *, allow_undecided: bool) -> None:
    if counts[Verdict.SLOW]:
        raise typer.Exit(SLOWER)
    undecided = counts[Verdict.UNDECIDED] + counts[Verdict.UNKNOWN]
    if undecided and not allow_undecided:
        typer.echo(
            f"undecided: {undecided} of {sum(counts.values())} comparisons, so --fail-on slow does "
            f"not pass (exit code {UNDECIDED}); launch both sides in turns more often, or accept "
            "these with --allow-undecided",
            err=True,
        )
        raise typer.Exit(UNDECIDED)


def _compared(a: Side, b: Side, terms: Terms) -> Comparisons:
    """What two sides of one kind gave; raises `StudyError` for two of different kinds."""
    match a, b:
        case OnRecord(), OnRecord():
            return compare_trials(a, b, terms)
        case ((OneLaunch() | OnRecord()), (OneLaunch() | OnRecord())):
            return compare_launches(a, b, terms)
        case Timings(), Timings():
            return compare_timings(a, b, terms)
        case Bench(), Bench():
            return compare_bench(a, b, terms)
        case _:
            raise StudyError(
                f"A, {a.name}, is {KINDS[type(a)]} and B, {b.name}, is {KINDS[type(b)]}; "
                "give two of one kind"
            )


def _print(found: Comparisons, store: Path | None, view: View, *, as_json: bool) -> None:
    root = store_root(store).absolute()
    commands = [
        f"{step}{store_flag(root)}" if step.startswith("cclsearch") else step
        for step in found.next_steps
    ]
    if as_json:
        facts = {**comparisons_facts(found), "next": commands}
        typer.echo(json.dumps(facts, allow_nan=False))
        return
    unicode = on_terminal() and "utf" in (sys.stdout.encoding or "").lower()
    for line in comparison_lines(found, view, unicode=unicode):
        if isinstance(line, str):
            echo_words(line)
        else:
            echo_styled(line)
    for command in commands:
        typer.echo(f"next: {command}")


def _print_nvbench(
    a: Nvbench, b: Nvbench, chosen: Chosen, view: View, terms: Terms, *, as_json: bool
) -> Mapping[Verdict, int]:
    """Print every state of both, and write the program that loads their samples."""
    if (terms.margin, terms.alpha) != (None, None):
        raise StudyError(
            "--margin and --alpha are for launches that are repeated; for nvbench files give "
            "--preset or --config"
        )
    # Imported here: trials are compared without what reads nvbench files.
    from evaluator.timing.nvbench.compare import compare_files
    from evaluator.timing.nvbench.devices import DeviceChoice
    from evaluator.timing.nvbench.errors import NvbenchError
    from evaluator.timing.nvbench.filters import Filters
    from search.bulk_script import bulk_script

    devices = DeviceChoice.of(
        chosen.reference_devices,
        chosen.candidate_devices,
        ignore_difference=chosen.ignore_devices,
    )
    filters = Filters.of(chosen.filters)
    try:
        found = compare_files(a.path, b.path, filters, devices, terms.thresholds)
    except NvbenchError as error:
        raise StudyError(str(error)) from error
    if chosen.bulk_script is not None:
        _write(chosen.bulk_script, bulk_script(found, view))
    if as_json:
        typer.echo(json.dumps(comparison_facts(found), allow_nan=False))
        return _counts(found)
    if on_terminal():
        Terminal(highlight=False).print(*report_renderables(found, view), sep="\n")
    else:
        typer.echo("\n".join(report_lines(found, view)))
    for warning in found.warnings:
        typer.echo(f"caveat: {warning}", err=True)
    return _counts(found)


def _counts(found: "ComparedFiles") -> Mapping[Verdict, int]:
    return Counter(row.judgement.verdict for row in found.rows)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StudyError(f"{path}: cannot be written: {error}; give another file") from error
