"""What all plots of benchmarks share: panels, size axes, and names that are nothing but text."""

from collections.abc import Iterable, Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogFormatter, NullLocator, StrMethodFormatter

from search.bench_analysis.points import DevicePoint
from search.bench_analysis.tables import size_words
from search.words.trial import one_line

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
