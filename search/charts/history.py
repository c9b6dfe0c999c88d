"""A search as a chart: what every trial reached, in order, and the best so far."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, TypeAlias

from search.charts import svg
from search.charts.frame import BOTTOM, LEFT, RIGHT, TOP, WIDTH, Key, across, legend, upwards
from search.charts.scale import Scale, scale_of

HEIGHT: Final = 330.0
KEYS: Final = (
    Key(name="measured", kind="dot"),
    Key(name="breaks a limit", kind="limited", shape="cross"),
    Key(name="failed", kind="failure", shape="tick"),
    Key(name="best so far", kind="lead", shape="line"),
    Key(name="best, launched again", kind="best"),
)

Ended: TypeAlias = Literal["measured", "breaks a limit", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A trial: its value, None where it failed, and what to say of it."""

    ordinal: int
    value: float | None
    ended: Ended
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """What the best reached over all its launches."""

    ordinal: int
    centre: float
    low: float | None
    high: float | None
    tip: str


def history_chart(
    points: Sequence[Point], best: Interval | None, *, label: str, lower_is_better: bool
) -> str:
    """Every trial by ordinal, failures as ticks on the axis; `label` names the value."""
    values = [point.value for point in points if point.value is not None]
    ends = (best.centre, best.low, best.high) if best is not None else ()
    values += [value for value in ends if value is not None]
    y = scale_of(values, HEIGHT - BOTTOM - 12, TOP)
    last = max((point.ordinal for point in points), default=0)
    x = Scale(low=-0.5, high=last + 0.5, start=LEFT, end=WIDTH - RIGHT)
    shown = {point.ended for point in points} | ({"best so far"} if values else set())
    keys = [key for key in KEYS if key.name in shown or (key.kind == "best" and best is not None)]
    return svg.drawing(
        WIDTH,
        HEIGHT,
        f"{label} of every trial",
        f"{len(points)} trials in order, {len(points) - _measured(points)} without a value",
        upwards(y, LEFT, label, WIDTH - RIGHT),
        across(_whole(x, last), HEIGHT - BOTTOM, "trial", HEIGHT - BOTTOM),
        _lead(points, x, y, lower_is_better=lower_is_better),
        *(_mark(point, x, y) for point in points),
        "" if best is None else _interval(best, x, y),
        legend(keys, WIDTH - RIGHT, 16.0),
    )


def _measured(points: Sequence[Point]) -> int:
    return sum(point.value is not None for point in points)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted(Scale):
    """An axis of ordinals, which are whole."""

    @property
    def ticks(self) -> tuple[tuple[float, str], ...]:
        last = int(self.high)
        step = next(s for e in range(20) for f in (1, 2, 5) if (s := f * 10**e) * 14 >= last)
        return tuple((self.place(n), str(n)) for n in range(0, last + 1, step))


def _whole(x: Scale, last: int) -> Scale:
    return _Counted(low=x.low, high=last + 0.5, start=x.start, end=x.end)


def _mark(point: Point, x: Scale, y: Scale) -> str:
    place = x.place(point.ordinal)
    if point.value is None:
        bottom = HEIGHT - BOTTOM
        return svg.box(place - 1.25, bottom - 9, 2.5, 9.0, "failure", point.tip)
    if point.ended == "breaks a limit":
        return svg.cross(place, y.place(point.value), 3.5, "limited", point.tip)
    return svg.circle(place, y.place(point.value), 4.0, "dot", point.tip)


def _lead(points: Sequence[Point], x: Scale, y: Scale, *, lower_is_better: bool) -> str:
    """The best so far as a step line."""
    steps: list[tuple[int, float]] = []
    for point in points:
        if point.value is None or point.ended != "measured":
            continue
        if not steps or (
            point.value < steps[-1][1] if lower_is_better else point.value > steps[-1][1]
        ):
            steps.append((point.ordinal, point.value))
    if not steps:
        return ""
    path = [(x.place(steps[0][0]), y.place(steps[0][1]))]
    for (_, before), (ordinal, value) in pairwise(steps):
        path += [(x.place(ordinal), y.place(before)), (x.place(ordinal), y.place(value))]
    path.append((x.end, y.place(steps[-1][1])))
    return svg.polyline(path, "lead")


def _interval(best: Interval, x: Scale, y: Scale) -> str:
    place = x.place(best.ordinal)
    arm = ""
    if best.low is not None and best.high is not None:
        low, high = y.place(best.low), y.place(best.high)
        arm = svg.line(place, low, place, high, "arm") + "".join(
            svg.line(place - 5, end, place + 5, end, "arm") for end in (low, high)
        )
    return arm + svg.circle(place, y.place(best.centre), 5.5, "best", best.tip)
