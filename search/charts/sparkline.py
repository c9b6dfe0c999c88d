"""A search in a word's height: what the best so far was, trial by trial."""

from collections.abc import Sequence
from typing import Final

from search.charts import svg

WIDTH: Final = 120.0
HEIGHT: Final = 28.0
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
        return MARGIN + (WIDTH - 2 * MARGIN) * ordinal / max(1, last)

    def y(value: float) -> float:
        share = (top - value) / span if span > 0 else float(lower_is_better)
        return MARGIN + (HEIGHT - 2 * MARGIN) * share

    path = [(x(steps[0][0]), y(values[0]))]
    for (ordinal, _), value in zip(steps[1:], values[1:], strict=True):
        path += [(x(ordinal), path[-1][1]), (x(ordinal), y(value))]
    path.append((x(max(last, steps[-1][0])), path[-1][1]))
    return svg.element(
        "svg",
        svg.polyline(path, "lead"),
        svg.circle(x(steps[-1][0]), path[-1][1], 2.5, "best"),
        class_="spark chart",
        viewBox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}",
        aria_hidden="true",
    )
