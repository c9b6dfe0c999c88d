"""Plots of a benchmark analysis: each collective against the baseline, and over all labels."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogFormatter, NullLocator, StrMethodFormatter

from evaluator.timing.bench_csv import ABSENT
from search.collective_bench.results import DevicePoint, Figures, Results, size_words
from search.collective_bench.verdicts import Analysis, Limits, PairVerdicts, Standing
from search.traces.plots import add_legend, draw_plain
from search.views.format import one_line

OWN_COLOUR: Final = "#d1603d"
BASELINE_COLOUR: Final = "#3d5a80"
NEUTRAL_COLOUR: Final = "#8d99ae"
PANEL_INCHES: Final = 3.6
MOST_TICKS: Final = 14
TITLE_CHARS: Final = 110
LEAST_DRAWN: Final = 1e-12
MOST_DRAWN: Final = 1e15
"""What is beyond is not a result, and more than an axis holds."""
MOST_NAMED: Final = 12
"""Sizes that the legend names; colours place the others between them."""
MARKS: Final = {
    Standing.REGRESSION: ("v", "#c1121f"),
    Standing.IMPROVEMENT: ("^", "#2a9d4b"),
    Standing.NEUTRAL: ("o", NEUTRAL_COLOUR),
}


@dataclass(frozen=True, slots=True)
class Quantity:
    """Latency or bus bandwidth, drawn against the message size."""

    name: str
    words: str
    axis: str
    is_latency: bool

    def of(self, results: Results, points: Sequence[DevicePoint]) -> dict[DevicePoint, float]:
        """What a side reached at each point that has a value that a logarithmic axis shows."""
        at = {each: results.figures[each] for each in points if each in results.figures}
        values = {
            each: f.latency_us if self.is_latency else f.bus_gb_per_s for each, f in at.items()
        }
        return {each: drawn for each, value in values.items() if (drawn := _drawable(value))}

    def changes(
        self, pair: PairVerdicts, points: Sequence[DevicePoint]
    ) -> dict[DevicePoint, float]:
        """Changes against the baseline in percent, above 0 is better."""
        at = {each: pair.points[each] for each in points if each in pair.points}
        changes = {
            e: v.latency_change if self.is_latency else v.bandwidth_change for e, v in at.items()
        }
        return {e: c for e, c in changes.items() if c is not None and abs(c) < MOST_DRAWN}


QUANTITIES: Final = (
    Quantity("latency", "latency", "LatAvg, us", is_latency=True),
    Quantity("busbw", "bus bandwidth", "BusBw, GB/s", is_latency=False),
)


def pair_figures(
    found: Analysis, pair: PairVerdicts, name: str, points: Sequence[DevicePoint]
) -> Iterator[tuple[str, Figure]]:
    """Each plot of one collective that has something to draw, with the end of its file's name."""
    own, baseline = pair.own, pair.base
    for quantity in QUANTITIES:
        reached = [quantity.of(side, points) for side in (own, baseline)]
        if all(reached):
            either = [each for each in points if any(each in side for side in reached)]
            title = f"{name}: {quantity.words} of {own.label} and {baseline.label}"
            yield quantity.name, _reached(own, baseline, pair, quantity, either, title)
    for quantity in QUANTITIES:
        changes = quantity.changes(pair, points)
        if changes:
            words = f"{quantity.words} of {own.label} against {baseline.label}"
            figure = _relative(
                pair, found.options.limits, quantity, changes, f"{name}: {words}, higher is better"
            )
            yield f"relative_{quantity.name}", figure


def history_figures(
    found: Analysis, name: str, points: Sequence[DevicePoint]
) -> Iterator[tuple[str, Figure]]:
    """Latency and bus bandwidth of a collective over all labels, with the end of each name."""
    for quantity in QUANTITIES:
        by_label = [quantity.of(side, points) for side in found.results]
        reached = [each for each in points if any(each in side for side in by_label)]
        if reached:
            title = f"{name}: {quantity.words} over {len(found.results)} labels"
            yield quantity.name, _history(found.results, quantity, by_label, reached, title)


def _reached(
    own: Results,
    baseline: Results,
    pair: PairVerdicts,
    quantity: Quantity,
    points: Sequence[DevicePoint],
    title: str,
) -> Figure:
    """What both sides reach, with the range of their latencies, and marks where they differ."""

    def draw(axes: Axes, here: Sequence[DevicePoint]) -> None:
        for side, colour, line in ((baseline, BASELINE_COLOUR, "--"), (own, OWN_COLOUR, "-")):
            _curve(axes, side, quantity, here, colour, line)
        _mark(axes, pair, quantity.of(own, here), (Standing.REGRESSION, Standing.IMPROVEMENT))
        if quantity.is_latency:
            _log_axis(axes)
        else:
            axes.set_ylim(bottom=0)
        axes.set_ylabel(quantity.axis)
        _size_axis(axes, here)

    return _panels(points, title, draw)


