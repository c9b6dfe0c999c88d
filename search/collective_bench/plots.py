"""Plots of a benchmark analysis: each collective against the baseline, and over all labels."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogFormatter, NullLocator, StrMethodFormatter

from evaluator.timing.bench_csv import ABSENT
from search.collective_bench.output import size_words
from search.collective_bench.results import DevicePoint, Figures, Results
from search.collective_bench.verdicts import Analysis, Limits, PairVerdicts, PointVerdict, Standing
from search.views.format import one_line

OWN_COLOUR: Final = "#d1603d"
BASELINE_COLOUR: Final = "#3d5a80"
PANEL_INCHES: Final = 3.6
MOST_TICKS: Final = 14
TITLE_CHARS: Final = 110
LEAST_DRAWN: Final = 1e-12
MOST_DRAWN: Final = 1e15
"""What is beyond is no result, and more than an axis holds."""


def panels(variants: Sequence[DevicePoint], title: str) -> tuple[Figure, list[Axes]]:
    """A figure with one panel for each variant, below each other."""
    figure = Figure(figsize=(8.5, 0.8 + PANEL_INCHES * len(variants)), layout="constrained")
    figure.suptitle(one_line(title, TITLE_CHARS), fontsize=11, parse_math=False)
    axes = [each for row in figure.subplots(len(variants), squeeze=False) for each in row]
    for each, variant in zip(axes, variants, strict=True):
        words = one_line(variant.variant_words, TITLE_CHARS)
        each.set_title(words, fontsize=9, color="#555555", parse_math=False)
        each.grid(visible=True, alpha=0.25)
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def variants_of(points: Iterable[DevicePoint]) -> list[DevicePoint]:
    """What differs in more than its size, once each, in order."""
    return list(dict.fromkeys(point.variant for point in points))


def is_drawable(value: float) -> bool:
    """Whether a logarithmic axis can show it."""
    return LEAST_DRAWN < value < MOST_DRAWN


def size_axis(axes: Axes, sizes: Sequence[int]) -> None:
    """Put message sizes on the x axis, by their logarithm where they have one."""
    if min(sizes) > 0:
        axes.set_xscale("log", base=2)
    every = -(-len(sizes) // MOST_TICKS)
    shown = sizes[::every]
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([size_words(size) for size in shown], fontsize=8)
    axes.set_xlabel("message size, bytes (powers of 1024)")


def log_axis(axes: Axes) -> None:
    """Make the y axis logarithmic, with numbers as they are written."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.0, 0.4)))
    axes.tick_params(axis="y", which="both", labelsize=8)


def finish(figure: Figure, all_axes: Sequence[Axes]) -> None:
    """Put one legend below all panels, with each name once."""
    named = {
        name: handle
        for axes in all_axes
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        list(named.values()),
        list(named),
        loc="outside lower center",
        ncols=min(len(named), 6),
        fontsize=8,
        frameon=False,
    )


