"""SVG primitives of charts: escaped elements, scales, axes, legends and their style."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Final, TypeAlias

from search.views.format import format_number, one_line

Attribute: TypeAlias = str | float | None

TIP_CHARS: Final = 400
TITLE_CHARS: Final = 200


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


def polyline(
    points: list[tuple[float, float]], kind: str, tip: str = "", trial: int | None = None
) -> str:
    """A line through all points, which shows `tip` when it is pointed at."""
    listed = " ".join(f"{_spelled(x)},{_spelled(y)}" for x, y in points)
    marked = _marked(kind, tip)
    return element("polyline", *_tip(tip), class_=marked, points=listed, data_trial=trial)


def circle(
    x: float, y: float, radius: float, kind: str, tip: str = "", trial: int | None = None
) -> str:
    """A dot; `trial` is whose it is, for pages whose charts are selected in together."""
    place = {"cx": x, "cy": y, "r": radius}
    return element("circle", *_tip(tip), class_=_marked(kind, tip), **place, data_trial=trial)


def box(x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> str:
    """A filled rectangle."""
    size = {"width": width, "height": height}
    return element("rect", *_tip(tip), class_=_marked(kind, tip), x=x, y=y, **size)


def cross(
    x: float, y: float, size: float, kind: str, tip: str = "", trial: int | None = None
) -> str:
    """A diagonal cross."""
    path = (
        f"M{_spelled(x - size)} {_spelled(y - size)}L{_spelled(x + size)} {_spelled(y + size)}"
        f"M{_spelled(x - size)} {_spelled(y + size)}L{_spelled(x + size)} {_spelled(y - size)}"
    )
    return element("path", *_tip(tip), class_=_marked(kind, tip), d=path, data_trial=trial)


def drawing(width: float, height: float, title: str, about: str, *parts: str) -> str:
    """A whole chart, with a title and a description for screen readers."""
    return element(
        "svg",
        element("title", escape(one_line(title, TITLE_CHARS))),
        element("desc", escape(one_line(about, TIP_CHARS))),
        *parts,
        class_="chart",
        viewBox=f"0 0 {_spelled(width)} {_spelled(height)}",
        role="img",
    )


def _tip(tip: str) -> tuple[str, ...]:
    text = one_line(tip, TIP_CHARS)
    return (element("title", escape(text)),) if text else ()


def _marked(kind: str, tip: str) -> str:
    return f"{kind} mark" if _tip(tip) else kind


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

    def place(self, value: float) -> float:
        """Where a value lies."""
        low, high, at = (self._sized(each) for each in (self.low, self.high, value))
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))

    @property
    def ticks(self) -> tuple[Tick, ...]:
        """Round values along the axis, or its ends where there are none."""
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


def scale_of(values: Sequence[float], start: float, end: float, *, zero: bool = False) -> Scale:
    """An axis that holds all of these values with a little room, from zero on if `zero`."""
    low, high = max(min(values, default=0.0), -LARGEST), min(max(values, default=1.0), LARGEST)
    if zero:
        return Scale(low=min(low, 0.0), high=high if high > 0 else 1.0, start=start, end=end)
    if low > 0 and high / low > WIDE:
        return Scale(low=low, high=high, start=start, end=end, logarithmic=True)
    room = MARGIN * (high / 2 - low / 2) or abs(high) * MARGIN or 0.5
    ends = low - room, high + room
    if not all(map(math.isfinite, ends)):
        ends = low, high
    return Scale(low=ends[0], high=ends[1], start=start, end=end)


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


WIDTH: Final = 760.0
LEFT, RIGHT, TOP, BOTTOM = 76.0, 16.0, 34.0, 46.0
TICK_CHARS, AXIS_CHARS, KEY_CHARS = 12, 70, 30
CHAR_WIDTH: Final = 6.6


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendEntry:
    """What a mark stands for; `shape` is drawn in its `kind`."""

    name: str
    kind: str
    shape: str = "dot"


def across(scale: Scale, y: float, label: str, top: float) -> str:
    """An axis below the chart, with lines up to `top`."""
    middle = (scale.start + scale.end) / 2
    parts = [line(place, top, place, y, "grid") for place, _ in scale.ticks]
    parts.append(line(scale.start, y, scale.end, y, "axis"))
    for place, text in scale.ticks:
        parts.append(words(place, y + 17, text, anchor="middle", chars=TICK_CHARS))
    parts.append(words(middle, y + 37, label, anchor="middle", kind="name", chars=AXIS_CHARS))
    return "".join(parts)


def upwards(scale: Scale, x: float, label: str, right: float) -> str:
    """An axis left of the chart, its name above it, with lines to `right`."""
    parts = [line(x, place, right, place, "grid") for place, _ in scale.ticks]
    parts.append(line(x, scale.start, x, scale.end, "axis"))
    for place, text in scale.ticks:
        parts.append(words(x - 8, place + 4, text, anchor="end", chars=TICK_CHARS))
    return "".join(parts) + words(8.0, 16.0, label, kind="name", chars=AXIS_CHARS)


def legend(keys: Sequence[LegendEntry], right: float, y: float) -> str:
    """What is what, in one line that ends at `right`."""
    parts, x = [], right
    for key in reversed(keys):
        x -= CHAR_WIDTH * len(key.name)
        parts.append(words(x, y, key.name, chars=KEY_CHARS))
        x -= 18
        parts.append(_shape(key, x + 7, y - 4))
        x -= 16
    return "".join(parts)


def _shape(key: LegendEntry, x: float, y: float) -> str:
    match key.shape:
        case "line":
            return line(x - 7, y, x + 5, y, key.kind)
        case "box":
            return box(x - 6, y - 5, 11.0, 10.0, key.kind)
        case "hatched box":
            below = box(x - 6, y - 5, 11.0, 10.0, "part0")
            return below + box(x - 6, y - 5, 11.0, 10.0, key.kind)
        case "cross":
            return cross(x, y, 3.5, key.kind)
        case "tick":
            return line(x, y - 5, x, y + 5, key.kind)
        case _:
            return circle(x, y, 4.0, key.kind)


@cache
def chart_style() -> str:
    """The style sheet that a page with charts must have."""
    return (files("search.views") / "charts.css").read_text(encoding="utf-8")
