"""Plots of one collective over the labels in the order given, a curve for each message size."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evaluator.timing.bench_csv import ABSENT
from search.bench_analysis.analysis import Analysis
from search.bench_analysis.curves import finish, log_axis, panels, variants_of
from search.bench_analysis.pair_plots import QUANTITIES, Quantity
from search.bench_analysis.points import DevicePoint
from search.bench_analysis.results import Results
from search.bench_analysis.tables import size_words

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
