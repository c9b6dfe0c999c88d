"""SVG primitives of charts: escaped elements, scales, axes, legends and their style."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal, TypeAlias

from records.errors import StudyError
from search.views.format import format_number, one_line

Attribute: TypeAlias = str | float | None

TIP_CHARS: Final = 400
TITLE_CHARS: Final = 200
CHART_FILES: Final = (".svg", ".html")


def element(name: str, *children: str, **attributes: Attribute) -> str:
    """One element; `_` in the name of an attribute stands for `-`, one that is None is left out."""
    listed = "".join(
        f' {key.strip("_").replace("_", "-")}="{escape(_spelled(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{listed}>{''.join(children)}</{name}>"


def words(
    x: float, y: float, text: str, *, anchor: str = "start", kind: str = "label", chars: int = 40
) -> str:
    """A short text, cut to `chars` characters, placed by its baseline."""
    return element("text", escape(one_line(text, chars)), class_=kind, x=x, y=y, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    return element("line", class_=kind, x1=x1, y1=y1, x2=x2, y2=y2)


def polyline(points: Sequence[tuple[float, float]], kind: str) -> str:
    """A line through all points, or the shape with these corners where its kind is filled."""
    listed = " ".join(f"{_spelled(x)},{_spelled(y)}" for x, y in points)
    return element("polyline", class_=kind, points=listed)


def circle(x: float, y: float, radius: float, kind: str) -> str:
    """A dot."""
    return element("circle", class_=kind, cx=x, cy=y, r=radius)


def boxes(pieces: Sequence[tuple[float, float]], y: float, height: float, kind: str) -> str:
    """Filled rectangles from x to x at one height, as one element."""
    parts = (
        f"M{_spelled(start)} {_spelled(y)}h{_spelled(max(end - start, LEAST_WIDTH))}"
        f"v{_spelled(height)}H{_spelled(start)}z"
        for start, end in pieces
    )
    return element("path", class_=kind, d="".join(parts))


Shape: TypeAlias = Literal["dot", "large dot", "square", "diamond", "up", "down", "cross", "tick"]
RADIUS, LARGE_RADIUS = 3.6, 5.0
LEAST_WIDTH: Final = 0.3
CORNERS: Final[Mapping[str, tuple[tuple[float, float], ...]]] = {
    "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "diamond": ((0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)),
    "up": ((0.0, -1.4), (1.3, 0.9), (-1.3, 0.9)),
    "down": ((0.0, 1.4), (1.3, -0.9), (-1.3, -0.9)),
}


def symbol(shape: Shape, x: float, y: float) -> str:
    """The symbol of a point, in the colour of what is around it."""
    match shape:
        case "dot":
            return circle(x, y, RADIUS, "dot")
        case "large dot":
            return circle(x, y, LARGE_RADIUS, "large dot")
        case "tick":
            return boxes([(x - 1.2, x + 1.2)], y - 9, 9.0, "dot")
        case "cross":
            ends = [
                (x + a * RADIUS, y + b * RADIUS) for a, b in ((-1, -1), (1, 1), (-1, 1), (1, -1))
            ]
            return line(*ends[0], *ends[1], "cross") + line(*ends[2], *ends[3], "cross")
        case _:
            return polyline([(x + a * RADIUS, y + b * RADIUS) for a, b in CORNERS[shape]], "dot")


def mark(
    drawn: str, tip: str, link: str = "", trial: int | None = None, *, is_stop: bool = False
) -> str:
    """What reports `tip` when it is pointed at or focused, and leads to `link` if there is one.

    `trial` is whose it is, for pages whose charts are selected in together. Keys stop at it if
    `is_stop`.
    """
    text = one_line(tip, TIP_CHARS)
    if not text and not link and trial is None:
        return drawn
    place = (None if is_stop else "-1") if link else ("0" if is_stop else None)
    return element(
        "a" if link else "g",
        *([element("title", escape(text))] if text else []),
        drawn,
        class_="mark",
        href=link or None,
        data_trial=trial,
        tabindex=place,
    )


def drawing(
    width: float, height: float, title: str, about: str, *parts: str, kind: str = "chart"
) -> str:
    """A whole chart, with a title and a description for screen readers."""
    return element(
        "svg",
        element("title", escape(one_line(title, TITLE_CHARS))),
        element("desc", escape(one_line(about, TIP_CHARS))),
        *parts,
        class_=kind,
        viewBox=f"0 0 {_spelled(width)} {_spelled(height)}",
        role="group",
    )


def standalone(drawn: str) -> str:
    """A chart as a file of its own, with the style that it otherwise has from its page."""
    head, bracket, rest = drawn.partition(">")
    head = head.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return f"{head}{bracket}{element('style', view_file('charts.css'))}{rest}\n"


def _spelled(value: Attribute) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


LEAST_TICKS, FEW_TICKS, MOST_TICKS = 3, 4, 12
NARROWER: Final = {10: 5, 5: 2, 2: 1, 1: 0.5}
"""The next smaller step, for an axis on which a round one leaves too few."""
WIDE: Final = 20.0
"""Largest over smallest value from which on an axis counts factors instead of differences."""
MARGIN: Final = 0.04
LARGEST: Final = sys.float_info.max
SIZES: Final = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
FEW_DIGITS, MANY_DIGITS = 1e5, 1e15

Tick: TypeAlias = tuple[float, str]
"""A place along the axis, and what is written there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Values from `low` to `high` on the way from `start` to `end`; what lies beyond stays there.

    Where it is `logarithmic` all values are above zero.
    """

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False
    is_whole: bool = False
    """Whether the values are ordinals from 0 on, which have whole ticks."""
    fixed: tuple[tuple[float, str], ...] = ()
    """Values with the text at their ticks, in the place of round ones."""

    def place(self, value: float) -> float:
        """Where a value lies."""
        low, high, at = (self._sized(each) for each in (self.low, self.high, value))
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))

    @property
    def ticks(self) -> tuple[Tick, ...]:
        """Round values along the axis, or its ends where there are none."""
        if self.fixed:
            every = -(-len(self.fixed) // MOST_TICKS)
            return tuple((self.place(value), text) for value, text in self.fixed[::every])
        if self.is_whole:
            last = int(self.high)
            step = next(s for e in range(20) for f in (1, 2, 5) if (s := f * 10**e) * 14 >= last)
            return tuple((self.place(n), str(n)) for n in range(0, last + 1, step))
        values = _factors(self.low, self.high) if self.logarithmic else _steps(self.low, self.high)
        labels = {brief(value): self.place(value) for value in values or (self.low, self.high)}
        return tuple((place, label) for label, place in labels.items())

    def _sized(self, value: float) -> float:
        # Halves, because the difference of two floats may be beyond floats.
        return math.log(value) if self.logarithmic else value / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartAxis:
    """What an axis shows: differences, or factors where values above zero span many.

    The `kind` "linear" always shows differences, "zero" too and from zero on, "log" always factors
    of values above zero, and "whole" ordinals from 0 on. `ticks` are given where they are not round
    numbers.
    """

    label: str
    kind: Literal["", "linear", "zero", "log", "whole"] = ""
    ticks: tuple[tuple[float, str], ...] = ()

    def scale(self, values: Sequence[float], start: float, end: float) -> Scale:
        """The axis for all of these values, with a little room, on the way from start to end."""
        known = [*values, *(value for value, _ in self.ticks)]
        low, high = max(min(known, default=0.0), -LARGEST), min(max(known, default=1.0), LARGEST)
        is_log = self.kind == "log" or (self.kind == "" and low > 0 and high / low > WIDE)
        match self.kind:
            case "whole":
                ends = -0.5, max(high, 0.0) + 0.5
            case "zero":
                ends = min(low, 0.0), high if high > 0 else 1.0
            case _ if is_log:
                ends = low, high
            case _:
                ends = _with_room(low, high)
        return Scale(
            low=ends[0],
            high=ends[1],
            start=start,
            end=end,
            logarithmic=is_log,
            is_whole=self.kind == "whole",
            fixed=self.ticks,
        )


def _with_room(low: float, high: float) -> tuple[float, float]:
    room = MARGIN * (high / 2 - low / 2) or abs(high) * MARGIN or 0.5
    ends = low - room, high + room
    return ends if all(map(math.isfinite, ends)) else (low, high)


def brief(value: float) -> str:
    """A number as short as an axis needs it: `250`, `4 G`."""
    if FEW_DIGITS <= abs(value) < MANY_DIGITS:
        letter, size = next((name, size) for name, size in SIZES if abs(value) >= size)
        return f"{value / size:.4g} {letter}"
    return format_number(value)


def _steps(low: float, high: float) -> list[float]:
    rough = (high / 2 - low / 2) / FEW_TICKS * 2
    if not 0 < rough < math.inf:
        return []
    unit = 10.0 ** math.floor(math.log10(rough))
    if not unit:
        return []
    wide = next((factor for factor in (1, 2, 5) if factor * unit >= rough), 10)
    found = _multiples(low, high, wide * unit)
    return found if len(found) >= LEAST_TICKS else _multiples(low, high, unit * NARROWER[wide])


def _multiples(low: float, high: float, step: float) -> list[float]:
    first = math.ceil(low / step)
    values = ((first + count) * step for count in range(MOST_TICKS))
    return [value for value in values if low <= value <= high]


def _factors(low: float, high: float) -> list[float]:
    """Powers of ten, with 2 and 5 times them where there are few."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    decades = math.log10(high) - math.log10(low)
    every = math.ceil(len(exponents) / MOST_TICKS)
    firsts = (1, 2, 5) if decades < FEW_TICKS - 1 else (1,)
    values = [float(f"{first}e{power}") for power in exponents[::every] for first in firsts]
    return [value for value in values if low <= value <= high]


