"""Charts as SVG: points and lines over two axes, rows of bars, parallel coordinates, sparkline."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Final, Literal, TypeAlias

from records.study import Value
from search.views import svg
from search.views.svg import BOTTOM, LEFT, RIGHT, WIDTH, ChartAxis, LegendEntry, Scale, Shape

MOST_STOPS: Final = 60
"""Marks of a chart at which keys stop; in a larger one they stop at those of main series only."""
NAME_WIDTH, NAME_HEIGHT = 30.0, 12.0
TONES: Final = 8
"""Classes `tone0` to `tone7`, each with a different colour, and dashes where it is a line."""
Ends: TypeAlias = tuple[float, float]
Ended: TypeAlias = Literal["measured", "breaks a limit", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A value at a place, null where it has none; `name` is written next to it.

    `x_ends` and `y_ends` are the intervals of both. It reports `tip`, leads to `link`, and belongs
    to `trial` in charts that trials are selected in.
    """

    x: float
    y: float | None
    x_ends: Ends | None = None
    y_ends: Ends | None = None
    name: str = ""
    tip: str = ""
    link: str = ""
    trial: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points in the colour of `kind`, joined by a path or not; named in the legend.

    A step keeps each value until the next place, and the last one until `until`. A band lies
    between the vertical intervals.
    """

    name: str
    kind: str
    points: Sequence[Point]
    shape: Shape | None = "dot"
    path: Literal["", "line", "step", "band"] = ""
    until: float | None = None
    tip: str = ""
    """What the path reports."""
    is_main: bool = False
    """Whether keys stop at its points however many others there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Series over two axes; later ones lie over those before."""

    series: Sequence[Series]
    x: ChartAxis
    y: ChartAxis
    heading: str = ""


def xy_chart(*panels: Panel, title: str, about: str = "", height: float = 300.0) -> str:
    """Panels below each other."""
    about = about or f"{panels[0].y.label} by {panels[0].x.label}"
    bodies = (_panel(panel, number * height, height) for number, panel in enumerate(panels))
    return svg.drawing(WIDTH, height * len(panels), title, about, *bodies)


def _panel(panel: Panel, top: float, height: float) -> str:
    points = [point for series in panel.series for point in series.points]
    bottom, below_heading = top + height - BOTTOM, top + (18.0 if panel.heading else 0.0)
    named = {
        each.name: LegendEntry(
            name=each.name,
            kind=each.kind,
            shape="band" if each.path == "band" else each.shape or "line",
            on_line=each.path == "line",
        )
        for each in panel.series
        if each.name and each.points
    }
    keys, ended = svg.legend(list(named.values()), below_heading + 20.0)
    xs = [each.until for each in panel.series if each.until is not None]
    ys = [each.y for each in points if each.y is not None]
    for point in points:
        xs += (point.x, *(point.x_ends or ()))
        ys += point.y_ends or ()
    x = panel.x.scale(xs, LEFT, WIDTH - RIGHT)
    y = panel.y.scale(ys, bottom - 10, ended + 10)
    few = sum(bool(each.tip or each.link) for each in points) <= MOST_STOPS
    return "".join(
        (
            svg.words(4.0, top + 14.0, panel.heading, kind="label key", chars=100),
            svg.upwards(y, LEFT, panel.y.label, WIDTH - RIGHT, below_heading),
            svg.across(x, bottom, panel.x.label, ended + 4),
            keys,
            *(_series(each, x, y, bottom, few=few) for each in panel.series if each.points),
            *_names_of_points(points, x, y),
        )
    )


def _series(series: Series, x: Scale, y: Scale, bottom: float, *, few: bool) -> str:
    stops = few or series.is_main
    drawn = [_path(series, x, y)]
    for point in series.points:
        height = bottom if point.y is None else y.place(point.y)
        symbol = "" if series.shape is None else svg.symbol(series.shape, x.place(point.x), height)
        arms = "" if series.path == "band" else _arms(point, x, y)
        if symbol or arms:
            drawn.append(svg.mark(symbol + arms, point.tip, point.link, point.trial, is_stop=stops))
    return svg.element("g", *drawn, class_=series.kind)


def _path(series: Series, x: Scale, y: Scale) -> str:
    known = [(x.place(one.x), y.place(one.y)) for one in series.points if one.y is not None]
    match series.path:
        case "line":
            path = svg.polyline(known, "path") if len(known) > 1 else ""
        case "step":
            end = None if series.until is None else x.place(series.until)
            path = svg.polyline(step_path(known, end), "path") if known else ""
        case "band":
            ends = [(x.place(one.x), one.y_ends) for one in series.points if one.y_ends]
            low, high = ([(at, y.place(both[n])) for at, both in ends] for n in (0, 1))
            path = svg.polyline([*low, *reversed(high)], "band")
        case "":
            path = ""
    return svg.mark(path, series.tip) if path else ""


def step_path(places: Sequence[Ends], end: float | None = None) -> list[Ends]:
    """A line that keeps each height until the next place, and the last one until `end`."""
    path = list(places[:1])
    for (_, before), (x, y) in pairwise(places):
        path += [(x, before), (x, y)]
    return path if end is None else [*path, (end, path[-1][1])]


def _arms(point: Point, x: Scale, y: Scale) -> str:
    """The intervals of a point, across and upwards."""
    if point.y is None:
        return ""
    across, up, drawn = x.place(point.x), y.place(point.y), ""
    if point.x_ends is not None:
        drawn += svg.line(x.place(point.x_ends[0]), up, x.place(point.x_ends[1]), up, "arm")
    if point.y_ends is not None:
        drawn += svg.line(across, y.place(point.y_ends[0]), across, y.place(point.y_ends[1]), "arm")
    return drawn


def _names_of_points(points: Sequence[Point], x: Scale, y: Scale) -> Iterator[str]:
    """Write the names of points next to them, none over another."""
    written: list[Ends] = []
    for point in points:
        if not point.name or point.y is None:
            continue
        across, up = x.place(point.x), y.place(point.y)
        if all(abs(across - a) >= NAME_WIDTH or abs(up - b) >= NAME_HEIGHT for a, b in written):
            written.append((across, up))
            anchor, aside = ("end", -9) if across > WIDTH - 80 else ("start", 9)
            place = across + aside, max(up - 7, 10.0)
            yield svg.words(*place, point.name, anchor=anchor, kind="label halo", chars=14)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Pieces of a row from a value to another; `top` and `height` are shares of the row's bar."""

    kind: str
    pieces: Sequence[Ends]
    top: float = 0.0
    height: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A named row: stretches, points in lanes, and a line at `middle`; `words` stand at its end."""

    name: str
    stretches: Sequence[Stretch] = ()
    points: Sequence[float] = ()
    middle: float | None = None
    words: str = ""
    tip: str = ""
    link: str = ""
    is_best: bool = False


ROW_NAME_CHARS: Final = 28
ROW_CHAR_WIDTH: Final = 6.8
LANES: Final = 5


def stacked(parts: Sequence[float], kinds: Sequence[str], hatched: float = 0.0) -> list[Stretch]:
    """Parts of a bar from the left, of which the first is hatched up to `hatched`."""
    ends = [0.0]
    for part in parts:
        ends.append(ends[-1] + part)
    found = [
        Stretch(kind=f"{kind} part", pieces=(both,))
        for kind, both in zip(kinds, pairwise(ends), strict=True)
        if both[0] < both[1]
    ]
    return [*found, Stretch(kind="hatch", pieces=((0.0, hatched),))] if hatched > 0 else found


def rows_chart(
    rows: Sequence[Row],
    x: ChartAxis,
    keys: Sequence[LegendEntry],
    *,
    title: str,
    row_height: float = 22.0,
) -> str:
    """Rows below each other over one axis; `keys` name what they are made of."""
    drawn_keys, top = svg.legend(keys, 2.0)
    bottom = top + 8 + len(rows) * row_height
    left = 14 + ROW_CHAR_WIDTH * min(
        ROW_NAME_CHARS, max((len(row.name) for row in rows), default=0)
    )
    room = 70.0 if any(row.words for row in rows) else 0.0
    scale = x.scale(list(chain.from_iterable(map(_values, rows))), left, WIDTH - RIGHT - room)
    tops = (top + 8 + number * row_height for number in range(len(rows)))
    return svg.drawing(
        WIDTH,
        bottom + BOTTOM,
        title,
        f"{len(rows)} rows: {x.label}",
        HATCH if any(key.shape == "hatched box" for key in keys) else "",
        svg.across(scale, bottom, x.label, top + 2),
        drawn_keys,
        *(
            _row(row, at, row_height, scale, is_stop=len(rows) <= MOST_STOPS)
            for row, at in zip(rows, tops, strict=True)
        ),
    )


def _values(row: Row) -> Iterator[float]:
    for stretch in row.stretches:
        for piece in stretch.pieces:
            yield from piece
    yield from row.points


def _row(row: Row, top: float, height: float, x: Scale, *, is_stop: bool) -> str:
    bar, middle = height * 0.76, top + height / 2
    drawn = []
    for stretch in row.stretches:
        pieces = [(x.place(start), x.place(end)) for start, end in stretch.pieces]
        y = middle + (stretch.top - 0.5) * bar
        drawn.append(svg.boxes(pieces, y, stretch.height * bar, stretch.kind))
    for number, value in enumerate(row.points):
        # In lanes, so that equal values do not hide each other.
        lane = (number * 2 % LANES - LANES // 2) * 2.5
        drawn.append(svg.circle(x.place(value), middle + lane, 2.6, "dot"))
    if row.middle is not None:
        at = x.place(row.middle)
        drawn.append(svg.line(at, middle - 9, at, middle + 9, "middle"))
    kind = "row name best" if row.is_best else "row label"
    end = max((x.place(value) for value in _values(row)), default=x.start)
    return (
        svg.words(x.start - 7, middle + 4, row.name, anchor="end", kind=kind, chars=ROW_NAME_CHARS)
        + svg.mark("".join(drawn), row.tip, row.link, is_stop=is_stop)
        + (
            svg.words(end + 6, middle + 4, row.words, kind="row label", chars=14)
            if row.words
            else ""
        )
    )


HATCH: Final = (
    '<defs><pattern id="hatched" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><line class="hatching" x1="0" y1="0" x2="0" y2="6"></line>'
    "</pattern></defs>"
)
"""Identical in every chart, because the charts of one page share its id."""

PARALLEL_HEIGHT: Final = 320.0
PARALLEL_TOP, PARALLEL_BASE, SIDE = 74.0, PARALLEL_HEIGHT - 26.0, 50.0
PARALLEL_NAME_HEIGHT, NAME_CHAR_WIDTH = 16.0, 6.8
NAME_CHARS, END_NAME_CHARS = 26, 14
FEW_LINES: Final = 2
MOST_NARROW_AXES: Final = 4
"""With more, narrow screens scroll."""
SHADES: Final = 5
"""Classes `shade0` (best) to `shade4` (worst)."""
PARALLEL_LEGEND: Final = (
    LegendEntry(name="best", kind="best", shape="line"),
    LegendEntry(name="good", kind="shade1", shape="line"),
    LegendEntry(name="bad", kind="shade4", shape="line"),
    LegendEntry(name="failed", kind="broken", shape="line"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedKnob:
    """An axis of parallel coordinates: the values that were tried, in their order."""

    name: str
    choices: tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedConfig:
    """A configuration as a line: the place of its choice on each axis, null where it sets none.

    `rank` is its place among all that may lead, 0 for the best and 1 for the worst.
    """

    ordinal: int
    places: tuple[int | None, ...]
    value: float | None
    rank: float | None
    ended: Ended
    words: str


def parallel_chart(
    knobs: Sequence[TriedKnob],
    tried: Sequence[TriedConfig],
    best: int | None,
    label: str,
    links: str = "",
) -> str:
    """A line for every configuration, through an axis per knob to that of the value, `label`.

    The best is drawn last, over the others, and the failed first. Lines lead to `links` followed by
    their trial, unless it is empty.
    """
    count = len(knobs) + 1
    axes = [SIDE + place * (WIDTH - 2 * SIDE - RIGHT) / max(1, count - 1) for place in range(count)]
    values = [one.value for one in tried if one.value is not None]
    last = ChartAxis(label=label).scale(values, PARALLEL_BASE - 24, PARALLEL_TOP)
    order = sorted(
        tried, key=lambda one: (one.ordinal == best, -2.0 if one.rank is None else -one.rank)
    )
    kinds = {_kind(one, best) for one in tried}
    shaded = len(tried) > FEW_LINES
    keys = [key for key in PARALLEL_LEGEND if key.kind in kinds or (shaded and "shade" in key.kind)]
    lines = (
        svg.mark(
            _line(one, _kind(one, best), knobs, axes, last),
            one.words,
            f"{links}{one.ordinal}" if links else "",
            one.ordinal,
            is_stop=len(tried) <= MOST_STOPS or one.ordinal == best,
        )
        for one in order
    )
    return svg.drawing(
        WIDTH,
        PARALLEL_HEIGHT,
        f"Knobs of every trial, and {label}",
        f"{len(tried)} configurations over {len(knobs)} knobs",
        *lines,
        *(_knob(knob, x) for knob, x in zip(knobs, axes, strict=False)),
        _last(last, axes[-1], failed=any(one.rank is None for one in tried)),
        *_names([*(knob.name for knob in knobs), label], axes),
        svg.legend(keys, 2.0)[0],
        kind="chart broad" if count > MOST_NARROW_AXES else "chart",
    )


def _kind(one: TriedConfig, best: int | None) -> str:
    if one.ordinal == best:
        return "best"
    if one.rank is None:
        return "broken"
    return f"shade{min(SHADES - 1, int(one.rank * SHADES))}"


def _line(
    one: TriedConfig,
    kind: str,
    knobs: Sequence[TriedKnob],
    axes: Sequence[float],
    last: Scale,
) -> str:
    end = PARALLEL_BASE if one.value is None else last.place(one.value)
    heights = [_height(place, knob) for place, knob in zip(one.places, knobs, strict=True)]
    return svg.polyline(list(zip(axes, [*heights, end], strict=True)), f"path {kind}")


def _height(place: int | None, knob: TriedKnob) -> float:
    """That of a choice; below all of them where the knob has no effect."""
    if place is None:
        return PARALLEL_BASE
    bottom = PARALLEL_BASE - 24
    return bottom - place * (bottom - PARALLEL_TOP) / max(1, len(knob.choices) - 1)


def _knob(knob: TriedKnob, x: float) -> str:
    every = -(-len(knob.choices) // 12)
    return svg.line(x, PARALLEL_TOP, x, PARALLEL_BASE, "axis") + "".join(
        svg.words(x + 5, _height(place, knob) + 4, str(choice), kind="label halo", chars=12)
        for place, choice in enumerate(knob.choices)
        if place % every == 0
    )


def _names(names: Sequence[str], axes: Sequence[float]) -> Iterator[str]:
    """The names of the axes in two rows by turns, so that long ones do not collide."""
    inner = int(2 * (WIDTH - 2 * SIDE - RIGHT) / max(1, len(axes) - 1) / NAME_CHAR_WIDTH)
    for place, (name, x) in enumerate(zip(names, axes, strict=True)):
        y = PARALLEL_TOP - 12 - PARALLEL_NAME_HEIGHT * (place % 2)
        room = NAME_CHARS if 0 < place < len(axes) - 1 else END_NAME_CHARS
        yield svg.words(x, y, name, anchor="middle", kind="name", chars=min(inner, room))


def _last(last: Scale, x: float, *, failed: bool) -> str:
    ticks = [*last.ticks, *([(PARALLEL_BASE, "failed")] if failed else [])]
    return svg.line(x, PARALLEL_TOP, x, PARALLEL_BASE, "axis") + "".join(
        svg.words(x + 5, y + 4, text, kind="label halo", chars=10) for y, text in ticks
    )


SPARKLINE_WIDTH: Final = 120.0
SPARKLINE_HEIGHT: Final = 28.0
MARGIN: Final = 3.0


def sparkline(steps: Sequence[tuple[int, float]], last: int, *, lower_is_better: bool) -> str:
    """The best so far as a step line that ends at trial `last`; larger values are further up.

    So it falls where lower is better and rises where higher is. `steps` are the trials that were
    better than all before them, with their values. Nothing where there are none.
    """
    if not steps:
        return ""
    values = [value for _, value in steps]
    top = max(values)
    span = top - min(values)

    def x(ordinal: int) -> float:
        return MARGIN + (SPARKLINE_WIDTH - 2 * MARGIN) * ordinal / max(1, last)

    def y(value: float) -> float:
        share = (top - value) / span if span > 0 else float(lower_is_better)
        return MARGIN + (SPARKLINE_HEIGHT - 2 * MARGIN) * share

    places = [(x(ordinal), y(value)) for ordinal, value in steps]
    path = step_path(places, x(max(last, steps[-1][0])))
    return svg.element(
        "svg",
        svg.polyline(path, "path"),
        svg.circle(x(steps[-1][0]), path[-1][1], 2.5, "large dot"),
        class_="spark chart best",
        viewBox=f"0 0 {SPARKLINE_WIDTH:.0f} {SPARKLINE_HEIGHT:.0f}",
        aria_hidden="true",
    )
