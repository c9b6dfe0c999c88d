"""Samples as dots in rows below each other, so that their spread is seen and not only a middle."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from search.charts import svg
from search.charts.frame import RIGHT, WIDTH, Key, across, legend
from search.charts.scale import Scale, scale_of

ROW: Final = 26.0
NAMES: Final = 190.0
TOP, BOTTOM = 32.0, 46.0
NAME_CHARS: Final = 28
MOST_DOTS: Final = 200
LANES: Final = 5
KEYS: Final = (Key(name="sample", kind="dot"), Key(name="median", kind="lead", shape="tick"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """A row: the values of one launch in the order in which they were taken."""

    name: str
    values: tuple[float, ...]
    tip: str = ""
    is_own: bool = False
    """Whether it is what the page is about, and the others stand beside it."""


def strip_chart(strips: Sequence[Strip], *, title: str, label: str) -> str:
    """Rows of dots over one axis; of very many values in a row some stand for all."""
    height = TOP + len(strips) * ROW + BOTTOM
    x = scale_of([value for strip in strips for value in strip.values], NAMES, WIDTH - RIGHT)
    return svg.drawing(
        WIDTH,
        height,
        title,
        f"{len(strips)} rows of samples: {label}",
        across(x, height - BOTTOM, label, TOP - 8),
        *(_row(strip, place, x) for place, strip in enumerate(strips)),
        legend(KEYS, WIDTH - RIGHT, 14.0),
    )


def _row(strip: Strip, place: int, x: Scale) -> str:
    middle = TOP + place * ROW + ROW / 2
    every = max(1, -(-len(strip.values) // MOST_DOTS))
    dots = (
        svg.circle(x.place(value), middle + _lane(number), 3.0, "dot", strip.tip)
        for number, value in enumerate(strip.values[::every])
    )
    name = "name best-name" if strip.is_own else "label"
    written = svg.words(
        NAMES - 10, middle + 4, strip.name, anchor="end", kind=name, chars=NAME_CHARS
    )
    if not strip.values:
        return written
    at = x.place(median(strip.values))
    return written + "".join(dots) + svg.line(at, middle - 10, at, middle + 10, "lead")


def _lane(number: int) -> float:
    """Beside each other, so that equal samples are seen to be several."""
    return (number * 2 % LANES - LANES // 2) * 2.5
