"""How far several searches were after each trial, as step lines over each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from search.charts import svg
from search.charts.frame import BOTTOM, LEFT, RIGHT, TOP, WIDTH, across, upwards
from search.charts.scale import Scale, scale_of

HEIGHT: Final = 320.0
KINDS: Final = 6
"""Classes `curve0` to `curve5`, each of its own colour and its own dashes."""
ROW: Final = 20.0
NAME_CHARS: Final = 90


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
    y = scale_of(values, HEIGHT - BOTTOM, TOP, zero=True)
    return svg.drawing(
        WIDTH,
        HEIGHT + ROW * len(shown),
        title,
        f"{len(shown)} lines: {y_label} by {x_label}",
        upwards(y, LEFT, y_label, WIDTH - RIGHT),
        across(x, HEIGHT - BOTTOM, x_label, HEIGHT - BOTTOM),
        *(_line(curve, f"curve{place}", x, y) for place, curve in enumerate(shown)),
        *(_name(curve.name, place) for place, curve in enumerate(shown)),
    )


def _line(curve: Curve, kind: str, x: Scale, y: Scale) -> str:
    if not curve.points:
        return ""
    path = [(x.place(curve.points[0][0]), y.place(curve.points[0][1]))]
    for (_, before), (place, value) in pairwise(curve.points):
        path += [(x.place(place), y.place(before)), (x.place(place), y.place(value))]
    path.append((x.place(curve.end), y.place(curve.points[-1][1])))
    return svg.polyline(path, kind, curve.name)


def _name(name: str, place: int) -> str:
    y = HEIGHT + ROW * place + 10
    mark = svg.line(LEFT, y - 4, LEFT + 34, y - 4, f"curve{place}")
    return mark + svg.words(LEFT + 44, y, name, chars=NAME_CHARS)