WIDTH: Final = 640.0
LEFT, RIGHT, BOTTOM = 58.0, 22.0, 46.0
TICK_CHARS, AXIS_CHARS, KEY_CHARS = 16, 70, 40
CHAR_WIDTH: Final = 7.8
KEY_HEIGHT: Final = 17.0
FEW_LABELS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendEntry:
    """What a mark stands for: a shape in the colour of `kind`."""

    name: str
    kind: str
    shape: Shape | Literal["line", "box", "band", "hatched box"] = "box"
    on_line: bool = False
    """Whether a line goes through the shape."""


def across(scale: Scale, y: float, label: str, top: float) -> str:
    """An axis below the chart, with lines up to `top`; narrow screens show every other text."""
    middle = (scale.start + scale.end) / 2
    parts = [line(place, top, place, y, "grid") for place, _ in scale.ticks]
    parts.append(line(scale.start, y, scale.end, y, "axis"))
    crowded = len(scale.ticks) > FEW_LABELS
    for number, (place, text) in enumerate(scale.ticks):
        kind = "label second" if crowded and number % 2 else "label"
        parts.append(words(place, y + 17, text, anchor="middle", kind=kind, chars=TICK_CHARS))
    parts.append(words(middle, y + 38, label, anchor="middle", kind="name", chars=AXIS_CHARS))
    return "".join(parts)