MARKS: Final = {
    Standing.REGRESSION: ("v", "#c1121f"),
    Standing.IMPROVEMENT: ("^", "#2a9d4b"),
    Standing.NEUTRAL: ("o", "#8d99ae"),
}
CLAIMS: Final = (Standing.REGRESSION, Standing.IMPROVEMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One collective of a pair: all that its plots show; `points` are those of either side."""

    name: str
    own: Results
    baseline: Results
    verdicts: PairVerdicts
    limits: Limits
    points: tuple[DevicePoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """Something that is drawn against the size; None where a point has none."""

    name: str
    words: str
    axis: str
    value: Callable[[Figures], float | None]
    change: Callable[[PointVerdict], float | None]
    is_latency: bool

    def at(self, results: Results, point: DevicePoint) -> float | None:
        """What a side reached, if that is more than nothing."""
        found = results.figures.get(point)
        value = self.value(found) if found else None
        return value if value is not None and is_drawable(value) else None


LATENCY: Final = Quantity(
    name="latency",
    words="latency",
    axis="LatAvg, us",
    value=lambda figures: figures.latency_us,
    change=lambda verdict: verdict.latency_change,
    is_latency=True,
)
BANDWIDTH: Final = Quantity(
    name="busbw",
    words="bus bandwidth",
    axis="BusBw, GB/s",
    value=lambda figures: figures.bus_gb_per_s,
    change=lambda verdict: verdict.bandwidth_change,
    is_latency=False,
)
QUANTITIES: Final = (LATENCY, BANDWIDTH)


def pair_figures(scene: Scene) -> Iterator[tuple[str, Figure]]:
    """Each plot that there is something to draw in, with the end of its file's name."""
    for quantity in QUANTITIES:
        own, base = (
            [each for each in scene.points if quantity.at(side, each)]
            for side in (scene.own, scene.baseline)
        )
        if own and base:
            reached = [each for each in scene.points if each in own or each in base]
            yield quantity.name, _reached(scene, quantity, reached)
    for quantity in QUANTITIES:
        compared = _compared(scene, quantity)
        if compared:
            yield f"relative_{quantity.name}", _relative(scene, quantity, list(compared))


def _compared(scene: Scene, quantity: Quantity) -> dict[DevicePoint, PointVerdict]:
    """Points with a change of the quantity."""
    told = scene.verdicts.points
    return {
        point: told[point]
        for point in scene.points
        if point in told
        and (change := quantity.change(told[point])) is not None
        and abs(change) < MOST_DRAWN
    }


def _reached(scene: Scene, quantity: Quantity, points: Sequence[DevicePoint]) -> Figure:
    """What both sides reach, with the range of their latencies, and marks where they differ."""
    variants = variants_of(points)
    own, baseline = scene.own, scene.baseline
    title = f"{scene.name}: {quantity.words} of {own.label} and {baseline.label}"
    figure, all_axes = panels(variants, title)
    told = scene.verdicts.points
    for axes, variant in zip(all_axes, variants, strict=True):
        here = [each for each in points if each.variant == variant]
        for side, colour, line in ((baseline, BASELINE_COLOUR, "--"), (own, OWN_COLOUR, "-")):
            _curve(axes, side, quantity, here, colour, line)
        for standing in CLAIMS:
            at = {
                each.point.size_bytes: value
                for each in here
                if each in told
                and told[each].standing is standing
                and (value := quantity.at(own, each))
            }
            _mark(axes, standing, at)
        if quantity.is_latency:
            log_axis(axes)
        else:
            axes.set_ylim(bottom=0)
        axes.set_ylabel(quantity.axis)
        size_axis(axes, sorted({each.point.size_bytes for each in here}))
    finish(figure, all_axes)
    return figure


def _curve(
    axes: Axes,
    side: Results,
    quantity: Quantity,
    points: Sequence[DevicePoint],
    colour: str,
    line: str,
) -> None:
    at = {each: value for each in points if (value := quantity.at(side, each))}
    sizes = [each.point.size_bytes for each in at]
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
    """Least and most latency; the average where they are not told or cannot be drawn."""
    low, high = (
        value if value is not None and is_drawable(value) else figures.latency_us
        for value in (figures.least_us, figures.most_us)
    )
    return low, high


def _relative(scene: Scene, quantity: Quantity, points: Sequence[DevicePoint]) -> Figure:
    """Change against the baseline in percent, above 0 is better; the thresholds are shaded."""
    variants = variants_of(points)
    own, baseline = scene.own.label, scene.baseline.label
    title = f"{scene.name}: {quantity.words} of {own} against {baseline}, higher is better"
    figure, all_axes = panels(variants, title)
    told = _compared(scene, quantity)
    for axes, variant in zip(all_axes, variants, strict=True):
        here = {each: told[each] for each in points if each.variant == variant}
        _changes(axes, quantity, here)
        if quantity.is_latency:
            limits = (-scene.limits.regression_percent, scene.limits.improvement_percent)
            axes.axhspan(*limits, color="#8d99ae", alpha=0.15, linewidth=0, label="thresholds")
        axes.axhline(0, color="#555555", linewidth=0.8)
        axes.set_ylabel(f"change of {quantity.words}, %")
        size_axis(axes, sorted({each.point.size_bytes for each in here}))
    finish(figure, all_axes)
    return figure


def _changes(axes: Axes, quantity: Quantity, told: dict[DevicePoint, PointVerdict]) -> None:
    changes = {
        point: change
        for point, verdict in told.items()
        if (change := quantity.change(verdict)) is not None
    }
    sizes = [point.point.size_bytes for point in changes]
    axes.plot(sizes, list(changes.values()), "-", color="#8d99ae", linewidth=1)
    if quantity.is_latency:
        for point, verdict in told.items():
            if verdict.low is not None and verdict.high is not None:
                ends = (verdict.low, verdict.high)
                axes.vlines(point.point.size_bytes, *ends, color="#555555", linewidth=1.2)
    for standing in MARKS:
        at = {p.point.size_bytes: changes[p] for p in changes if told[p].standing is standing}
        _mark(axes, standing, at)


def _mark(axes: Axes, standing: Standing, at: dict[int, float]) -> None:
    if at:
        marker, colour = MARKS[standing]
        axes.scatter(
            list(at), list(at.values()), marker=marker, s=42, color=colour, zorder=3, label=standing
        )


Colour: TypeAlias = tuple[float, float, float, float]
MOST_NAMED: Final = 12
"""Sizes that the legend names; colours tell where the others are between them."""


def history_figures(
    found: Analysis, name: str, points: tuple[DevicePoint, ...]
) -> Iterator[tuple[str, Figure]]:
    """Latency and bus bandwidth of a collective, with the end of each file's name."""
    for quantity in QUANTITIES:
        reached = [
            point
            for point in points
            if any(quantity.at(results, point) for results in found.results)
        ]
        if not reached:
            continue
        variants = variants_of(reached)
        title = f"{name}: {quantity.words} over {len(found.results)} labels"
        figure, all_axes = panels(variants, title)
        colours = _colours(reached)
        for axes, variant in zip(all_axes, variants, strict=True):
            here = [each for each in reached if each.variant == variant]
            _draw(axes, found.results, quantity, here, colours)
        finish(figure, all_axes)
        yield quantity.name, figure


def _colours(points: Sequence[DevicePoint]) -> Mapping[int, tuple[Colour, str | None]]:
    """A colour for each size, the same in all panels, and a name for some of them."""
    sizes = sorted({each.point.size_bytes for each in points})
    colours = colormaps["viridis"].resampled(max(len(sizes), 2))
    every = -(-len(sizes) // MOST_NAMED)
    return {
        size: (colours(number), size_words(size) if number % every == 0 else None)
        for number, size in enumerate(sizes)
    }


def _draw(
    axes: Axes,
    labels: Sequence[Results],
    quantity: Quantity,
    points: Sequence[DevicePoint],
    colours: Mapping[int, tuple[Colour, str | None]],
) -> None:
    for point in points:
        values = [quantity.at(results, point) for results in labels]
        reached = [(place, value) for place, value in enumerate(values) if value is not None]
        colour, name = colours[point.point.size_bytes]
        axes.plot(
            *zip(*reached, strict=True),
            marker="o",
            markersize=4,
            linewidth=1.2,
            color=colour,
            label=name,
        )
    axes.set_xticks(range(len(labels)), [_tick(each) for each in labels], fontsize=8)
    axes.set_xlim(-0.3, len(labels) - 0.7)
    log_axis(axes)
    axes.set_ylabel(quantity.axis)


def _tick(results: Results) -> str:
    """A label with the versions behind it."""
    versions = [results.told(column) for column in ("CommBackend", "CommBackendVersion")]
    backend = " ".join(version for version in versions if version != ABSENT)
    return f"{results.label}\ntorch {results.told('TorchVersion')}\n{backend}"
