"""Draw traces: where steps went, what overlaps in one, and the bandwidth of collectives."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np

from evaluator.traces.analysis.breakdown import JobSplit, StepSplit
from evaluator.traces.intervals import Intervals
from evaluator.traces.model import Activity, RankTrace, TraceSet
from records.errors import StudyError
from search.traces.tables import Row as TableRow
from search.views.charts import (
    TONES,
    Panel,
    Point,
    Row,
    Series,
    Stretch,
    rows_chart,
    stacked,
    xy_chart,
)
from search.views.format import format_decimal_bytes, format_duration, format_number, one_line
from search.views.svg import ChartAxis, LegendEntry, Shape

NOT_PROFILED = "no step was profiled on every traced rank; nothing to draw"
MOST_BARS = 64
MOST_TIMELINES = 16
PIECES_PER_LINE = 1500
"""About as many as there are pixels: shorter gaps than this leaves cannot be seen."""
KEYS: Final = (
    LegendEntry(name="compute alone", kind="part0"),
    LegendEntry(name="compute in parallel with communication", kind="part4"),
    LegendEntry(name="exposed communication", kind="part1"),
    LegendEntry(name="exposed copies", kind="part2"),
    LegendEntry(name="fills", kind="part5"),
    LegendEntry(name="idle", kind="part3"),
)


def breakdown_chart(split: JobSplit | None, title: str) -> str:
    """One bar per rank, and their mean: where a step went, in milliseconds.

    Hidden communication is within compute, as the part that ran in parallel. Raises StudyError
    where ranks have no step in common.
    """
    if split is None:
        raise StudyError(f"{title}: {NOT_PROFILED}")
    shown = split.by_rank[:MOST_BARS]
    label = "ms per step" if split.step_numbers else "ms"
    return rows_chart(
        [
            *(_breakdown_row(f"rank {rank}", mean) for rank, mean in shown),
            _breakdown_row("mean", split.mean),
        ],
        ChartAxis(label=label, kind="zero"),
        KEYS,
        title=_title(title, len(split.by_rank) - len(shown)),
    )


def _breakdown_row(name: str, split: StepSplit) -> Row:
    parts_ms = [1e3 * each for each in _parts_s(split)]
    words = ", ".join(
        f"{key.name} {format_number(part)} ms"
        for key, part in zip(KEYS, parts_ms, strict=True)
        if part > 0
    )
    return Row(
        name=name,
        stretches=stacked(parts_ms, [key.kind for key in KEYS]),
        words=f"{format_number(sum(parts_ms))} ms",
        tip=f"{name}: {words}",
        is_best=name == "mean",
    )


def _parts_s(split: StepSplit) -> tuple[float, ...]:
    return (
        split.compute_s - split.hidden_communication_s,
        split.hidden_communication_s,
        split.exposed_communication_s,
        split.exposed_copy_s,
        split.fill_s,
        split.idle_s,
    )


def _title(title: str, left_out: int) -> str:
    return f"{title} ({left_out} more ranks)" if left_out else title


TIMELINE_KEYS: Final = (
    LegendEntry(name="compute", kind="part0"),
    LegendEntry(name="exposed communication", kind="part1"),
    LegendEntry(name="hidden communication", kind="part4"),
    LegendEntry(name="copies and fills", kind="part2"),
    LegendEntry(name="idle", kind="part3"),
)


def timeline_chart(traces: TraceSet, title: str) -> str:
    """What each rank did in the middle one of the common steps: a row per rank, in milliseconds.

    Compute is above communication, which is exposed or hidden behind it; copies are below. Ranks
    share one time axis where their clocks agree; else each begins at its own start.
    Raises StudyError where ranks have no step in common.
    """
    numbers = traces.common_steps
    if not numbers.size:
        raise StudyError(f"{title}: {NOT_PROFILED}")
    number = int(numbers[numbers.size // 2])
    shown = traces.ranks[:MOST_TIMELINES]
    windows = [_window(trace, number) for trace in shown]
    # Windows of one step meet on clocks that agree.
    together = max(start for start, _ in windows) < min(end for _, end in windows)
    zero_ns = min(start for start, _ in windows)
    clock = "" if together else ", each rank from its own start"
    return rows_chart(
        [
            _timeline_row(trace, window, zero_ns if together else window[0])
            for trace, window in zip(shown, windows, strict=True)
        ],
        ChartAxis(label=f"ms{clock}", kind="zero"),
        TIMELINE_KEYS,
        title=_title(f"{title}: step {number}", len(traces.ranks) - len(shown)),
        row_height=34.0,
    )


def _timeline_row(trace: RankTrace, window: tuple[int, int], zero_ns: int) -> Row:
    whole = Intervals.union(np.array([window[0]]), np.array([window[1]]))
    compute = trace.computing().intersect(whole)
    talking = trace.communicating().intersect(whole)
    copies = trace.covered(Activity.COPY, Activity.FILL).intersect(whole)
    exposed, overlapped = talking.subtract(compute), talking.intersect(compute)
    idle = whole.subtract(compute.unite(talking).unite(copies))
    parts = zip(TIMELINE_KEYS, (compute, exposed, overlapped, copies, idle), LANES, strict=True)
    gap_ns = (window[1] - window[0]) // PIECES_PER_LINE
    stretches, words = [], []
    for key, ran, (top, height) in parts:
        seen = ran.chosen(ran.end_ns - ran.start_ns > gap_ns) if ran is idle else ran
        pieces = _visible(seen, 0 if ran is idle else gap_ns)
        starts, ends = ((at - zero_ns) / 1e6 for at in (pieces.start_ns, pieces.end_ns))
        both = list(zip(starts.tolist(), ends.tolist(), strict=True))
        stretches.append(Stretch(kind=f"{key.kind} part", pieces=both, top=top, height=height))
        words.append(f"{key.name} {format_duration(ran.total_ns / 1e9)}")
    took = format_duration((window[1] - window[0]) / 1e9)
    name = f"rank {trace.rank}"
    return Row(name=name, stretches=stretches, tip=f"{name}: step {took}, {', '.join(words)}")


LANES: Final = ((0.0, 0.5), (0.5, 0.35), (0.5, 0.35), (0.85, 0.15), (0.0, 1.0))
"""Where the parts of `TIMELINE_KEYS` lie in a row: from where on, and how high."""


def _visible(pieces: Intervals, gap_ns: int) -> Intervals:
    """The same without gaps that are too short to be seen."""
    joined = Intervals.union(pieces.start_ns, pieces.end_ns + gap_ns)
    return Intervals(joined.start_ns, joined.end_ns - gap_ns)


def _window(trace: RankTrace, number: int) -> tuple[int, int]:
    step = trace.steps.among(np.array([number]))
    return int(step.start_ns[0]), int(step.end_ns[0])


SHAPES: Final[tuple[Shape, ...]] = ("dot", "up", "square", "diamond", "down", "cross")


def bandwidth_chart(collectives: Sequence[TableRow], title: str) -> str:
    """Bus bandwidth of each collective against its size, a mark for each kind.

    `collectives` are rows of `collective_rows`. Raises StudyError where none has both.
    """
    found: dict[str, list[Point]] = defaultdict(list)
    for row in collectives:
        size, speed, kind = row["bytes"], row["bus_bytes_per_s"], str(row["kind"])
        if isinstance(size, int) and isinstance(speed, float):
            tip = f"{kind}, {format_decimal_bytes(size)}: {format_number(speed / 1e9)} GB/s"
            found[kind].append(Point(x=size, y=speed / 1e9, tip=tip))
    if not found:
        raise StudyError(f"{title}: no collective has a known size and time; nothing to draw")
    series = [
        Series(
            name=f"{one_line(kind, 30)} ({len(points)})",
            kind=f"tone{number % TONES}",
            shape=SHAPES[number % len(SHAPES)],
            points=points,
        )
        for number, (kind, points) in enumerate(sorted(found.items()))
    ]
    return xy_chart(
        Panel(
            series=series,
            x=ChartAxis(label="size of the whole buffer, bytes"),
            y=ChartAxis(label="bus bandwidth, GB/s", kind="zero"),
        ),
        title=title,
    )