def _relative(
    pair: PairVerdicts,
    limits: Limits,
    quantity: Quantity,
    changes: Mapping[DevicePoint, float],
    title: str,
) -> Figure:
    """Change against the baseline; of latencies with intervals, and the thresholds are shaded."""

    def draw(axes: Axes, here: Sequence[DevicePoint]) -> None:
        sizes = [each.size_bytes for each in here]
        axes.plot(sizes, [changes[each] for each in here], "-", color=NEUTRAL_COLOUR, linewidth=1)
        if quantity.is_latency:
            for each in here:
                verdict = pair.points[each]
                low, high = verdict.latency_change_low, verdict.latency_change_high
                if low is not None and high is not None:
                    axes.vlines(each.size_bytes, low, high, color="#555555", linewidth=1.2)
            span = (-limits.regression_percent, limits.improvement_percent)
            axes.axhspan(*span, color=NEUTRAL_COLOUR, alpha=0.15, linewidth=0, label="thresholds")
        _mark(axes, pair, {each: changes[each] for each in here}, tuple(MARKS))
        axes.axhline(0, color="#555555", linewidth=0.8)
        axes.set_ylabel(f"change of {quantity.words}, %")
        _size_axis(axes, here)

    return _panels(list(changes), title, draw)


def _history(
    labels: Sequence[Results],
    quantity: Quantity,
    by_label: Sequence[Mapping[DevicePoint, float]],
    points: Sequence[DevicePoint],
    title: str,
) -> Figure:
    """A line for each size over the labels; a colour stands for one size in all panels."""
    sizes = sorted({each.size_bytes for each in points})
    colours = colormaps["viridis"].resampled(max(len(sizes), 2))
    every = -(-len(sizes) // MOST_NAMED)

    def draw(axes: Axes, here: Sequence[DevicePoint]) -> None:
        for point in here:
            reached = [(n, values[point]) for n, values in enumerate(by_label) if point in values]
            number = sizes.index(point.size_bytes)
            axes.plot(
                *zip(*reached, strict=True),
                marker="o",
                markersize=4,
                linewidth=1.2,
                color=colours(number),
                label=None if number % every else size_words(point.size_bytes),
            )
        axes.set_xticks(range(len(labels)), [_tick(each) for each in labels], fontsize=8)
        axes.set_xlim(-0.3, len(labels) - 0.7)
        _log_axis(axes)
        axes.set_ylabel(quantity.axis)

    return _panels(points, title, draw)


def _panels(
    points: Sequence[DevicePoint],
    title: str,
    draw: Callable[[Axes, Sequence[DevicePoint]], None],
) -> Figure:
    """A panel for what differs in more than its size, below each other, and one legend for all."""
    variants = list(dict.fromkeys(point.variant for point in points))
    figure = Figure(figsize=(8.5, 0.8 + PANEL_INCHES * len(variants)), layout="constrained")
    figure.suptitle(one_line(title, TITLE_CHARS), fontsize=11, parse_math=False)
    for axes, variant in zip(
        figure.subplots(len(variants), squeeze=False)[:, 0], variants, strict=True
    ):
        words = one_line(variant.variant_words, TITLE_CHARS)
        axes.set_title(words, fontsize=9, color="#555555", parse_math=False)
        draw_plain(axes)
        draw(axes, [each for each in points if each.variant == variant])
    add_legend(figure, 6)
    return figure


def _size_axis(axes: Axes, points: Sequence[DevicePoint]) -> None:
    """Put message sizes on the x axis, by their logarithm where they have one."""
    sizes = sorted({each.size_bytes for each in points})
    if min(sizes) > 0:
        axes.set_xscale("log", base=2)
    shown = sizes[:: -(-len(sizes) // MOST_TICKS)]
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([size_words(size) for size in shown], fontsize=8)
    axes.set_xlabel("message size, bytes (powers of 1024)")


def _log_axis(axes: Axes) -> None:
    """Make the y axis logarithmic, with numbers as they are written."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.0, 0.4)))
    axes.tick_params(axis="y", which="both", labelsize=8)


def _curve(
    axes: Axes,
    side: Results,
    quantity: Quantity,
    points: Sequence[DevicePoint],
    colour: str,
    line: str,
) -> None:
    at = quantity.of(side, points)
    sizes = [each.size_bytes for each in at]
    axes.plot(
        sizes, list(at.values()), line, marker=".", markersize=5, color=colour, label=side.label
    )
    if not quantity.is_latency:
        return
    spread = [_range(side.figures[each]) for each in at]
    if any(low < high for low, high in spread):
        lows, highs = zip(*spread, strict=True)
        label = f"{side.label}, least to most"
        if len(sizes) > 1:
            axes.fill_between(
                sizes, lows, highs, color=colour, alpha=0.15, linewidth=0, label=label
            )
        else:
            axes.vlines(sizes, lows, highs, color=colour, alpha=0.3, linewidth=4, label=label)


def _range(figures: Figures) -> tuple[float, float]:
    """Least and most latency; the average where they are not given or cannot be drawn."""
    low, high = _drawable(figures.least_us), _drawable(figures.most_us)
    return low or figures.latency_us, high or figures.latency_us


def _drawable(value: float | None) -> float | None:
    return value if value is not None and LEAST_DRAWN < value < MOST_DRAWN else None


def _mark(
    axes: Axes,
    pair: PairVerdicts,
    values: Mapping[DevicePoint, float],
    standings: Sequence[Standing],
) -> None:
    for standing in standings:
        at = {
            each.size_bytes: value
            for each, value in values.items()
            if each in pair.points and pair.points[each].standing is standing
        }
        if at:
            marker, colour = MARKS[standing]
            sizes, heights = list(at), list(at.values())
            axes.scatter(
                sizes, heights, marker=marker, s=42, color=colour, zorder=3, label=standing
            )


def _tick(results: Results) -> str:
    """A label with the versions behind it."""
    versions = [results.text(column) for column in ("CommBackend", "CommBackendVersion")]
    backend = " ".join(version for version in versions if version != ABSENT)
    return f"{results.label}\ntorch {results.text('TorchVersion')}\n{backend}"
