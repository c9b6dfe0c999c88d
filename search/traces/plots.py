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
from search.views.format import format_decimal_bytes, format_number, one_line
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


LANES: Final = (
    ("compute", "part0", (Activity.COMPUTE,), 0.0, 0.5),
    ("communication", "part1", (Activity.COMMUNICATION,), 0.5, 0.35),
    ("copies and fills", "part2", (Activity.COPY, Activity.FILL), 0.85, 0.15),
)
"""What a row of the timeline shows of a rank, in which colour, from where and how high."""


def timeline_chart(traces: TraceSet, title: str) -> str:
    """What overlaps in the middle one of the common steps: a row per rank, in milliseconds.

    Ranks share one time axis where their clocks agree; else each begins at its own start.
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
        [LegendEntry(name=name, kind=kind) for name, kind, *_ in LANES],
        title=_title(f"{title}: step {number}", len(traces.ranks) - len(shown)),
        row_height=34.0,
    )


def _timeline_row(trace: RankTrace, window: tuple[int, int], zero_ns: int) -> Row:
    stretches = []
    for name, kind, activities, top, height in LANES:
        ran = trace.computing() if name == "compute" else trace.covered(*activities)
        pieces = _visible(ran.clip(*window), (window[1] - window[0]) // PIECES_PER_LINE)
        starts, ends = ((at - zero_ns) / 1e6 for at in (pieces.start_ns, pieces.end_ns))
        both = list(zip(starts.tolist(), ends.tolist(), strict=True))
        stretches.append(Stretch(kind=f"{kind} part", pieces=both, top=top, height=height))
    return Row(name=f"rank {trace.rank}", stretches=stretches)


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
