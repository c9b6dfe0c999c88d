"""One picture of a benchmark: regret over trials, and success rates, for each landscape."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from search.search_bench.summary import MARKS, Report, Summary

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
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, 2, squeeze=False, width_ratios=(2, 1))
    colours = _colours(reports)
    for report, (left, right) in zip(reports, axes, strict=True):
        _draw_regret(left, report, colours, reach)
        _draw_success(right, report, colours)
    handles = {
        str(line.get_label()): line
        for left, _ in axes
        for line in left.get_lines()
        if not str(line.get_label()).startswith("_")
    }
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=max(1, min(len(handles), 8)),
        frameon=False,
    )
    figure.savefig(path, dpi=110)


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
    known = [
        (number, mean, low, high)
        for number, (mean, low, high) in enumerate(
            zip(curve.mean, curve.low, curve.high, strict=True), start=1
        )
        if mean is not None and low is not None and high is not None
    ]
    if not known:
        return
    numbers, means, lows, highs = zip(*known, strict=True)
    axes.plot(numbers, _percent(means), color=colour, linewidth=1.6, label=summary.strategy)
    axes.fill_between(numbers, _percent(lows), _percent(highs), color=colour, alpha=0.12)


def _draw_success(axes: Axes, report: Report, colours: dict[str, str]) -> None:
    count = len(report.summaries)
    for n, summary in enumerate(report.summaries):
        places = [
            mark_place + (n - (count - 1) / 2) * 0.8 / count for mark_place in range(len(MARKS))
        ]
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


def _percent(shares: Sequence[float]) -> list[float]:
    return [max(100 * share, LEAST_PERCENT) for share in shares]
