"""Charts of a benchmark analysis: each collective against the baseline, and over all labels."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from evaluator.timing.bench_csv import ABSENT
from search.collective_bench.results import DevicePoint, Figures, Results, size_words
from search.collective_bench.verdicts import Analysis, Limits, PairVerdicts, Standing
from search.views.charts import SHADES, Panel, Point, Series, xy_chart
from search.views.format import format_number, one_line
from search.views.svg import ChartAxis, Shape

TITLE_CHARS: Final = 110
LEAST_DRAWN: Final = 1e-12
MOST_DRAWN: Final = 1e15
"""What is beyond is not a result, and more than an axis holds."""
MARKS: Final[Mapping[Standing, tuple[str, Shape]]] = {
    Standing.REGRESSION: ("failure", "down"),
    Standing.IMPROVEMENT: ("best", "up"),
    Standing.NEUTRAL: ("plain", "dot"),
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


def pair_charts(
    found: Analysis, pair: PairVerdicts, name: str, points: Sequence[DevicePoint]
) -> Iterator[tuple[str, str]]:
    """Each chart of one collective that has something to draw, with the end of its file's name."""
    own, baseline = pair.own, pair.base
    for quantity in QUANTITIES:
        reached = [quantity.of(side, points) for side in (own, baseline)]
        if all(reached):
            either = [each for each in points if any(each in side for side in reached)]
            title = f"{name}: {quantity.words} of {own.label} and {baseline.label}"
            yield quantity.name, _reached(pair, quantity, either, title)
    for quantity in QUANTITIES:
        changes = quantity.changes(pair, points)
        if changes:
            words = f"{quantity.words} of {own.label} against {baseline.label}"
            title = f"{name}: {words}, higher is better"
            drawn = _relative(pair, found.options.limits, quantity, changes, title)
            yield f"relative_{quantity.name}", drawn


def history_charts(
    found: Analysis, name: str, points: Sequence[DevicePoint]
) -> Iterator[tuple[str, str]]:
    """Latency and bus bandwidth of a collective over all labels, with the end of each name."""
    for quantity in QUANTITIES:
        by_label = [quantity.of(side, points) for side in found.results]
        reached = [each for each in points if any(each in side for side in by_label)]
        if reached:
            title = f"{name}: {quantity.words} over {len(found.results)} labels"
            yield quantity.name, _history(found.results, quantity, by_label, reached, title)


def _reached(
    pair: PairVerdicts, quantity: Quantity, points: Sequence[DevicePoint], title: str
) -> str:
    """What both sides reach, with the range of their latencies, and marks where they differ."""

    def draw(here: Sequence[DevicePoint]) -> Panel:
        differing = (Standing.REGRESSION, Standing.IMPROVEMENT)
        series = [
            *_curve(pair.base, quantity, here, "tone1"),
            *_curve(pair.own, quantity, here, "tone0"),
            *_marked(pair, quantity.of(pair.own, here), differing, quantity.unit),
        ]
        return Panel(series=series, x=_size_axis(here), y=quantity.axis)

    return _by_variant(points, title, draw)


def _relative(
    pair: PairVerdicts,
    limits: Limits,
    quantity: Quantity,
    changes: Mapping[DevicePoint, float],
    title: str,
) -> str:
    """Change against the baseline; of latencies with intervals, and the thresholds are shaded."""

    def draw(here: Sequence[DevicePoint]) -> Panel:
        sizes = [each.size_bytes for each in here]
        ends = min(sizes), max(sizes)
        thresholds = (-limits.regression_percent, limits.improvement_percent)
        shaded = [Point(x=x, y=0.0, y_ends=thresholds) for x in ends] * quantity.is_latency
        values = {each: changes[each] for each in here}
        line = [Point(x=each.size_bytes, y=change) for each, change in values.items()]
        series = [
            Series(name="thresholds", kind="plain", points=shaded, shape=None, path="band"),
            Series(name="", kind="plain", points=line, shape=None, path="line"),
            *_marked(pair, values, tuple(MARKS), "%", has_arms=quantity.is_latency),
        ]
        label = f"change of {quantity.words}, %"
        return Panel(series=series, x=_size_axis(here), y=ChartAxis(label=label, kind="linear"))

    return _by_variant(list(changes), title, draw)


