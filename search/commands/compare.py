"""`compare`: whether B is faster than A, and how sure that is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer.core import TyperCommand

from records.errors import StudyError
from search.commands.options import JsonOption, StoreOption, examples

app = typer.Typer(rich_markup_mode=None)

BENCHMARKS, AXES = "benchmarks", "axes"
GIVEN = "search.commands.compare.given"
SIDE = "trial:3, trial:STUDY:3, best, best:STUDY, or a file or folder of results."


class InOrder(TyperCommand):
    """A command that remembers the order of its filters: it decides what an axis belongs to."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # the base of Context is private
        """Parse as ever, and note which filter came when."""
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
            help="Share of a difference that is none in practice. [default: the study's, or 0.02]",
            metavar="SHARE",
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            help="How often a verdict may be wrong. [default: the study's, or 0.05]",
            metavar="SHARE",
        ),
    ] = None,
    preset: Annotated[
        Literal["default", "strict", "permissive"] | None,
        typer.Option(help="How far apart single launches must be, for nvbench and screening."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE.toml", help="The same in numbers, over a preset."),
    ] = None,
    dump_config: Annotated[
        bool, typer.Option("--dump-config", help="Print those numbers as TOML, and end.")
    ] = False,
    display: Annotated[
        Literal["simple", "intervals", "explain"], typer.Option(help="How much to tell.")
    ] = "intervals",
    threshold_diff: Annotated[
        float,
        typer.Option(metavar="PERCENT", help="Count rows that differ by less, but hide them."),
    ] = 0.0,
    fail_on: Annotated[
        Literal["slow"] | None,
        typer.Option("--fail-on", help="Exit with 3 if B is slower anywhere, with 5 if undecided."),
    ] = None,
    allow_undecided: Annotated[
        bool,
        typer.Option("--allow-undecided", help="Let --fail-on pass what is not slower for sure."),
    ] = False,
    benchmarks: Annotated[
        list[str] | None,
        typer.Option("-b", "--benchmark", metavar="NAME", help="Only this one, of nvbench files."),
    ] = None,
    axes: Annotated[
        list[str] | None,
        typer.Option(
            "-a",
            "--axis",
            metavar="AXIS=V",
            help="Only states at AXIS=V, AXIS=[V,...] or AXIS[pow2]=EXPONENT; of the -b before "
            "it, or of all.",
        ),
    ] = None,
    reference_devices: Annotated[
        str, typer.Option(metavar="IDS", help="Devices of A: all, or 0,2.")
    ] = "all",
    candidate_devices: Annotated[
        str, typer.Option(metavar="IDS", help="Devices of B, paired with those of A.")
    ] = "all",
    ignore_devices: Annotated[
        bool, typer.Option("--ignore-devices", help="Compare devices that differ.")
    ] = False,
    bulk_script: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.py", help="Write a program that loads the samples of nvbench rows."
        ),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell whether B is faster than A: FAST, SLOW, SAME, UNDECIDED or UNKNOWN, and why.

    Trials of a study are judged by launches that took turns, benchmark rows by their rounds (equal
    RunId with LaunchId or Block) and corrected for their number (Holm), nvbench states by the
    ranges of their samples. Without --fail-on the exit code is 0 whatever the verdict.
    """
    # Imported here: what decides takes a second to load.
    from search.commands.comparison_views import Asked, Chosen, print_comparison, print_thresholds

    if dump_config:
        print_thresholds(preset, config)
        return
    if allow_undecided and fail_on is None:
        raise StudyError("--allow-undecided is for a gate; add --fail-on slow")
    if not (a and b):
        raise StudyError("compare needs A and B, as in `cclsearch compare trial:0 best`")
    chosen = Chosen(
        filters=_in_order(context.meta[GIVEN], {BENCHMARKS: benchmarks, AXES: axes}),
        reference_devices=reference_devices,
        candidate_devices=candidate_devices,
        ignore_devices=ignore_devices,
        bulk_script=bulk_script,
    )
    asked = Asked(
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
    """The filters as they were typed."""
    left = {name: iter(texts or ()) for name, texts in values.items()}
    return tuple(
        ("benchmark" if name == BENCHMARKS else "axis", next(left[name])) for name in given
    )
