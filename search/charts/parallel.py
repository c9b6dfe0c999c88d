"""Configurations as lines over parallel axes, one for each knob, and what they cost at the end."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from search.charts import svg
from search.charts.frame import RIGHT, WIDTH, Key, legend
from search.charts.scale import Scale

HEIGHT: Final = 340.0
TOP, BOTTOM, SIDE = 74.0, 26.0, 56.0
NAME_HEIGHT, NAME_CHAR_WIDTH = 16.0, 7.5
NAME_CHARS, END_NAME_CHARS = 26, 16
FEW: Final = 2
SHADES: Final = 5
"""Classes `shade0` (best) to `shade4` (worst)."""
KEYS: Final = (
    Key(name="best", kind="line best", shape="line"),
    Key(name="good", kind="line shade1", shape="line"),
    Key(name="bad", kind="line shade4", shape="line"),
    Key(name="failed", kind="line broken", shape="line"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """An axis: its name, and its choices from the bottom up."""

    name: str
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A configuration: the place of its choice on each axis, None where the knob has no effect.

    `rank` is its place among all measured, 0 for the best and 1 for the worst; None for a failure.
    """

    places: tuple[int | None, ...]
    value: float | None
    rank: float | None
    is_best: bool
    tip: str
    trial: int | None = None
    """Whose line this is, where it can be selected."""


def parallel_chart(knobs: Sequence[Knob], tried: Sequence[Tried], values: Scale, label: str) -> str:
    """A line for every configuration; `values` is the last axis, from whose ends only it takes.

    The best is drawn last, over the others, and the failed first.
    """
    count = len(knobs) + 1
    axes = [SIDE + place * (WIDTH - 2 * SIDE - RIGHT) / max(1, count - 1) for place in range(count)]
    last = Scale(
        low=values.low,
        high=values.high,
        start=HEIGHT - BOTTOM - 24,
        end=TOP,
        logarithmic=values.logarithmic,
    )
    order = sorted(tried, key=lambda one: (one.is_best, -2.0 if one.rank is None else -one.rank))
    kinds = {_kind(one) for one in tried}
    shaded = len(tried) > FEW
    keys = [key for key in KEYS if key.kind in kinds or (shaded and "shade" in key.kind)]
    return svg.drawing(
        WIDTH,
        HEIGHT,
        f"Knobs of every trial, and {label}",
        f"{len(tried)} configurations over {len(knobs)} knobs",
        *(_tried(one, knobs, axes, last) for one in order),
        *(_knob(knob, x) for knob, x in zip(knobs, axes, strict=False)),
        _last(last, axes[-1], failed=any(one.rank is None for one in tried)),
        *_names([*(knob.name for knob in knobs), label], axes),
        legend(keys, WIDTH - RIGHT, 14.0),
    )


def _kind(one: Tried) -> str:
    if one.is_best:
        return "line best"
    if one.rank is None:
        return "line broken"
    return f"line shade{min(SHADES - 1, int(one.rank * SHADES))}"


def _tried(one: Tried, knobs: Sequence[Knob], axes: Sequence[float], last: Scale) -> str:
    end = HEIGHT - BOTTOM if one.value is None else last.place(one.value)
    heights = [_height(place, knob) for place, knob in zip(one.places, knobs, strict=True)]
    points = list(zip(axes, [*heights, end], strict=True))
    return svg.polyline(points, _kind(one), one.tip, one.trial)


def _height(place: int | None, knob: Knob) -> float:
    """That of a choice; below all of them where the knob has no effect."""
    bottom = HEIGHT - BOTTOM - 24
    if place is None:
        return HEIGHT - BOTTOM
    return bottom - place * (bottom - TOP) / max(1, len(knob.choices) - 1)


def _knob(knob: Knob, x: float) -> str:
    every = -(-len(knob.choices) // 12)
    return "".join(
        [
            svg.line(x, TOP, x, HEIGHT - BOTTOM, "axis"),
            *(
                svg.words(x + 5, _height(place, knob) + 4, choice, kind="label halo", chars=12)
                for place, choice in enumerate(knob.choices)
                if place % every == 0
            ),
        ]
    )


def _names(names: Sequence[str], axes: Sequence[float]) -> Iterator[str]:
    """The names of the axes in two rows by turns, so that long ones do not collide."""
    inner = int(2 * (WIDTH - 2 * SIDE - RIGHT) / max(1, len(axes) - 1) / NAME_CHAR_WIDTH)
    for place, (name, x) in enumerate(zip(names, axes, strict=True)):
        y = TOP - 12 - NAME_HEIGHT * (place % 2)
        room = NAME_CHARS if 0 < place < len(axes) - 1 else END_NAME_CHARS
        yield svg.words(x, y, name, anchor="middle", kind="name", chars=min(inner, room))


def _last(last: Scale, x: float, *, failed: bool) -> str:
    bottom = HEIGHT - BOTTOM
    return "".join(
        [
            svg.line(x, TOP, x, bottom, "axis"),
            *(svg.words(x + 5, y + 4, text, kind="label halo", chars=10) for y, text in last.ticks),
            svg.words(x + 5, bottom + 4, "failed", kind="label halo") if failed else "",
        ]
    )
