"""What searches find, and what it takes, on landscapes of which every point is known.

Each search is the one that `cclsearch run` makes, with simulated launches: once with the default
budget and its stop rules, for what a user gets, and once for `--trials` trials without them, for
curves. Peers search in the same loop: `gp` needs scikit-learn, `optuna-gp`, which is not asked by
default as it takes five times as long, Optuna and torch. The terms are those of `cclsearch bench
search`.

Tuned on were the measured landscapes, the recorded ones and generated ones with seeds up to 20.
Nothing was tuned on the generated ones here, nor on any of `unseen_landscapes.py`.

    python benchmarks/search_efficiency.py --out results
    python benchmarks/search_efficiency.py --searches 5 --landscapes 'dense-*,nccl'
    python benchmarks/search_efficiency.py --strategies offline --runs results/runs.jsonl

Searches in the file of `--runs` are not repeated, so an interrupted benchmark continues; remove the
lines of a strategy that was changed.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import chain, cycle
from pathlib import Path
from time import perf_counter
from typing import Final

from generated_landscapes import generate_landscape
from recorded_landscapes import recorded_landscapes
from search_peers import PEERS
from unseen_landscapes import KINDS, unseen_landscape

from records.codec import from_document, to_json
from records.errors import StudyError
from search.strategies.catalog import CHOOSERS
from search.strategy_bench.comparison import (
    MARKS,
    RIVALS,
    Comparison,
    Curve,
    Report,
    compare_runs,
    comparison_document,
)
from search.strategy_bench.landscape import Landscape
from search.strategy_bench.run import MEASURED, Run, Terms, landscapes_of, run_searches
from search.views.charts import TONES, Panel, Point, Series, xy_chart
from search.views.format import format_elapsed
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
STRATEGIES = f"{HYBRID},gp,tpe,coordinate,random"
USUAL_S: Final[Mapping[str, float]] = {HYBRID: 5.0, "gp": 2.5, "optuna-gp": 25.0, "coordinate": 2.5}
"""Seconds of a core for a search of 40 trials and one with the default budget."""
OTHERS_S: Final = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description="What searches find on known landscapes.")
    parser.add_argument("--strategies", default=STRATEGIES, help="with commas; %(default)s")
    parser.add_argument("--landscapes", default="*", help="patterns of names, with commas")
    parser.add_argument("--searches", type=int, default=20, help="of each strategy on each")
    parser.add_argument("--trials", type=int, default=40, help="of the searches for curves")
    parser.add_argument("--start", choices=("seed", "random"), default="random")
    parser.add_argument("--recorded", type=Path, default=RECORDED, help="folder of recorded ones")
    parser.add_argument("--runs", type=Path, help="searches, continued; default OUT/runs.jsonl")
    parser.add_argument("--out", type=Path, default=Path("search_efficiency"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found = landscapes(options.recorded, options.landscapes.split(","))
    terms = Terms(
        seeds=tuple(range(options.searches)),
        trial_count=options.trials,
        start=options.start,
        others=PEERS,
    )
    strategies = asked_strategies(options.strategies)
    kept = Kept(options.runs or options.out / "runs.jsonl", terms)
    runs = search_all(found, strategies, terms, kept)
    comparison = compare_runs(found, runs, terms, 0.05)
    print_document(comparison_document(comparison))
    report_ratios(comparison)
    document, picture = options.out / "search_benchmark.json", options.out / "search_benchmark.svg"
    document.write_text(to_json(comparison, indent=1) + "\n", encoding="utf-8")
    drawn = draw(comparison.reports, reach=comparison.reach)
    picture.write_text(standalone(drawn), encoding="utf-8")
    print(f"written: {document}, {picture}")


def landscapes(recorded: Path, patterns: Sequence[str]) -> list[Landscape]:
    """Return the landscapes whose names match; generated ones are only made if they do."""

    def is_asked(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    found = [*landscapes_of(MEASURED)]
    try:
        found += recorded_landscapes(recorded)
    except StudyError as error:
        print(f"left out: {error}", file=sys.stderr)
    found = [landscape for landscape in found if is_asked(landscape.name)]
    found += [generate_landscape(name) for name in filter(is_asked, GENERATED)]
    found += [unseen_landscape(kind) for kind in filter(is_asked, KINDS)]
    if not found:
        raise SystemExit(f"--landscapes {','.join(patterns)}: no landscape has such a name")
    return found


def asked_strategies(words: str) -> tuple[str, ...]:
    known = [*CHOOSERS, *PEERS]
    names = tuple(words.split(","))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"--strategies {unknown[0]}: known are {', '.join(known)}")
    return names


@dataclass(frozen=True, slots=True)
class Kept:
    """The file of searches that were made, one a line."""

    path: Path
    terms: Terms

    def read(self) -> Iterator[tuple[str, Run]]:
        """Yield the landscape and the search of each line that was made on the same terms."""
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                told = json.loads(line)
                if told["terms"] == self._terms:
                    yield told["landscape"], from_document(Run, told["run"])

    def append(self, landscape: str, runs: Sequence[Run]) -> None:
        """Add the searches of a landscape."""
        with self.path.open("a", encoding="utf-8") as file:
            for run in runs:
                line = {"landscape": landscape, "terms": self._terms}
                file.write(json.dumps({**line, "run": json.loads(to_json(run))}) + "\n")

    @property
    def _terms(self) -> list[object]:
        return [self.terms.trial_count, self.terms.start]


def search_all(
    found: Sequence[Landscape], strategies: Sequence[str], terms: Terms, kept: Kept
) -> Mapping[str, Mapping[str, Sequence[Run]]]:
    """Make every search that is not in the file, one after the other."""
    done = {(name, run.strategy, run.seed): run for name, run in kept.read()}
    missing = [
        (landscape, strategy, seed)
        for seed in terms.seeds
        for landscape in found
        for strategy in strategies
        if (landscape.name, strategy, seed) not in done
    ]
    usual_s = sum(USUAL_S.get(strategy, OTHERS_S) for _, strategy, _ in missing)
    about = format_elapsed(usual_s * terms.trial_count / 40)
    print(f"{len(missing)} searches, about {about} on one core", file=sys.stderr)
    began = perf_counter()
    for count, (landscape, strategy, seed) in enumerate(missing):
        took_s = perf_counter() - began
        words = f"{count} of {len(missing)} after {took_s:.0f} s: {strategy} on {landscape.name}"
        print(f"\r{words:<78}", end="", file=sys.stderr)
        runs = run_searches(landscape, strategy, replace(terms, seeds=(seed,)))
        kept.append(landscape.name, runs)
        done[landscape.name, strategy, seed] = runs[0]
    print(file=sys.stderr)
    return {
        landscape.name: {
            strategy: [done[landscape.name, strategy, seed] for seed in terms.seeds]
            for strategy in strategies
        }
        for landscape in found
    }


def report_ratios(found: Comparison) -> None:
    rivals = [name for name in (*PEERS, *RIVALS) if name in found.strategies]
    print(f"{'median trials to a hit: ' + HYBRID + ' to':<44}", *(f"{r:>13}" for r in rivals))
    for report in found.reports:
        words = (f"{ratio_words(report, rival, found.trial_count):>13}" for rival in rivals)
        print(f"  {report.landscape:<42}", *words)


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
