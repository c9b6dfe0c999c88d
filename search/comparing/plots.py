"""Values of several sides with their intervals, drawn to one scale in a line of text each."""

from collections.abc import Sequence
from dataclasses import dataclass

from search.comparing.compared import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Strokes:
    """What intervals are drawn with."""

    start: str
    line: str
    centre: str
    end: str


PLAIN = Strokes(start="|", line="-", centre="o", end="|")
LINES = Strokes(start="├", line="─", centre="●", end="┤")


def interval_plot(readings: Sequence[Reading], width: int, strokes: Strokes) -> list[str]:
    """One line for each reading: its interval around its centre, or the centre alone.

    The first place of `width` is the least of all values, the last the greatest.
    """
    values = [x for each in readings for x in (each.low, each.centre, each.high) if x is not None]
    low, scale = min(values), max(values) - min(values)

    def place(value: float) -> int:
        return round((value - low) / scale * (width - 1)) if scale > 0 else width // 2

    lines = []
    for each in readings:
        drawn = [" "] * width
        if each.low is not None and each.high is not None:
            start, end = place(each.low), place(each.high)
            drawn[start : end + 1] = strokes.line * (end + 1 - start)
            drawn[start], drawn[end] = strokes.start, strokes.end
        drawn[place(each.centre)] = strokes.centre
        lines.append("".join(drawn).rstrip())
    return lines
