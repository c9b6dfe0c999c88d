"""`gc`: free the space of kept files."""

import re
from datetime import timedelta
from typing import Annotated

import typer

from records.errors import StudyError
from search.commands.options import JsonOption, StoreOption, examples

app = typer.Typer(rich_markup_mode=None)

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(h|d|w)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")
_HOURS = {"h": 1, "d": 24, "w": 168}
_MOST_HOURS = 24 * 365 * 1000


@app.command(
    epilog=examples(
        "cclsearch gc --dry-run",
        "cclsearch gc --traces-older-than 30d --keep-best 3",
        "cclsearch gc --max-size 10GB --yes",
    )
)
def gc(
    traces_older_than: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Remove traces of trials that ended before, as in 30d."),
    ] = None,
    keep_best: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Leave the traces of the best N trials of each study; alone: remove all others.",
        ),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Remove the oldest traces until all files take no more: 10GB."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be removed.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before traces are removed.")
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove kept files that no record cites, and what killed processes left.

    What a trial cites stays, unless an option says which traces may go; the record then tells for
    ever when and why they went. Everything else of a trial stays.
    """
    from search.commands.gc_views import free_space
    from search.kept.collecting import Rules

    older_than = None if traces_older_than is None else _duration(traces_older_than)
    rules = Rules(
        older_than=older_than,
        keep_best=keep_best,
        max_bytes=None if max_size is None else _bytes(max_size),
        words=_words(traces_older_than, keep_best, max_size),
    )
    free_space(rules, store, dry_run=dry_run, yes=yes, as_json=as_json)


def _words(older_than: str | None, keep_best: int | None, max_size: str | None) -> str:
    """The rules as the records tell them."""
    told = [f"traces older than {older_than}"] if older_than is not None else []
    told += [f"the oldest traces beyond {max_size}"] if max_size is not None else []
    if not keep_best:
        return ", ".join(told) or "all traces"
    best = f"of all but the best {keep_best} trials" if keep_best > 1 else "of all but the best"
    return f"{', '.join(told)}, {best}" if told else f"traces {best}"


def _duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text.strip())
    hours = float(found[1]) * _HOURS[found[2]] if found else None
    if hours is None or hours > _MOST_HOURS:
        raise StudyError(f"--traces-older-than {text!r} is no time; write it as 12h, 30d or 8w")
    return timedelta(hours=hours)


def _bytes(text: str) -> int:
    # Imported here: what measures loads slowly, and help needs none of it.
    from evaluator.limits import UNITS

    found = _SIZE.fullmatch(text.strip())
    kind, unit = UNITS.get(found[2], ("", 0.0)) if found else ("", 0.0)
    if found is None or kind != "size":
        raise StudyError(f"--max-size {text!r} is no size; write it as 500MB, 10GB or 2TiB")
    return int(float(found[1]) * unit)
