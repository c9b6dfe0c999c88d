"""`compare`: whether B is faster than A, and how certain that is."""

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer.core import TyperCommand

from evaluator.timing.decision import Verdict
from evaluator.timing.intervals.estimate import read_thresholds, to_toml
from records.errors import StudyError
from search.cli.options import JsonOption, StoreOption, examples, store_flag
from search.compare.compare import Comparisons, Terms, compare_launches, compare_trials
from search.compare.files import compare_bench, compare_timings
from search.compare.intervals_view import (
    Display,
    View,
    bulk_script,
    comparison_facts,
    report_lines,
    report_renderables,
)
from search.compare.sides import Bench, Nvbench, OneLaunch, OnRecord, Side, Timings, side
from search.compare.view import comparison_lines, comparisons_facts
from search.settings import store_root
from search.views.console import Terminal, echo_styled, on_terminal
from search.views.terminal import echo_wrapped

if TYPE_CHECKING:
    from evaluator.timing.nvbench.compare import ComparedFiles


app = typer.Typer(rich_markup_mode=None)

BENCHMARKS, AXES = "benchmarks", "axes"
GIVEN = "search.cli.compare.given"
SIDE = "trial:3, trial:STUDY:3, best, best:STUDY, or a file or folder of results."


class InOrder(TyperCommand):
    """A command that records the order of its filters, which decides the benchmark of an axis."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # the base of Context is private
        """Parse the arguments and record the order of the filters."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        ctx.meta[GIVEN] = [each.name for each in order if each.name in (BENCHMARKS, AXES)]
        return super().parse_args(ctx, args)


