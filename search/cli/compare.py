"""`compare`: whether B is faster than A, and how certain that is."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from evaluator.timing.decision import Verdict
from records.errors import StudyError
from search.cli.options import (
    JsonOption,
    StoreOption,
    argument,
    examples,
    option,
    store_flag,
    takes_options,
)
from search.compare.compare import Comparisons, Terms, compare_sides
from search.compare.sides import NvbenchSide, side
from search.compare.view import Display, comparison_document, comparisons_facts
from search.settings import store_root
from search.views.terminal import print_blocks

if TYPE_CHECKING:
    from evaluator.timing.nvbench.compare import ComparedFiles

app = typer.Typer(rich_markup_mode=None)

SLOWER, UNDECIDED = 3, 5
SIDE = "trial:3, trial:STUDY:3, best, best:STUDY, or a file or folder of results."


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


@app.command(
    epilog=examples(
        "cclsearch compare trial:0 best",
        "cclsearch compare torchcomms/ c10d/ --fail-on slow",
        "cclsearch compare before.json after.json --display explain",
    ),
)
@takes_options
def compare(
    *,
    a: str = argument("", f"The reference: {SIDE}", metavar="A"),
    b: str = argument("", "The candidate, of the same kind.", metavar="B"),
    terms: TermOptions,
    display: Literal["intervals", "explain"] = option("intervals", "Level of detail."),
    fail_on: Literal["slow"] | None = option(
        None, "Exit with 3 if B is slower anywhere, with 5 if undecided."
    ),
    allow_undecided: bool = option(False, "Let --fail-on pass undecided comparisons."),
    preset: Literal["default", "strict", "permissive"] = option(
        "default", "For nvbench files: the thresholds of a verdict."
    ),
    benchmarks: list[str] = option(
        [],
        "For nvbench files: only this benchmark. Repeatable.",
        "-b",
        "--benchmark",
        metavar="NAME",
    ),
    axes: list[str] = option(
        [],
        "For nvbench files: only states with this value of an axis. Repeatable.",
        "-a",
        "--axis",
        metavar="AXIS=VALUE",
    ),
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check whether B is faster than A, and why.

    The verdict is FAST, SLOW, SAME, UNDECIDED or UNKNOWN. Trials are compared by interleaved
    launches, benchmark rows by rounds (equal RunId with
    LaunchId or Block) with Holm's correction, and nvbench states by the ranges of their samples.
    Without --fail-on the exit code is always 0.
    """
    if allow_undecided and fail_on is None:
        raise StudyError("--allow-undecided needs --fail-on slow")
    if not (a and b):
        raise StudyError("compare needs A and B, as in `cclsearch compare trial:0 best`")
    shown = Display(display)
    limits = Terms(margin=terms.margin, alpha=terms.alpha)
    reference, candidate = side(a, store), side(b, store)
    if isinstance(reference, NvbenchSide) and isinstance(candidate, NvbenchSide):
        if limits != Terms():
            raise StudyError(
                "--margin and --alpha are for repeated launches; for nvbench files use --preset"
            )
        # Imported here: trials are compared without what reads nvbench files.
        from evaluator.timing.nvbench.compare import Filters, compare_files
        from evaluator.timing.screening.estimate import PRESETS

        filters = Filters.of(benchmarks, axes)
        found = compare_files(reference.path, candidate.path, filters, PRESETS[preset])
        counts = _print_nvbench(found, shown, as_json=as_json)
    elif benchmarks or axes or preset != "default":
        raise StudyError("-b, -a and --preset are only for nvbench files")
    else:
        compared = compare_sides(reference, candidate, limits)
        _print(compared, store, shown, as_json=as_json)
        counts = compared.counts
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


def _print(found: Comparisons, store: Path | None, display: Display, *, as_json: bool) -> None:
    flag = store_flag(store_root(store).absolute())
    steps = (f"{step}{flag if step.startswith('cclsearch') else ''}" for step in found.next_steps)
    found = replace(found, next_steps=tuple(steps))
    if as_json:
        typer.echo(json.dumps(comparisons_facts(found), allow_nan=False))
    else:
        print_blocks(comparison_document(found, display).sections[0].blocks, spaced=True)


def _print_nvbench(
    found: "ComparedFiles", display: Display, *, as_json: bool
) -> Mapping[Verdict, int]:
    """Print every state of both files, and return how many have which verdict."""
    from search.compare.nvbench_view import comparison_facts, nvbench_document

    if as_json:
        typer.echo(json.dumps(comparison_facts(found), allow_nan=False))
    else:
        print_blocks(nvbench_document(found, display).sections[0].blocks, spaced=True)
        for warning in found.warnings:
            typer.echo(f"caveat: {warning}", err=True)
    return Counter(row.judgement.verdict for row in found.rows)
