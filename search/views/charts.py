"""Charts as SVG: history, Pareto front, parallel coordinates, bars, curves, strips, sparkline."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from statistics import median
from typing import Final, Literal, TypeAlias

from records.study import Value
from search.views import svg
from search.views.svg import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    LegendEntry,
    Scale,
    across,
    legend,
    scale_of,
    upwards,
)

HISTORY_HEIGHT: Final = 330.0
HISTORY_LEGEND: Final = (
    LegendEntry(name="measured", kind="dot"),
    LegendEntry(name="breaks a limit", kind="limited", shape="cross"),
    LegendEntry(name="failed", kind="failure", shape="tick"),
    LegendEntry(name="best so far", kind="lead", shape="line"),
    LegendEntry(name="best, repeated", kind="best"),
)

Ended: TypeAlias = Literal["measured", "breaks a limit", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPoint:
    """A trial: its value, null where it failed; `words` describe it in one line."""

    ordinal: int
    value: float | None
    ended: Ended
    started_at: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value with its interval, which is null for a single launch."""

    centre: float
    low: float | None
    high: float | None

    @property
    def ends(self) -> tuple[float, ...]:
        """All the numbers there are."""
        return tuple(end for end in (self.centre, self.low, self.high) if end is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BestInterval(Interval):
    """What the best reached over all its launches."""

    ordinal: int
    tip: str


def history_chart(
    points: Sequence[HistoryPoint], best: BestInterval | None, *, label: str, lower_is_better: bool
) -> str:
    """Every trial by ordinal, failures as ticks on the axis; `label` names the value."""
    values = [point.value for point in points if point.value is not None]
    values += best.ends if best is not None else ()
    y = scale_of(values, HISTORY_HEIGHT - BOTTOM - 12, TOP)
    last = max((point.ordinal for point in points), default=0)
    x = Scale(low=-0.5, high=last + 0.5, start=LEFT, end=WIDTH - RIGHT, is_whole=True)
    shown = {point.ended for point in points} | ({"best so far"} if values else set())
    keys = [
        key
        for key in HISTORY_LEGEND
        if key.name in shown or (key.kind == "best" and best is not None)
    ]
    return svg.drawing(
        WIDTH,
        HISTORY_HEIGHT,
        f"{label} of every trial",
        f"{len(points)} trials in order, {sum(p.value is None for p in points)} without a value",
        upwards(y, LEFT, label, WIDTH - RIGHT),
        across(x, HISTORY_HEIGHT - BOTTOM, "trial", HISTORY_HEIGHT - BOTTOM),
        _lead(points, x, y, lower_is_better=lower_is_better),
        *(_mark(point, x, y) for point in points),
        "" if best is None else _interval(best, x, y),
        legend(keys, WIDTH - RIGHT, 16.0),
    )


def _mark(point: HistoryPoint, x: Scale, y: Scale) -> str:
    place = x.place(point.ordinal)
    if point.value is None:
        bottom = HISTORY_HEIGHT - BOTTOM
        return svg.box(place - 1.25, bottom - 9, 2.5, 9.0, "failure", point.words)
    if point.ended == "breaks a limit":
        return svg.cross(place, y.place(point.value), 3.5, "limited", point.words)
    return svg.circle(place, y.place(point.value), 4.0, "dot", point.words)


def _lead(points: Sequence[HistoryPoint], x: Scale, y: Scale, *, lower_is_better: bool) -> str:
    """The best so far as a step line."""
    steps: list[tuple[float, float]] = []
    for point in points:
        if point.value is None or point.ended != "measured":
            continue
        if not steps or (
            point.value < steps[-1][1] if lower_is_better else point.value > steps[-1][1]
        ):
            steps.append((point.ordinal, point.value))
    places = [(x.place(ordinal), y.place(value)) for ordinal, value in steps]
    return svg.polyline(_step_path(places, x.end), "lead") if steps else ""


def _step_path(
    places: Sequence[tuple[float, float]], end: float | None = None
) -> list[tuple[float, float]]:
    """A line that keeps each height until the next place, and the last one until `end`."""
    path = list(places[:1])
    for (_, before), (x, y) in pairwise(places):
        path += [(x, before), (x, y)]
    return path if end is None else [*path, (end, path[-1][1])]


def _interval(best: BestInterval, x: Scale, y: Scale) -> str:
    place = x.place(best.ordinal)
    caps = (y.place(end) for end in (best.low, best.high) if end is not None)
    arm = _arm(best, y, place) + "".join(
        svg.line(place - 5, height, place + 5, height, "arm") for height in caps
    )
    return arm + svg.circle(place, y.place(best.centre), 5.5, "best", best.tip)


def _arm(bar: Interval, scale: Scale, other: float, *, is_level: bool = False) -> str:
    """The interval of a value as a line; `other` is its place on the other axis."""
    if bar.low is None or bar.high is None:
        return ""
    low, high = scale.place(bar.low), scale.place(bar.high)
    if is_level:
        return svg.line(low, other, high, other, "arm")
    return svg.line(other, low, other, high, "arm")


FRONT_HEIGHT: Final = 380.0
NAME_WIDTH, NAME_HEIGHT = 30.0, 12.0
FRONT_LEGEND: Final = (
    LegendEntry(name="measured", kind="dot"),
    LegendEntry(name="breaks a limit", kind="limited", shape="cross"),
    LegendEntry(name="no other beats it", kind="best"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontMark:
    """A trial by two values; `name` is written next to it where it is on the front."""

    name: str
    x: Interval
    y: Interval
    on_front: bool
    is_limited: bool
    tip: str
    trial: int | None = None
    """Whose marks these are, where they can be selected."""


def front_chart(
    pairs: Sequence[FrontMark], *, x_label: str, y_label: str, line: bool = True
) -> str:
    """Every pair, those on the front named and joined by steps; labels say which way is better."""
    x = scale_of([v for pair in pairs for v in pair.x.ends], LEFT, WIDTH - RIGHT)
    y = scale_of([v for pair in pairs for v in pair.y.ends], FRONT_HEIGHT - BOTTOM, TOP)
    front = sorted((pair for pair in pairs if pair.on_front), key=lambda pair: pair.x.centre)
    others = [pair for pair in pairs if not pair.on_front]
    named = _readable_names(front, x, y)
    limited = [pair.is_limited for pair in others]
    present = (False in limited, True in limited, bool(front))
    return svg.drawing(
        WIDTH,
        FRONT_HEIGHT,
        f"{y_label} against {x_label}",
        f"{len(pairs)} trials, {len(front)} of which no other beats in both",
        upwards(y, LEFT, y_label, WIDTH - RIGHT),
        across(x, FRONT_HEIGHT - BOTTOM, x_label, TOP),
        _steps(front, x, y) if line else "",
        *(_other(pair, x, y) for pair in others),
        *(_member(pair, x, y, named=pair in named) for pair in front),
        legend(list(compress(FRONT_LEGEND, present)), WIDTH - RIGHT, 16.0),
    )


def _steps(front: Sequence[FrontMark], x: Scale, y: Scale) -> str:
    """Between two members only the worse of both is known."""
    places = [(x.place(pair.x.centre), y.place(pair.y.centre)) for pair in front]
    return svg.polyline(_step_path(places), "lead") if len(places) > 1 else ""


def _other(pair: FrontMark, x: Scale, y: Scale) -> str:
    place = x.place(pair.x.centre), y.place(pair.y.centre)
    if pair.is_limited:
        return svg.cross(*place, 3.5, "limited", pair.tip, pair.trial)
    return svg.circle(*place, 4.0, "dot", pair.tip, pair.trial)


def _readable_names(front: Sequence[FrontMark], x: Scale, y: Scale) -> list[FrontMark]:
    """Members whose names do not lie over those of others."""
    named: list[FrontMark] = []
    for pair in front:
        near = (
            abs(x.place(pair.x.centre) - x.place(other.x.centre)) < NAME_WIDTH
            and abs(y.place(pair.y.centre) - y.place(other.y.centre)) < NAME_HEIGHT
            for other in named[-1:]
        )
        if not any(near):
            named.append(pair)
    return named


def _member(pair: FrontMark, x: Scale, y: Scale, *, named: bool) -> str:
    right, up = x.place(pair.x.centre), y.place(pair.y.centre)
    arms = _arm(pair.x, x, up, is_level=True) + _arm(pair.y, y, right)
    near_end = right > WIDTH - 80
    name = svg.words(
        right - 9 if near_end else right + 9,
        max(up - 7, 10.0),
        pair.name,
        anchor="end" if near_end else "start",
        chars=12,
    )
    dot = svg.circle(right, up, 5.5, "best", pair.tip, pair.trial)
    return arms + dot + (name if named else "")


PARALLEL_HEIGHT: Final = 340.0
PARALLEL_TOP, PARALLEL_BASE, SIDE = 74.0, PARALLEL_HEIGHT - 26.0, 56.0
PARALLEL_NAME_HEIGHT, NAME_CHAR_WIDTH = 16.0, 7.5
NAME_CHARS, END_NAME_CHARS = 26, 16
FEW_LINES: Final = 2
SHADES: Final = 5
"""Classes `shade0` (best) to `shade4` (worst)."""
PARALLEL_LEGEND: Final = (
    LegendEntry(name="best", kind="line best", shape="line"),
    LegendEntry(name="good", kind="line shade1", shape="line"),
    LegendEntry(name="bad", kind="line shade4", shape="line"),
    LegendEntry(name="failed", kind="line broken", shape="line"),
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
    knobs: Sequence[TriedKnob], tried: Sequence[TriedConfig], best: int | None, label: str
) -> str:
    """A line for every configuration, through an axis per knob to that of the value, `label`.

    The best is drawn last, over the others, and the failed first.
    """
    count = len(knobs) + 1
    axes = [SIDE + place * (WIDTH - 2 * SIDE - RIGHT) / max(1, count - 1) for place in range(count)]
    values = [one.value for one in tried if one.value is not None]
    last = scale_of(values, PARALLEL_BASE - 24, PARALLEL_TOP)
    order = sorted(
        tried, key=lambda one: (one.ordinal == best, -2.0 if one.rank is None else -one.rank)
    )
    kinds = {_kind(one, best) for one in tried}
    shaded = len(tried) > FEW_LINES
    keys = [key for key in PARALLEL_LEGEND if key.kind in kinds or (shaded and "shade" in key.kind)]
    return svg.drawing(
        WIDTH,
        PARALLEL_HEIGHT,
        f"Knobs of every trial, and {label}",
        f"{len(tried)} configurations over {len(knobs)} knobs",
        *(_tried(one, _kind(one, best), knobs, axes, last) for one in order),
        *(_knob(knob, x) for knob, x in zip(knobs, axes, strict=False)),
        _last(last, axes[-1], failed=any(one.rank is None for one in tried)),
        *_names([*(knob.name for knob in knobs), label], axes),
        legend(keys, WIDTH - RIGHT, 14.0),
    )


def _kind(one: TriedConfig, best: int | None) -> str:
    if one.ordinal == best:
        return "line best"
    if one.rank is None:
        return "line broken"
    return f"line shade{min(SHADES - 1, int(one.rank * SHADES))}"


def _tried(
    one: TriedConfig,
    kind: str,
    knobs: Sequence[TriedKnob],
    axes: Sequence[float],
    last: Scale,
) -> str:
    end = PARALLEL_BASE if one.value is None else last.place(one.value)
    heights = [_height(place, knob) for place, knob in zip(one.places, knobs, strict=True)]
    points = list(zip(axes, [*heights, end], strict=True))
    return svg.polyline(points, kind, one.words, one.ordinal)


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


BAR, GAP = 17.0, 7.0
BAR_LABEL_WIDTH: Final = 190.0
BARS_TOP, BARS_BOTTOM = 30.0, 46.0
BAR_NAME_CHARS: Final = 26
LEAST_WIDTH: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar: its parts from the left, each at least 0, and what is written at its end.

    `within` is the part of the first one that is hatched.
    """

    name: str
    parts: tuple[float, ...]
    words: str = ""
    tip: str = ""
    within: float = 0.0
    is_best: bool = False


def bar_chart(
    bars: Sequence[Bar], parts: Sequence[LegendEntry], *, title: str, label: str, hatched: str = ""
) -> str:
    """Bars below each other; `parts` name what they are made of, `hatched` what is `within`."""
    height = BARS_TOP + len(bars) * (BAR + GAP) + BARS_BOTTOM
    room = 90.0 if any(bar.words for bar in bars) else 0.0
    x = scale_of([sum(bar.parts) for bar in bars], BAR_LABEL_WIDTH, WIDTH - RIGHT - room, zero=True)
    hatch = LegendEntry(name=hatched, kind="hatch", shape="hatched box")
    keys = [*parts, hatch] if hatched else parts
    drawn = []
    for row, bar in enumerate(bars):
        y = BARS_TOP + row * (BAR + GAP)
        name = "name best-name" if bar.is_best else "label"
        drawn.append(
            svg.words(
                BAR_LABEL_WIDTH - 8, y + 13, bar.name, anchor="end", kind=name, chars=BAR_NAME_CHARS
            )
        )
        left = 0.0
        for part, key in zip(bar.parts, parts, strict=True):
            start, end = x.place(left), x.place(left + part)
            if end - start >= LEAST_WIDTH:
                drawn.append(svg.box(start, y, end - start, BAR, key.kind, bar.tip))
            left += part
        if bar.within > 0:
            width = x.place(bar.within) - x.place(0.0)
            drawn.append(svg.box(x.place(0.0), y, width, BAR, "hatch", bar.tip))
        drawn.append(svg.words(x.place(left) + 6, y + 13, bar.words, chars=14))
    return svg.drawing(
        WIDTH,
        height,
        title,
        f"{len(bars)} bars: {label}",
        HATCH if hatched else "",
        across(x, height - BARS_BOTTOM, label, BARS_TOP - 6),
        *drawn,
        legend(keys, WIDTH - RIGHT, 14.0) if len(keys) > 1 else "",
    )


HATCH: Final = (
    '<defs><pattern id="hatched" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><line class="hatching" x1="0" y1="0" x2="0" y2="6"></line>'
    "</pattern></defs>"
)
"""Identical in every chart, because the charts of one page share its id."""


CURVE_HEIGHT: Final = 320.0
KINDS: Final = 6
"""Classes `curve0` to `curve5`, each with a different colour and dashes."""
CURVE_ROW: Final = 20.0
CURVE_NAME_CHARS: Final = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A line of steps: values by the place from which on they hold, until `end`."""

    name: str
    points: tuple[tuple[float, float], ...]
    end: float


def curve_chart(curves: Sequence[Curve], *, title: str, x_label: str, y_label: str) -> str:
    """At most six lines over two axes, the upwards one from zero on, each named below."""
    shown = curves[:KINDS]
    values = [value for curve in shown for _, value in curve.points]
    starts = [place for curve in shown for place, _ in curve.points[:1]]
    x = scale_of([*starts, *(curve.end for curve in shown)], LEFT, WIDTH - RIGHT)
    y = scale_of(values, CURVE_HEIGHT - BOTTOM, TOP, zero=True)
    return svg.drawing(
        WIDTH,
        CURVE_HEIGHT + CURVE_ROW * len(shown),
        title,
        f"{len(shown)} lines: {y_label} by {x_label}",
        upwards(y, LEFT, y_label, WIDTH - RIGHT),
        across(x, CURVE_HEIGHT - BOTTOM, x_label, CURVE_HEIGHT - BOTTOM),
        *(_line(curve, f"curve{place}", x, y) for place, curve in enumerate(shown)),
        *(_name(curve.name, place) for place, curve in enumerate(shown)),
    )


def _line(curve: Curve, kind: str, x: Scale, y: Scale) -> str:
    if not curve.points:
        return ""
    places = [(x.place(place), y.place(value)) for place, value in curve.points]
    return svg.polyline(_step_path(places, x.place(curve.end)), kind, curve.name)


def _name(name: str, place: int) -> str:
    y = CURVE_HEIGHT + CURVE_ROW * place + 10
    mark = svg.line(LEFT, y - 4, LEFT + 34, y - 4, f"curve{place}")
    return mark + svg.words(LEFT + 44, y, name, chars=CURVE_NAME_CHARS)


STRIP_ROW: Final = 26.0
STRIPS_TOP, STRIPS_BOTTOM = 32.0, 46.0
STRIP_NAME_CHARS: Final = 28
MOST_DOTS: Final = 200
LANES: Final = 5
STRIP_LEGEND: Final = (
    LegendEntry(name="sample", kind="dot"),
    LegendEntry(name="median", kind="lead", shape="tick"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """A row: the values of one launch in the order in which they were taken."""

    name: str
    values: tuple[float, ...]
    tip: str = ""
    is_own: bool = False
    """Whether it is the subject of the page; the others are for comparison."""


def strip_chart(strips: Sequence[Strip], *, title: str, label: str) -> str:
    """Rows of dots over one axis; of very many values in a row some stand for all."""
    height = STRIPS_TOP + len(strips) * STRIP_ROW + STRIPS_BOTTOM
    x = scale_of(
        [value for strip in strips for value in strip.values], BAR_LABEL_WIDTH, WIDTH - RIGHT
    )
    return svg.drawing(
        WIDTH,
        height,
        title,
        f"{len(strips)} rows of samples: {label}",
        across(x, height - STRIPS_BOTTOM, label, STRIPS_TOP - 8),
        *(_row(strip, place, x) for place, strip in enumerate(strips)),
        legend(STRIP_LEGEND, WIDTH - RIGHT, 14.0),
    )


def _row(strip: Strip, place: int, x: Scale) -> str:
    middle = STRIPS_TOP + place * STRIP_ROW + STRIP_ROW / 2
    every = max(1, -(-len(strip.values) // MOST_DOTS))
    dots = (
        svg.circle(x.place(value), middle + _lane(number), 3.0, "dot", strip.tip)
        for number, value in enumerate(strip.values[::every])
    )
    name = "name best-name" if strip.is_own else "label"
    written = svg.words(
        BAR_LABEL_WIDTH - 10,
        middle + 4,
        strip.name,
        anchor="end",
        kind=name,
        chars=STRIP_NAME_CHARS,
    )
    if not strip.values:
        return written
    at = x.place(median(strip.values))
    return written + "".join(dots) + svg.line(at, middle - 10, at, middle + 10, "lead")


def _lane(number: int) -> float:
    """The offset of a dot from the middle, so that equal samples do not hide each other."""
    return (number * 2 % LANES - LANES // 2) * 2.5


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

    path = _step_path(
        [(x(ordinal), y(value)) for ordinal, value in steps], x(max(last, steps[-1][0]))
    )
    return svg.element(
        "svg",
        svg.polyline(path, "lead"),
        svg.circle(x(steps[-1][0]), path[-1][1], 2.5, "best"),
        class_="spark chart",
        viewBox=f"0 0 {SPARKLINE_WIDTH:.0f} {SPARKLINE_HEIGHT:.0f}",
        aria_hidden="true",
    )
