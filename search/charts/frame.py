"""The frame of a chart: axes with ticks and words, a key of what is what."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from search.charts import svg
from search.charts.scale import Scale

WIDTH: Final = 760.0
LEFT, RIGHT, TOP, BOTTOM = 76.0, 16.0, 34.0, 46.0
TICK_CHARS, AXIS_CHARS, KEY_CHARS = 12, 70, 30
CHAR_WIDTH: Final = 6.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What a mark stands for; `shape` is drawn in its `kind`."""

    name: str
    kind: str
    shape: str = "dot"


def across(scale: Scale, y: float, label: str, top: float) -> str:
    """An axis below the chart, with lines up to `top`."""
    middle = (scale.start + scale.end) / 2
    return "".join(
        [
            *(svg.line(place, top, place, y, "grid") for place, _ in scale.ticks),
            svg.line(scale.start, y, scale.end, y, "axis"),
            *(
                svg.words(place, y + 17, text, anchor="middle", chars=TICK_CHARS)
                for place, text in scale.ticks
            ),
            svg.words(middle, y + 37, label, anchor="middle", kind="name", chars=AXIS_CHARS),
        ]
    )


def upwards(scale: Scale, x: float, label: str, right: float) -> str:
    """An axis left of the chart, its name above it, with lines to `right`."""
    return "".join(
        [
            *(svg.line(x, place, right, place, "grid") for place, _ in scale.ticks),
            svg.line(x, scale.start, x, scale.end, "axis"),
            *(
                svg.words(x - 8, place + 4, text, anchor="end", chars=TICK_CHARS)
                for place, text in scale.ticks
            ),
            svg.words(8.0, 16.0, label, kind="name", chars=AXIS_CHARS),
        ]
    )


def legend(keys: Sequence[Key], right: float, y: float) -> str:
    """What is what, in one line that ends at `right`."""
    parts, x = [], right
    for key in reversed(keys):
        x -= CHAR_WIDTH * len(key.name)
        parts.append(svg.words(x, y, key.name, chars=KEY_CHARS))
        x -= 18
        parts.append(_shape(key, x + 7, y - 4))
        x -= 16
    return "".join(parts)


def _shape(key: Key, x: float, y: float) -> str:
    match key.shape:
        case "line":
            return svg.line(x - 7, y, x + 5, y, key.kind)
        case "box":
            return svg.box(x - 6, y - 5, 11.0, 10.0, key.kind)
        case "hatched box":
            below = svg.box(x - 6, y - 5, 11.0, 10.0, "part0")
            return below + svg.box(x - 6, y - 5, 11.0, 10.0, key.kind)
        case "cross":
            return svg.cross(x, y, 3.5, key.kind)
        case "tick":
            return svg.line(x, y - 5, x, y + 5, key.kind)
        case _:
            return svg.circle(x, y, 4.0, key.kind)
