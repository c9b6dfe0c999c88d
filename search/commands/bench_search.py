"""`bench search`: how many trials each search strategy needs, where the answer is known."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from records.codec import to_json
from records.errors import StudyError
from records.study import Llm
from search.commands.options import JsonOption, StoreOption
from search.terminal import Terminal

EXAMPLES = ("generated:small-1", "generated:medium-1", "generated:medium-2-anonymous")


def search(
    landscapes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LANDSCAPE...",
            help="Landscape file (docs/landscapes.md), generated:[small-|medium-|large-]SEED"
            "[-anonymous], study:ID for what is on record of a study, or ccl:FOLDER with recorded "
            "searches. [default: three generated ones]",
            show_default=False,
        ),
    ] = None,
    strategies: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Strategies to compare. [default: all offline ones]"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Searches of each.")] = 20,
    trials: Annotated[int, typer.Option(min=2, metavar="N", help="Trials of a search.")] = 40,
    target: Annotated[
        str, typer.Option(metavar="SHARE", help="A hit is at most this much worse than the best.")
    ] = "5%",
    start: Annotated[
        str,
        typer.Option(
            metavar="seed|random",
            help="Begin at the landscape's seed, or each search somewhere else.",
        ),
    ] = "seed",
    transcripts: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="For hybrid and llm: what the model answered is taken from here; with "
            "ANTHROPIC_API_KEY set it is asked what is missing, and that is kept.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which model. [default: that of studies]")
    ] = None,
    outdir: Annotated[
        Path | None,
        typer.Option("-o", "--outdir", metavar="FOLDER", help="For one JSON and one picture."),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare search strategies on landscapes of which every configuration is known.

    All strategies begin at the same configuration, see only what is feasible and never repeat a
    launch. A launch draws one noisy sample; a challenger that looks better is raced by two more of
    each. What counts is how good the configuration truly is that the search would announce. Nothing
    is launched.
    """
    # Imported here: what draws and sums up takes a second to load.
    from search.search_bench.asked import landscapes_of
    from search.search_bench.asking import Asking
    from search.search_bench.comparison import compare, strategies_of, write
    from search.search_bench.tables import TABLE_WIDTH, print_reports
    from search.words.quantities import share_of

    if start not in ("seed", "random"):
        raise StudyError(f"--start {start!r} is unknown; use seed or random")
    asking = None
    if transcripts is not None:
        asking = Asking(transcripts=transcripts, llm=Llm() if model is None else Llm(model=model))
    console = Terminal(stderr=True)
    with console.status("starting") as line:
        found = compare(
            landscapes_of(landscapes or EXAMPLES, store, lambda words: console.print(Text(words))),
            strategies_of(strategies, asking),
            seed_count=seeds,
            trial_count=trials,
            reach=share_of(target, "--target"),
            start="random" if start == "random" else "seed",
            asking=asking,
            done=lambda landscape, strategy, done, count: line.update(
                Text(f"{done} of {count}: {strategy} on {landscape}")
            ),
        )
        written = () if outdir is None else write(found, outdir)
    if as_json:
        typer.echo(to_json(found))
    else:
        wide = Terminal(width=max(Terminal().width, TABLE_WIDTH))
        print_reports(wide, found.reports, trial_count=trials, seed_count=seeds)
        _print_end(written)


def _print_end(written: tuple[Path, ...]) -> None:
    for path in written:
        typer.echo(f"written: {path}")
    if not written:
        typer.echo("next: add -o FOLDER for the JSON and the picture")
