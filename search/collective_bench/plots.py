"""Charts of a benchmark analysis: latency and bus bandwidth of each collective over its sizes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Final

from search.collective_bench.results import DevicePoint, Figures, Results, size_words
from search.collective_bench.verdicts import Analysis, PairVerdicts, Standing
from search.views.charts import TONES, Panel, Point, Series, xy_chart
from search.views.format import format_number, one_line
from search.views.svg import ChartAxis, Shape

TITLE_CHARS: Final = 110
LEAST_DRAWN: Final = 1e-12
MOST_DRAWN: Final = 1e15
"""What is beyond is not a result, and more than an axis holds."""
MARKS: Final[Mapping[Standing, tuple[str, Shape]]] = {
    Standing.REGRESSION: ("failure", "down"),
    Standing.IMPROVEMENT: ("best", "up"),
}


@dataclass(frozen=True, slots=True)
class Quantity:
    """Latency or bus bandwidth, drawn against the message size."""

    name: str
    words: str
    axis: ChartAxis
    unit: str
    is_latency: bool

    def of(self, results: Results, points: Sequence[DevicePoint]) -> dict[DevicePoint, float]:
        """What a side reached at each point that has a value that a logarithmic axis shows."""
        at = {each: results.figures[each] for each in points if each in results.figures}
        values = {
            each: f.latency_us if self.is_latency else f.bus_gb_per_s for each, f in at.items()
        }
        return {each: drawn for each, value in values.items() if (drawn := _drawable(value))}


QUANTITIES: Final = (
    Quantity(
        "latency", "latency", ChartAxis(label="LatAvg, us", kind="log"), "us", is_latency=True
    ),
    Quantity(
        "busbw",
        "bus bandwidth",
        ChartAxis(label="BusBw, GB/s", kind="zero"),
        "GB/s",
        is_latency=False,
    ),
)


def collective_charts(found: Analysis, points: Sequence[DevicePoint]) -> Iterator[tuple[str, str]]:
    """Charts of one collective over all labels, each with the end of its file's name."""
    for quantity in QUANTITIES:
        by_label = [quantity.of(side, points) for side in found.results]
        drawn = [each for each in points if any(each in side for side in by_label)]
        panels = []
        for variant in dict.fromkeys(point.variant for point in drawn):
            here = [each for each in drawn if each.variant == variant]
            words = one_line(variant.variant_words, TITLE_CHARS)
            panels.append(replace(_panel(found, quantity, here), heading=words))
        if panels:
            title = f"{points[0].name}: {quantity.words}"
            panels[0] = replace(panels[0], heading=f"{title}; {panels[0].heading}")
            yield quantity.name, xy_chart(*panels, title=title)


def _panel(found: Analysis, quantity: Quantity, points: Sequence[DevicePoint]) -> Panel:
    """A curve for each label, with marks where it regressed or improved."""
    kinds = cycle(f"tone{number}" for number in range(TONES))
    series = list[Series]()
    for side, kind in zip(found.results, kinds, strict=False):
        series += _curve(side, quantity, points, kind)
    for pair in found.pairs:
        series += _marked(pair, quantity.of(pair.own, points), quantity.unit)
    return Panel(series=series, x=_size_axis(points), y=quantity.axis)


def _size_axis(points: Sequence[DevicePoint]) -> ChartAxis:
    """Message sizes, by their logarithm where they have one."""
    sizes = sorted({each.size_bytes for each in points})
    return ChartAxis(
        label="message size, bytes (powers of 1024)",
        kind="log" if sizes[0] > 0 else "linear",
        ticks=tuple((float(size), size_words(size)) for size in sizes),
    )


def _curve(
    side: Results, quantity: Quantity, points: Sequence[DevicePoint], kind: str
) -> Iterator[Series]:
    at = quantity.of(side, points)
    reached = [
        Point(
            x=each.size_bytes,
            y=value,
            y_ends=_range(side.figures[each]) if quantity.is_latency else None,
            tip=f"{side.label}, {size_words(each.size_bytes)}: "
            f"{format_number(value)} {quantity.unit}",
        )
        for each, value in at.items()
    ]
    if quantity.is_latency and len(reached) > 1:
        name = f"{side.label}, min to max"
        yield Series(name=name, kind=kind, points=reached, shape=None, path="band")
        reached = [replace(each, y_ends=None) for each in reached]
    yield Series(name=side.label, kind=kind, points=reached, path="line")


def _range(figures: Figures) -> tuple[float, float]:
    """Least and most latency; the average where they are not given or cannot be drawn."""
    low, high = _drawable(figures.least_us), _drawable(figures.most_us)
    return low or figures.latency_us, high or figures.latency_us


def _drawable(value: float | None) -> float | None:
    return value if value is not None and LEAST_DRAWN < value < MOST_DRAWN else None


def _marked(pair: PairVerdicts, values: Mapping[DevicePoint, float], unit: str) -> Iterator[Series]:
    for standing, (kind, shape) in MARKS.items():
        points = [
            Point(
                x=each.size_bytes,
                y=value,
                tip=f"{standing} of {pair.own.label}, {size_words(each.size_bytes)}: "
                f"{format_number(value)} {unit}",
            )
            for each, value in values.items()
            if each in pair.points and pair.points[each].standing is standing
        ]
        yield Series(name=standing, kind=kind, shape=shape, points=points, is_main=True)
