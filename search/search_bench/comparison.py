"""A whole benchmark as it is asked for: landscapes, strategies and seeds in, reports out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from records.codec import to_json
from records.errors import CclsearchError, StudyError
from search.choosers.catalog import CHOOSERS
from search.compose import MODEL_TURNS
from search.search_bench.asking import Asking
from search.search_bench.driver import Done, Start, Terms, runs_of
from search.search_bench.ground import Ground
from search.search_bench.landscape import Landscape
from search.search_bench.picture import draw
from search.search_bench.summary import Report, report
from search.study_file import suggestion

RIVALS: Final = ("tpe", "coordinate")
"""What the other strategies are paired with, seed by seed."""
JSON_FILE: Final = "search_benchmark.json"
PICTURE_FILE: Final = "search_benchmark.png"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was compared on which terms, and what came of it, one report a landscape."""

    strategies: tuple[str, ...]
    seed_count: int
    trial_count: int
    reach: float
    start: Start
    reports: tuple[Report, ...]


def compare(
    landscapes: Sequence[Landscape],
    strategies: Sequence[str],
    *,
    seed_count: int,
    trial_count: int,
    reach: float,
    start: Start = "seed",
    asking: Asking | None = None,
    done: Done = lambda *_: None,
    process_count: int | None = None,
) -> Comparison:
    """Search every landscape with every strategy from every seed."""
    grounds = [Ground(landscape) for landscape in landscapes]
    seeds = tuple(range(seed_count))
    terms = Terms(seeds=seeds, trial_count=trial_count, start=start, asking=asking)
    runs = runs_of(landscapes, strategies, terms, done=done, process_count=process_count)
    return Comparison(
        strategies=tuple(strategies),
        seed_count=seed_count,
        trial_count=trial_count,
        reach=reach,
        start=start,
        reports=tuple(
            report(ground, runs[ground.name], reach=reach, trial_count=trial_count, rivals=RIVALS)
            for ground in grounds
        ),
    )


def strategies_of(words: str | None, asking: Asking | None = None) -> tuple[str, ...]:
    """The strategies of a list with commas, all offline ones without one.

    Those that ask a model need to be told how.
    """
    names = tuple(CHOOSERS) if words is None else tuple(dict.fromkeys(words.split(",")))
    known = [*CHOOSERS, *MODEL_TURNS]
    for name in names:
        if name not in known:
            raise StudyError(f"strategy {name!r} cannot be benchmarked; {suggestion(name, known)}")
        if name in MODEL_TURNS and asking is None:
            raise StudyError(
                f"strategy {name!r} asks a model: give --transcripts FOLDER, where what it "
                "answers is kept and found again"
            )
    return names


def write(comparison: Comparison, folder: Path) -> tuple[Path, Path]:
    """Write the JSON document and the picture; gives their paths."""
    document, picture = folder / JSON_FILE, folder / PICTURE_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        document.write_text(to_json(comparison, indent=1) + "\n", encoding="utf-8")
        draw(comparison.reports, picture, reach=comparison.reach)
    except OSError as error:
        raise CclsearchError(f"{folder}: cannot be written: {error}") from error
    return document, picture
