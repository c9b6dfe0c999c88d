"""How many trials each search strategy needs on landscapes of which every point is known.

Measured ones (see `measured_landscapes.py`), recorded ones where their folder is, and generated
ones whose seeds nothing was tuned on (`generated_landscapes.py`). The terms are those of `cclsearch
bench search`. Told at the end are the ratios of the median trials to a hit of the hybrid strategy
to those of TPE and of coordinate descent.

    python benchmarks/search_efficiency.py --out results
    python benchmarks/search_efficiency.py --strategies offline,tpe,coordinate --seeds 50
"""

import argparse
import sys
from pathlib import Path

from generated_landscapes import generate_landscape
from recorded_landscapes import recorded_landscapes

from records.errors import StudyError
from search.strategy_bench.comparison import (
    RIVALS,
    Comparison,
    Report,
    compare,
    comparison_document,
    strategies_of,
    write,
)
from search.strategy_bench.landscape import Landscape
from search.strategy_bench.run import MEASURED, landscapes_of
from search.views.terminal import print_document

HERE = Path(__file__).parent
RECORDED = HERE.parent.parent / "shared" / "data"
GENERATED = (
    "generated:small-101",
    "generated:medium-102",
    "generated:medium-103",
    "generated:large-104",
    "generated:large-105",
    "generated:medium-106-anonymous",
)
HYBRID = "offline"


def main() -> None:
    parser = argparse.ArgumentParser(description="Trials that search strategies need.")
    parser.add_argument("--strategies", help="with commas; default all offline ones")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--start", choices=("seed", "random"), default="seed")
    parser.add_argument("--recorded", type=Path, default=RECORDED, help="folder of recorded ones")
    parser.add_argument("--out", type=Path, default=Path("search_efficiency"))
    options = parser.parse_args()
    found = compare(
        landscapes(options.recorded),
        strategies_of(options.strategies),
        seed_count=options.seeds,
        trial_count=options.trials,
        reach=0.05,
        start=options.start,
        done=tell,
    )
    print(file=sys.stderr)
    print_document(comparison_document(found))
    report_ratios(found)
    for path in write(found, options.out):
        print(f"written: {path}")


def landscapes(recorded: Path) -> list[Landscape]:
    found = [*landscapes_of(MEASURED)]
    try:
        found += recorded_landscapes(recorded)
    except StudyError as error:
        print(f"left out: {error}", file=sys.stderr)
    return [*found, *map(generate_landscape, GENERATED)]


def tell(landscape: str, strategy: str, done: int, count: int) -> None:
    words = f"{done} of {count}: {strategy} on {landscape}"
    print(f"\r{words:<78}", end="", file=sys.stderr)


def report_ratios(found: Comparison) -> None:
    print(
        f"{'median trials to a hit: ' + HYBRID + ' to':<44}" + "".join(f"{r:>14}" for r in RIVALS)
    )
    for report in found.reports:
        words = "".join(f"{ratio_words(report, rival, found.trial_count):>14}" for rival in RIVALS)
        print(f"  {report.landscape:<42}{words}")


def ratio_words(report: Report, rival: str, trial_count: int) -> str:
    """A ratio of medians; < or > where one of them is a miss, which counts as one trial more."""
    medians = {each.strategy: each.trials.median for each in report.summaries}
    if HYBRID not in medians or rival not in medians:
        return "-"
    own, other = medians[HYBRID], medians[rival]
    if own is None and other is None:
        return "both miss"
    sign = ">" if own is None else "<" if other is None else ""
    return f"{sign}{(own or trial_count + 1) / (other or trial_count + 1):.2f}"


if __name__ == "__main__":
    main()