def _history(
    labels: Sequence[Results],
    quantity: Quantity,
    by_label: Sequence[Mapping[DevicePoint, float]],
    points: Sequence[DevicePoint],
    title: str,
) -> str:
    """A line for each size over the labels; a colour stands for one size in all panels."""
    sizes = sorted({each.size_bytes for each in points})
    ticks = tuple((float(n), each.label) for n, each in enumerate(labels))

    def draw(here: Sequence[DevicePoint]) -> Panel:
        series = []
        for point in here:
            words = size_words(point.size_bytes)
            reached = [(n, values[point]) for n, values in enumerate(by_label) if point in values]
            marks = [
                Point(
                    x=n,
                    y=value,
                    name=words if n == reached[-1][0] else "",
                    tip=f"{words}, {_versions(labels[n])}: {format_number(value)} {quantity.unit}",
                )
                for n, value in reached
            ]
            shade = SHADES * sizes.index(point.size_bytes) // len(sizes)
            series.append(Series(name="", kind=f"shade{shade}", points=marks, path="line"))
        y = ChartAxis(label=quantity.axis.label, kind="log")
        return Panel(series=series, x=ChartAxis(label="", kind="linear", ticks=ticks), y=y)

    return _by_variant(points, title, draw)


def _by_variant(
    points: Sequence[DevicePoint], title: str, draw: Callable[[Sequence[DevicePoint]], Panel]
) -> str:
    """A panel for what differs in more than its size."""
    variants = list(dict.fromkeys(point.variant for point in points))
    panels = []
    for number, variant in enumerate(variants):
        panel = draw([each for each in points if each.variant == variant])
        words = one_line(variant.variant_words, TITLE_CHARS)
        panels.append(replace(panel, heading=words if number else f"{title}; {words}"))
    return xy_chart(*panels, title=title)


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
        name = f"{side.label}, least to most"
        yield Series(name=name, kind=kind, points=reached, shape=None, path="band")
        reached = [replace(each, y_ends=None) for each in reached]
    yield Series(name=side.label, kind=kind, points=reached, path="line")


def _range(figures: Figures) -> tuple[float, float]:
    """Least and most latency; the average where they are not given or cannot be drawn."""
    low, high = _drawable(figures.least_us), _drawable(figures.most_us)
    return low or figures.latency_us, high or figures.latency_us


def _drawable(value: float | None) -> float | None:
    return value if value is not None and LEAST_DRAWN < value < MOST_DRAWN else None


def _marked(
    pair: PairVerdicts,
    values: Mapping[DevicePoint, float],
    standings: Sequence[Standing],
    unit: str,
    *,
    has_arms: bool = False,
) -> Iterator[Series]:
    for standing in standings:
        kind, shape = MARKS[standing]
        points = []
        for each, value in values.items():
            verdict = pair.points.get(each)
            if verdict is None or verdict.standing is not standing:
                continue
            low, high = verdict.latency_change_low, verdict.latency_change_high
            points.append(
                Point(
                    x=each.size_bytes,
                    y=value,
                    y_ends=(low, high)
                    if has_arms and low is not None and high is not None
                    else None,
                    tip=f"{standing}, {size_words(each.size_bytes)}: {format_number(value)} {unit}",
                )
            )
        yield Series(name=standing, kind=kind, shape=shape, points=points, is_main=True)


def _versions(results: Results) -> str:
    """A label with the versions behind it."""
    columns = ("CommBackend", "CommBackendVersion")
    backend = " ".join(text for name in columns if (text := results.text(name)) != ABSENT)
    return f"{results.label}, torch {results.text('TorchVersion')} {backend}".rstrip()