@app.command(
    cls=InOrder,
    epilog=examples(
        "cclsearch compare trial:0 best",
        "cclsearch compare torchcomms/ c10d/ --fail-on slow",
        "cclsearch compare before.json after.json --display explain",
    ),
)
def compare(
    context: typer.Context,
    a: Annotated[
        str, typer.Argument(metavar="A", help=f"The reference: {SIDE}", show_default=False)
    ] = "",
    b: Annotated[
        str,
        typer.Argument(metavar="B", help="The candidate, of the same kind.", show_default=False),
    ] = "",
    margin: Annotated[
        float | None,
        typer.Option(
            help="Relative difference that counts as equal. [default: the study's, or 0.02]",
            metavar="SHARE",
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            help="Error rate of a verdict. [default: the study's, or 0.05]",
            metavar="SHARE",
        ),
    ] = None,
    preset: Annotated[
        Literal["default", "strict", "permissive"] | None,
        typer.Option(help="Thresholds for single launches: nvbench files and screening."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE.toml",
            help="Thresholds for single launches; override the preset.",
        ),
    ] = None,
    dump_config: Annotated[
        bool, typer.Option("--dump-config", help="Print these thresholds as TOML, and exit.")
    ] = False,
    display: Annotated[
        Literal["simple", "intervals", "explain"], typer.Option(help="Level of detail.")
    ] = "intervals",
    threshold_diff: Annotated[
        float,
        typer.Option(
            metavar="PERCENT", help="Hide rows that differ by less; they are still counted."
        ),
    ] = 0.0,
    fail_on: Annotated[
        Literal["slow"] | None,
        typer.Option("--fail-on", help="Exit with 3 if B is slower anywhere, with 5 if undecided."),
    ] = None,
    allow_undecided: Annotated[
        bool,
        typer.Option("--allow-undecided", help="Let --fail-on pass undecided comparisons."),
    ] = False,
    benchmarks: Annotated[
        list[str] | None,
        typer.Option(
            "-b",
            "--benchmark",
            metavar="NAME",
            help="For nvbench files: only this benchmark. Repeatable.",
        ),
    ] = None,
    axes: Annotated[
        list[str] | None,
        typer.Option(
            "-a",
            "--axis",
            metavar="AXIS=V",
            help="Only states with AXIS=V, AXIS=[V,...] or AXIS[pow2]=EXPONENT; applies to the "
            "preceding -b, or to all.",
        ),
    ] = None,
    reference_devices: Annotated[
        str, typer.Option(metavar="IDS", help="Devices of A: all, or a list as 0,2.")
    ] = "all",
    candidate_devices: Annotated[
        str, typer.Option(metavar="IDS", help="Devices of B, paired with those of A.")
    ] = "all",
    ignore_devices: Annotated[
        bool, typer.Option("--ignore-devices", help="Compare different devices.")
    ] = False,
    bulk_script: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.py", help="Write a script that loads the samples of nvbench rows."
        ),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check whether B is faster than A, and why.

    The verdict is FAST, SLOW, SAME, UNDECIDED or UNKNOWN. Trials are compared by interleaved
    launches, benchmark rows by rounds (equal RunId with
    LaunchId or Block) with Holm's correction, and nvbench states by the ranges of their samples.
    Without --fail-on the exit code is always 0.
    """
    if dump_config:
        print_thresholds(preset, config)
        return
    if allow_undecided and fail_on is None:
        raise StudyError("--allow-undecided needs --fail-on slow")
    if not (a and b):
        raise StudyError("compare needs A and B, as in `cclsearch compare trial:0 best`")
    chosen = Chosen(
        filters=_in_order(context.meta[GIVEN], {BENCHMARKS: benchmarks, AXES: axes}),
        reference_devices=reference_devices,
        candidate_devices=candidate_devices,
        ignore_devices=ignore_devices,
        bulk_script=bulk_script,
    )
    asked = CompareOptions(
        a=a,
        b=b,
        margin=margin,
        alpha=alpha,
        preset=preset,
        config=config,
        display=display,
        threshold_percent=threshold_diff,
        fail_on_slow=fail_on == "slow",
        allow_undecided=allow_undecided,
        chosen=chosen,
        store=store,
    )
    print_comparison(asked, as_json=as_json)


def _in_order(
    given: Sequence[str], values: dict[str, list[str] | None]
) -> tuple[tuple[Literal["benchmark", "axis"], str], ...]:
    """Return the filters in the order of the command line."""
    left = {name: iter(texts or ()) for name, texts in values.items()}
    return tuple(
        ("benchmark" if name == BENCHMARKS else "axis", next(left[name])) for name in given
    )


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
    """Which nvbench results to compare, and where to write the script that loads their samples."""

    filters: Sequence[tuple[Literal["benchmark", "axis"], str]] = ()
    reference_devices: str = "all"
    candidate_devices: str = "all"
    ignore_devices: bool = False
    bulk_script: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """Two sides, the thresholds, and the level of detail."""

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
        """What to show."""
        return View(display=Display(self.display), threshold_percent=self.threshold_percent)

    @property
    def terms(self) -> Terms:
        """What counts as a difference."""
        thresholds = read_thresholds(self.config, self.preset)
        return Terms(thresholds=thresholds, margin=self.margin, alpha=self.alpha)


def print_thresholds(preset: str | None, config: Path | None) -> None:
    """Print the thresholds for single launches as TOML for `--config`."""
    typer.echo(to_toml(read_thresholds(config, preset)), nl=False)


def print_comparison(asked: CompareOptions, *, as_json: bool) -> None:
    """Print the comparison; with `fail_on_slow` exit with 3 if B is slower, 5 if undecided."""
    view, terms = asked.view, asked.terms
    a, b = side(asked.a, asked.store), side(asked.b, asked.store)
    if isinstance(a, Nvbench) and isinstance(b, Nvbench):
        counts = _print_nvbench(a, b, asked.chosen, view, terms, as_json=as_json)
    else:
        if asked.chosen != Chosen():
            raise StudyError(
                "-b, -a, --bulk-script and the device options are only for nvbench files"
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
            f"undecided: {undecided} of {sum(counts.values())} comparisons, so --fail-on slow "
            f"fails (exit code {UNDECIDED}); run more interleaved launches of both sides, or add "
            f"--allow-undecided",
            err=True,
        )
        raise typer.Exit(UNDECIDED)


def _compared(a: Side, b: Side, terms: Terms) -> Comparisons:
    """Compare two sides of one kind; raise `StudyError` for different kinds."""
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
                "give two sides of the same kind"
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
            echo_wrapped(line)
        else:
            echo_styled(line)
    for command in commands:
        typer.echo(f"next: {command}")


def _print_nvbench(
    a: Nvbench, b: Nvbench, chosen: Chosen, view: View, terms: Terms, *, as_json: bool
) -> Mapping[Verdict, int]:
    """Print every state of both, and write the script that loads their samples."""
    if (terms.margin, terms.alpha) != (None, None):
        raise StudyError(
            "--margin and --alpha are for repeated launches; for nvbench files use --preset or "
            "--config"
        )
    # Imported here: trials are compared without what reads nvbench files.
    from evaluator.timing.nvbench.compare import DeviceChoice, Filters, compare_files

    devices = DeviceChoice.of(
        chosen.reference_devices,
        chosen.candidate_devices,
        ignore_difference=chosen.ignore_devices,
    )
    filters = Filters.of(chosen.filters)
    found = compare_files(a.path, b.path, filters, devices, terms.thresholds)
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
        raise StudyError(f"cannot write {path}: {error}; give another file") from error
