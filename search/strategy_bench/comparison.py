"""Run a whole strategy benchmark, and draw regret and success rates of each landscape."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from records.codec import to_json
from records.errors import CclsearchError, StudyError, suggestion
from search.compose import MODEL_TURNS
from search.strategies.catalog import CHOOSERS
from search.strategy_bench.landscape import Ground, Landscape
from search.strategy_bench.run import Asking, Done, Start, Terms, run_all
from search.strategy_bench.summary import MARKS, Report, Summary, report
from search.traces.plots import add_legend, save

COLOURS: Final = (
    *("#d1603d", "#3d5a80", "#5b8e7d", "#8a6fb0", "#c9a227", "#7d7d7d"),
    *("#2f9fc1", "#a33b5e"),
)
LEAST_PERCENT: Final = 0.1
"""What the logarithmic axis shows of no regret at all."""


def draw(reports: Sequence[Report], path: Path, *, reach: float) -> None:
    """Draw all reports into a PNG: left the regret, right the success rates."""
    rows = len(reports)
    figure = Figure(figsize=(11, 0.8 + 3.0 * rows), layout="constrained")
    axes = figure.subplots(rows, 2, squeeze=False, width_ratios=(2, 1))
    colours = _colours(reports)
    for one, (left, right) in zip(reports, axes, strict=True):
        _draw_regret(left, one, colours, reach)
        _draw_success(right, one, colours)
    add_legend(figure, 8)
    save(figure, path)


def _colours(reports: Sequence[Report]) -> dict[str, str]:
    names = dict.fromkeys(each.strategy for report in reports for each in report.summaries)
    return {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(names)}


def _draw_regret(axes: Axes, report: Report, colours: dict[str, str], reach: float) -> None:
    for summary in report.summaries:
        _draw_curve(axes, summary, colours[summary.strategy])
    axes.axhline(100 * reach, color="#999999", linewidth=0.8, linestyle=":")
    axes.set_yscale("log")
    axes.set_ylabel("% above the best")
    axes.set_xlabel("trial")
    title = f"{report.landscape}: {report.size} configurations, {report.target_count} targets"
    axes.set_title(title, fontsize=9, parse_math=False)
    _plain(axes)


def _draw_curve(axes: Axes, summary: Summary, colour: str) -> None:
    curve = summary.regret
    mean, low, high = (
        np.maximum(100 * np.array(line, dtype=np.float64), LEAST_PERCENT)  # None is NaN: a gap
        for line in (curve.mean, curve.low, curve.high)
    )
    trials = np.arange(1, mean.size + 1)
    axes.plot(trials, mean, color=colour, linewidth=1.6, label=summary.strategy)
    axes.fill_between(trials, low, high, color=colour, alpha=0.12)


def _draw_success(axes: Axes, report: Report, colours: dict[str, str]) -> None:
    count = len(report.summaries)
    for n, summary in enumerate(report.summaries):
        places = np.arange(len(MARKS)) + (n - (count - 1) / 2) * 0.8 / count
        rates = [100 * summary.success[mark] for mark in MARKS]
        axes.bar(places, rates, 0.8 / count, color=colours[summary.strategy])
    axes.set_xticks(range(len(MARKS)), [str(mark) for mark in MARKS])
    axes.set_ylim(0, 103)
    axes.set_xlabel("trials")
    axes.set_ylabel("% of searches within reach")
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


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
) -> Comparison:
    """Search every landscape with every strategy from every seed."""
    grounds = [Ground(landscape) for landscape in landscapes]
    seeds = tuple(range(seed_count))
    terms = Terms(seeds=seeds, trial_count=trial_count, start=start, asking=asking)
    runs = run_all(landscapes, strategies, terms, done=done)
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

    Those that query a model need `asking`.
    """
    names = tuple(CHOOSERS) if words is None else tuple(dict.fromkeys(words.split(",")))
    known = [*CHOOSERS, *MODEL_TURNS]
    for name in names:
        if name not in known:
            raise StudyError(f"strategy {name!r} cannot be benchmarked; {suggestion(name, known)}")
        if name in MODEL_TURNS and asking is None:
            raise StudyError(
                f"strategy {name!r} asks a model: give --transcripts FOLDER, where "
                "its responses are kept and found again"
            )
    return names


def write(comparison: Comparison, folder: Path) -> tuple[Path, Path]:
    """Write the JSON document and the picture; return their paths."""
    document, picture = folder / JSON_FILE, folder / PICTURE_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        document.write_text(to_json(comparison, indent=1) + "\n", encoding="utf-8")
        draw(comparison.reports, picture, reach=comparison.reach)
    except OSError as error:
        raise CclsearchError(f"{folder}: cannot be written: {error}") from error
    return document, picture
