"""Values with names as bars: one value each, or parts that add up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from search.charts import svg
from search.charts.frame import RIGHT, WIDTH, Key, across, legend
from search.charts.scale import scale_of

BAR, GAP = 17.0, 7.0
NAMES: Final = 190.0
TOP, BOTTOM = 30.0, 46.0
NAME_CHARS: Final = 26
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
    bars: Sequence[Bar], parts: Sequence[Key], *, title: str, label: str, hatched: str = ""
) -> str:
    """Bars below each other; `parts` name what they are made of, `hatched` what is `within`."""
    height = TOP + len(bars) * (BAR + GAP) + BOTTOM
    ends = [_total(bar) for bar in bars]
    room = 90.0 if any(bar.words for bar in bars) else 0.0
    x = scale_of(ends, NAMES, WIDTH - RIGHT - room, zero=True)
    keys = [*parts, *([Key(name=hatched, kind="hatch", shape="hatched box")] if hatched else [])]
    drawn = []
    for row, bar in enumerate(bars):
        y = TOP + row * (BAR + GAP)
        name = "name best-name" if bar.is_best else "label"
        drawn.append(
            svg.words(NAMES - 8, y + 13, bar.name, anchor="end", kind=name, chars=NAME_CHARS)
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
        across(x, height - BOTTOM, label, TOP - 6),
        *drawn,
        legend(keys, WIDTH - RIGHT, 14.0) if len(keys) > 1 else "",
    )


HATCH: Final = (
    '<defs><pattern id="hatched" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><line class="hatching" x1="0" y1="0" x2="0" y2="6"></line>'
    "</pattern></defs>"
)
"""The same wherever it stands, so that several charts of one page may hold it."""


def _total(bar: Bar) -> float:
    return sum(bar.parts)
