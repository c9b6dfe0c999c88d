"""`compare`: whether B is faster than A, and how certain that is."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import typer
from typer.core import TyperCommand

from evaluator.timing.decision import Verdict
from evaluator.timing.screening.estimate import Thresholds, read_thresholds, to_toml
from records.errors import StudyError
from search.cli.options import (
    JsonOption,
    StoreOption,
    argument,
    examples,
    option,
    store_flag,
    takes_options,
    write_file,
)
from search.compare.compare import Comparisons, Terms, compare_sides
from search.compare.sides import NvbenchSide, side
from search.compare.view import Display, View, comparison_document, comparisons_facts
from search.settings import store_root
from search.views.terminal import print_blocks

app = typer.Typer(rich_markup_mode=None)

BENCHMARKS, AXES = "benchmarks", "axes"
GIVEN = "search.cli.compare.given"
SLOWER, UNDECIDED = 3, 5
SIDE = "trial:3, trial:STUDY:3, best, best:STUDY, or a file or folder of results."


class InOrder(TyperCommand):
    """A command that records the order of its filters, which decides the benchmark of an axis."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # the base of Context is private
        """Parse the arguments and record the order of the filters."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        ctx.meta[GIVEN] = [each.name for each in order if each.name in (BENCHMARKS, AXES)]
        return super().parse_args(ctx, args)


@dataclass(frozen=True, slots=True, kw_only=True)
class TermOptions:
    """What counts as a difference."""

    margin: float | None = option(
        None,
        "Relative difference that counts as equal. [default: the study's, or 0.02]",
        metavar="SHARE",
    )
    alpha: float | None = option(
        None, "Error rate of a verdict. [default: the study's, or 0.05]", metavar="SHARE"
    )
    preset: Literal["default", "strict", "permissive"] | None = option(
        None, "Thresholds for single launches: nvbench files and screening."
    )
    config: Path | None = option(
        None, "Thresholds for single launches; override the preset.", metavar="FILE.toml"
    )

    @property
    def thresholds(self) -> Thresholds:
        """The thresholds for single launches."""
        return read_thresholds(self.config, self.preset)


@dataclass(frozen=True, slots=True, kw_only=True)
class NvbenchOptions:
    """Which nvbench results to compare, and where to write the script that loads their samples."""

    benchmarks: list[str] = option(
        [],
        "For nvbench files: only this benchmark. Repeatable.",
        "-b",
        "--benchmark",
        metavar="NAME",
    )
    axes: list[str] = option(
        [],
        "Only states with AXIS=V, AXIS=[V,...] or AXIS[pow2]=EXPONENT; applies to the "
        "preceding -b, or to all.",
        "-a",
        "--axis",
        metavar="AXIS=V",
    )
    reference_devices: str = option("all", "Devices of A: all, or a list as 0,2.", metavar="IDS")
    candidate_devices: str = option("all", "Devices of B, paired with those of A.", metavar="IDS")
    ignore_devices: bool = option(False, "Compare different devices.")
    bulk_script: Path | None = option(
        None, "Write a script that loads the samples of nvbench rows.", metavar="FILE.py"
    )

    def filters(self, order: Sequence[str]) -> Iterator[tuple[Literal["benchmark", "axis"], str]]:
        """Yield the filters in the order of the command line."""
        benchmarks, axes = iter(self.benchmarks), iter(self.axes)
        for name in order:
            yield ("benchmark", next(benchmarks)) if name == BENCHMARKS else ("axis", next(axes))


@app.command(
    cls=InOrder,
    epilog=examples(
        "cclsearch compare trial:0 best",
        "cclsearch compare torchcomms/ c10d/ --fail-on slow",
        "cclsearch compare before.json after.json --display explain",
    ),
)
@takes_options
def compare(
    *,
    context: typer.Context,
    a: str = argument("", f"The reference: {SIDE}", metavar="A"),
    b: str = argument("", "The candidate, of the same kind.", metavar="B"),
    terms: TermOptions,
    dump_config: bool = option(False, "Print these thresholds as TOML, and exit."),
    display: Literal["simple", "intervals", "explain"] = option("intervals", "Level of detail."),
    threshold_diff: float = option(
        0.0, "Hide rows that differ by less; they are still counted.", metavar="PERCENT"
    ),
    fail_on: Literal["slow"] | None = option(
        None, "Exit with 3 if B is slower anywhere, with 5 if undecided."
    ),
    allow_undecided: bool = option(False, "Let --fail-on pass undecided comparisons."),
    nvbench: NvbenchOptions,
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
        typer.echo(to_toml(terms.thresholds), nl=False)
        return
    if allow_undecided and fail_on is None:
        raise StudyError("--allow-undecided needs --fail-on slow")
    if not (a and b):
        raise StudyError("compare needs A and B, as in `cclsearch compare trial:0 best`")
    view = View(display=Display(display), threshold_percent=threshold_diff)
    limits = Terms(thresholds=terms.thresholds, margin=terms.margin, alpha=terms.alpha)
    reference, candidate = side(a, store), side(b, store)
    if isinstance(reference, NvbenchSide) and isinstance(candidate, NvbenchSide):
        filters = nvbench.filters(context.meta[GIVEN])
        counts = _print_nvbench(reference, candidate, nvbench, filters, view, limits, as_json)
    elif nvbench != NvbenchOptions():
        raise StudyError("-b, -a, --bulk-script and the device options are only for nvbench files")
    else:
        found = compare_sides(reference, candidate, limits)
        _print(found, store, view, as_json=as_json)
        counts = found.counts
    if fail_on == "slow":
        _gate(counts, allow_undecided=allow_undecided)


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


def _print(found: Comparisons, store: Path | None, view: View, *, as_json: bool) -> None:
    flag = store_flag(store_root(store).absolute())
    steps = (f"{step}{flag if step.startswith('cclsearch') else ''}" for step in found.next_steps)
    found = replace(found, next_steps=tuple(steps))
    if as_json:
        typer.echo(json.dumps(comparisons_facts(found), allow_nan=False))
    else:
        print_blocks(comparison_document(found, view).sections[0].blocks, spaced=True)


def _print_nvbench(
    a: NvbenchSide,
    b: NvbenchSide,
    chosen: NvbenchOptions,
    filters: Iterable[tuple[Literal["benchmark", "axis"], str]],
    view: View,
    terms: Terms,
    as_json: bool,
) -> Mapping[Verdict, int]:
    """Print every state of both, and write the script that loads their samples."""
    if (terms.margin, terms.alpha) != (None, None):
        raise StudyError(
            "--margin and --alpha are for repeated launches; for nvbench files use --preset or "
            "--config"
        )
    # Imported here: trials are compared without what reads nvbench files.
    from evaluator.timing.nvbench.compare import DeviceChoice, Filters, compare_files
    from search.compare.nvbench_view import bulk_script, comparison_facts, nvbench_document

    devices = DeviceChoice.of(
        chosen.reference_devices,
        chosen.candidate_devices,
        ignore_difference=chosen.ignore_devices,
    )
    found = compare_files(a.path, b.path, Filters.of(list(filters)), devices, terms.thresholds)
    if chosen.bulk_script is not None:
        write_file(chosen.bulk_script, bulk_script(found, view))
    if as_json:
        typer.echo(json.dumps(comparison_facts(found), allow_nan=False))
    else:
        print_blocks(nvbench_document(found, view).sections[0].blocks, spaced=True)
        for warning in found.warnings:
            typer.echo(f"caveat: {warning}", err=True)
    return Counter(row.judgement.verdict for row in found.rows)
