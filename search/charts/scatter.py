"""Two values of every trial against each other, with those that no other beats in both."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from search.charts import svg
from search.charts.frame import BOTTOM, LEFT, RIGHT, TOP, WIDTH, Key, across, legend, upwards
from search.charts.scale import Scale, scale_of

HEIGHT: Final = 380.0
NAME_WIDTH, NAME_HEIGHT = 30.0, 12.0
KEYS: Final = (
    Key(name="measured", kind="dot"),
    Key(name="breaks a limit", kind="limited", shape="cross"),
    Key(name="no other beats it", kind="best"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """A value with its interval, where one is known."""

    centre: float
    low: float | None = None
    high: float | None = None

    @property
    def ends(self) -> tuple[float, ...]:
        """All the numbers there are."""
        return tuple(end for end in (self.centre, self.low, self.high) if end is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A trial by two values; `name` is written beside it where it is on the front."""

    name: str
    x: Reach
    y: Reach
    on_front: bool
    is_limited: bool
    tip: str
    trial: int | None = None
    """Whose marks these are, where they can be selected."""


def front_chart(pairs: Sequence[Pair], *, x_label: str, y_label: str, line: bool = True) -> str:
    """Every pair, those on the front named and joined by steps; labels say which way is better."""
    x = scale_of([v for pair in pairs for v in pair.x.ends], LEFT, WIDTH - RIGHT)
    y = scale_of([v for pair in pairs for v in pair.y.ends], HEIGHT - BOTTOM, TOP)
    front = sorted((pair for pair in pairs if pair.on_front), key=lambda pair: pair.x.centre)
    others = [pair for pair in pairs if not pair.on_front]
    named = _apart(front, x, y)
    shown = [pair.is_limited for pair in others]
    keys = [
        key
        for key, seen in zip(KEYS, (False in shown, True in shown, bool(front)), strict=True)
        if seen
    ]
    return svg.drawing(
        WIDTH,
        HEIGHT,
        f"{y_label} against {x_label}",
        f"{len(pairs)} trials, {len(front)} of which no other beats in both",
        upwards(y, LEFT, y_label, WIDTH - RIGHT),
        across(x, HEIGHT - BOTTOM, x_label, TOP),
        _steps(front, x, y) if line else "",
        *(_other(pair, x, y) for pair in others),
        *(_member(pair, x, y, named=pair in named) for pair in front),
        legend(keys, WIDTH - RIGHT, 16.0),
    )


def _steps(front: Sequence[Pair], x: Scale, y: Scale) -> str:
    """Between two members only the worse of both is known."""
    places = [(x.place(pair.x.centre), y.place(pair.y.centre)) for pair in front]
    path = places[:1]
    for (_, before), (right, after) in pairwise(places):
        path += [(right, before), (right, after)]
    return svg.polyline(path, "lead") if len(places) > 1 else ""


def _other(pair: Pair, x: Scale, y: Scale) -> str:
    place = x.place(pair.x.centre), y.place(pair.y.centre)
    if pair.is_limited:
        return svg.cross(*place, 3.5, "limited", pair.tip, pair.trial)
    return svg.circle(*place, 4.0, "dot", pair.tip, pair.trial)


def _apart(front: Sequence[Pair], x: Scale, y: Scale) -> list[Pair]:
    """Members whose names do not lie over those of others."""
    named: list[Pair] = []
    for pair in front:
        near = (
            abs(x.place(pair.x.centre) - x.place(other.x.centre)) < NAME_WIDTH
            and abs(y.place(pair.y.centre) - y.place(other.y.centre)) < NAME_HEIGHT
            for other in named[-1:]
        )
        if not any(near):
            named.append(pair)
    return named


def _member(pair: Pair, x: Scale, y: Scale, *, named: bool) -> str:
    right, up = x.place(pair.x.centre), y.place(pair.y.centre)
    arms = ""
    if pair.x.low is not None and pair.x.high is not None:
        arms += svg.line(x.place(pair.x.low), up, x.place(pair.x.high), up, "arm")
    if pair.y.low is not None and pair.y.high is not None:
        arms += svg.line(right, y.place(pair.y.low), right, y.place(pair.y.high), "arm")
    near_end = right > WIDTH - 80
    beside = svg.words(
        right - 9 if near_end else right + 9,
        max(up - 7, 10.0),
        pair.name,
        anchor="end" if near_end else "start",
        chars=12,
    )
    dot = svg.circle(right, up, 5.5, "best", pair.tip, pair.trial)
    return arms + dot + (beside if named else "")
