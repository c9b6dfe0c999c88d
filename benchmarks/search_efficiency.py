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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, cycle
from pathlib import Path
from typing import Final

from generated_landscapes import generate_landscape
from recorded_landscapes import recorded_landscapes

from records.codec import to_json
from records.errors import StudyError
from search.strategy_bench.comparison import (
    MARKS,
    RIVALS,
    Comparison,
    Curve,
    Report,
    compare,
    comparison_document,
    strategies_of,
)
from search.strategy_bench.landscape import Landscape
from search.strategy_bench.run import MEASURED, landscapes_of
from search.views.charts import TONES, Panel, Point, Series, xy_chart
from search.views.svg import ChartAxis, standalone
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
    options.out.mkdir(parents=True, exist_ok=True)
    document, picture = options.out / "search_benchmark.json", options.out / "search_benchmark.svg"
    document.write_text(to_json(found, indent=1) + "\n", encoding="utf-8")
    picture.write_text(standalone(draw(found.reports, reach=found.reach)), encoding="utf-8")
    print(f"written: {document}, {picture}")


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


LEAST_PERCENT: Final = 0.1
"""What the logarithmic axis shows of no regret at all."""


def draw(reports: Sequence[Report], *, reach: float) -> str:
    """Draw all reports: of each landscape the regret by trials, and the success rates."""
    names = dict.fromkeys(each.strategy for report in reports for each in report.summaries)
    kinds = dict(zip(names, cycle(f"tone{number}" for number in range(TONES)), strict=False))
    panels = chain.from_iterable(
        (_regret(report, kinds, reach), _success(report, kinds)) for report in reports
    )
    return xy_chart(*panels, title="Search efficiency")


def _regret(report: Report, kinds: Mapping[str, str], reach: float) -> Panel:
    lines: list[Series] = []
    for name, points in ((each.strategy, _percents(each.regret)) for each in report.summaries):
        kind, line = kinds[name], [replace(point, y_ends=None) for point in points]
        lines.insert(0, Series(name="", kind=kind, points=points, shape=None, path="band"))
        lines.append(
            Series(name=name, kind=kind, points=line, shape=None, path="line", tip=f"{name}, mean")
        )
    ends = [Point(x=x, y=100 * reach) for x in (1, max(len(each.points) for each in lines))]
    lines.append(Series(name="within reach", kind="plain", points=ends, shape=None, path="line"))
    return Panel(
        series=lines,
        x=ChartAxis(label="trial", kind="linear"),
        y=ChartAxis(label="% above the best, with quartiles", kind="log"),
        heading=f"{report.landscape}: {report.size} configurations, {report.target_count} targets",
    )


def _percents(curve: Curve) -> list[Point]:
    """Mean and quartiles after each trial from which on all searches had measured anything."""
    points = []
    for trial, shares in enumerate(zip(curve.mean, curve.low, curve.high, strict=True), start=1):
        known = [max(100 * share, LEAST_PERCENT) for share in shares if share is not None]
        if len(known) == len(shares):
            points.append(Point(x=trial, y=known[0], y_ends=(known[1], known[2])))
    return points


def _success(report: Report, kinds: Mapping[str, str]) -> Panel:
    series = []
    for summary in report.summaries:
        points = [
            Point(x=mark, y=100 * share, tip=f"{summary.strategy}: {100 * share:.0f} % in {mark}")
            for mark, share in summary.success.items()
        ]
        name = summary.strategy
        series.append(Series(name=name, kind=kinds[name], points=points, path="line"))
    return Panel(
        series=series,
        x=ChartAxis(label="trials", ticks=tuple((mark, str(mark)) for mark in MARKS)),
        y=ChartAxis(label="% of searches within reach", kind="zero"),
    )


if __name__ == "__main__":
    main()