def upwards(scale: Scale, x: float, label: str, right: float, top: float) -> str:
    """An axis left of the chart with lines to `right`, its name from `top` on."""
    parts = [line(x, place, right, place, "grid") for place, _ in scale.ticks]
    parts.append(line(x, scale.start, x, scale.end, "axis"))
    for place, text in scale.ticks:
        parts.append(words(x - 6, place + 4, text, anchor="end", chars=TICK_CHARS))
    return "".join(parts) + words(4.0, top + 14.0, label, kind="name", chars=AXIS_CHARS)


def legend(keys: Sequence[LegendEntry], top: float) -> tuple[str, float]:
    """What is what, from `top` on in as many lines as it takes, and where it ends."""
    parts: list[str] = []
    x, y = 4.0, top
    for key in keys:
        width = 24 + CHAR_WIDTH * min(len(key.name), KEY_CHARS)
        if x > 4 and x + width > WIDTH:
            x, y = 4.0, y + KEY_HEIGHT
        parts.append(element("g", _swatch(key, x + 7, y + 9), class_=key.kind))
        parts.append(words(x + 19, y + 13, key.name, kind="label key", chars=KEY_CHARS))
        x += width + 12
    return "".join(parts), y + KEY_HEIGHT if keys else top


def _swatch(key: LegendEntry, x: float, y: float) -> str:
    line = polyline([(x - 8, y), (x + 8, y)], "path")
    match key.shape:
        case "line":
            return line
        case "band":
            return boxes([(x - 6, x + 6)], y - 5, 10.0, "band")
        case "box":
            return boxes([(x - 6, x + 6)], y - 5, 10.0, "part")
        case "hatched box":
            kinds = ("part", "hatch")
            return "".join(boxes([(x - 6, x + 6)], y - 5, 10.0, kind) for kind in kinds)
        case shape:
            drawn = symbol(shape, x, y + 4 if shape == "tick" else y)
            return line + drawn if key.on_line else drawn


def chart_file(path: Path | None) -> Path | None:
    """The path, if a chart can be written there. Raises StudyError for other kinds of files."""
    if path is not None and path.suffix.lower() not in CHART_FILES:
        raise StudyError(f"{path}: charts are {' or '.join(CHART_FILES)} files; name the file so")
    return path


@cache
def view_file(name: str) -> str:
    """A style sheet or script of documents."""
    return (files("search.views") / name).read_text(encoding="utf-8")
