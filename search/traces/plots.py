"""Plot traces, and the Pareto front of two objectives, as PNG without a display."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evaluator.objective import Scoring
from evaluator.timing.decision import Spread
from evaluator.traces.analysis.breakdown import JobSplit, StepSplit
from evaluator.traces.intervals import Intervals
from evaluator.traces.model import Activity, RankTrace, TraceSet
from records.errors import StoreError, StudyError
from records.trial import History
from search.loop.leader import FrontMember, ObjectiveValue, own_values
from search.traces.tables import Row
from search.views.format import one_line

NOT_PROFILED = "no step was profiled on every traced rank; nothing to draw"
DOTS_PER_INCH = 120
INCHES_PER_BAR = 0.28
TITLE_CHARS = 100
MOST_BARS = 64
MOST_TIMELINES = 16
PIECES_PER_LINE = 4000
"""More than there are pixels: shorter gaps than this leaves cannot be seen."""

COLOURS: Final[Mapping[str, str]] = {
    "compute alone": "#4c956c",
    "compute beside communication": "#a7c957",
    "exposed communication": "#f2a541",
    "exposed copies": "#7d8597",
    "fills": "#b8bcc6",
    "idle": "#ececec",
}


def breakdown_figure(split: JobSplit | None, title: str) -> Figure:
    """One bar per rank, and their mean: where a step went, in milliseconds.

    Hidden communication is within compute, as the part that ran in parallel. Raises StudyError
    where ranks have no step in common.
    """
    if split is None:
        raise StudyError(f"{title}: {NOT_PROFILED}")
    kept = split.by_rank[:MOST_BARS]
    bars = [*((f"rank {rank}", mean) for rank, mean in kept), ("mean", split.mean)]
    figure = Figure(figsize=(8, 1.6 + INCHES_PER_BAR * len(bars)), layout="constrained")
    axes = figure.subplots()
    left = np.zeros(len(bars))
    for part, colour in COLOURS.items():
        width = np.array([_milliseconds(mean)[part] for _, mean in bars])
        axes.barh([name for name, _ in bars], width, left=left, color=colour, label=part)
        left += width
    axes.invert_yaxis()
    axes.set_xlabel("ms per step" if split.step_numbers else "ms")
    left_out = len(split.by_rank) - len(kept)
    _entitle(axes, f"{title} ({left_out} more ranks)" if left_out else title)
    add_legend(figure, 3)
    return figure


def _milliseconds(split: StepSplit) -> Mapping[str, float]:
    parts_s = (
        split.compute_s - split.hidden_communication_s,
        split.hidden_communication_s,
        split.exposed_communication_s,
        split.exposed_copy_s,
        split.fill_s,
        split.idle_s,
    )
    return {part: seconds * 1e3 for part, seconds in zip(COLOURS, parts_s, strict=True)}


def timeline_figure(traces: TraceSet, title: str) -> Figure:
    """What overlaps in the middle one of the common steps: two lines per rank, in milliseconds.

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
    figure = Figure(figsize=(10, 1.8 + 0.5 * len(shown)), layout="constrained")
    axes = figure.subplots()
    for line, (trace, (start_ns, end_ns)) in enumerate(zip(shown, windows, strict=True)):
        zero_ns = min(start for start, _ in windows) if together else start_ns
        _draw_rank(axes, trace, line, (start_ns, end_ns), zero_ns)
    axes.set_yticks(range(len(shown)), [f"rank {trace.rank}" for trace in shown])
    axes.invert_yaxis()
    clock = "" if together else ", each rank from its own start"
    axes.set_xlabel(f"ms{clock}")
    left_out = len(traces.ranks) - len(shown)
    more = f" ({left_out} more ranks)" if left_out else ""
    _entitle(axes, f"{title}: step {number}{more}")
    add_legend(figure, 4)
    return figure


LANES: Final = (
    ("compute", "compute alone", (Activity.COMPUTE,), -0.42, 0.4),
    ("communication", "exposed communication", (Activity.COMMUNICATION,), 0.0, 0.28),
    ("copies and fills", "exposed copies", (Activity.COPY, Activity.FILL), 0.3, 0.12),
)
"""What a line of the timeline shows of a rank, in whose colour and where: above is compute."""


def _draw_rank(
    axes: Axes, trace: RankTrace, line: int, window: tuple[int, int], zero_ns: int
) -> None:
    for name, part, activities, low, height in LANES:
        ran = trace.computing() if name == "compute" else trace.covered(*activities)
        pieces = _visible(ran.clip(*window), (window[1] - window[0]) // PIECES_PER_LINE)
        left = (pieces.start_ns - zero_ns) / 1e6
        width = (pieces.end_ns - pieces.start_ns) / 1e6
        axes.broken_barh(
            list(zip(left.tolist(), width.tolist(), strict=True)),
            (line + low, height),
            color=COLOURS[part],
            linewidth=0,
            label=name,
        )


def _visible(pieces: Intervals, gap_ns: int) -> Intervals:
    """The same without gaps that are too short to be seen."""
    joined = Intervals.union(pieces.start_ns, pieces.end_ns + gap_ns)
    return Intervals(joined.start_ns, joined.end_ns - gap_ns)


def _window(trace: RankTrace, number: int) -> tuple[int, int]:
    step = trace.steps.among(np.array([number]))
    return int(step.start_ns[0]), int(step.end_ns[0])


def bandwidth_figure(collectives: Sequence[Row], title: str) -> Figure:
    """Bus bandwidth of each collective against its size, a mark for each kind.

    `collectives` are rows of `collective_rows`. Raises StudyError where none has both.
    """
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in collectives:
        size, speed = row["bytes"], row["bus_bytes_per_s"]
        if isinstance(size, int) and isinstance(speed, float):
            points[str(row["kind"])].append((size, speed / 1e9))
    if not points:
        raise StudyError(f"{title}: no collective has a known size and time; nothing to draw")
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for (kind, values), mark in zip(sorted(points.items()), cycle("o^sDvPX*"), strict=False):
        sizes, speeds = zip(*values, strict=True)
        axes.scatter(sizes, speeds, marker=mark, s=22, alpha=0.6, label=f"{kind} ({len(values)})")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("size of the whole buffer, bytes")
    axes.set_ylabel("bus bandwidth, GB/s")
    _finish(axes, title)
    return figure


def save(figure: Figure, path: Path | str | None) -> Figure:
    """Write a figure as PNG, if a path is given. Raises StoreError when it cannot be written."""
    try:
        if path is not None:
            Path(path).write_bytes(png(figure))
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error
    return figure


def png(figure: Figure) -> bytes:
    """A figure as PNG."""
    content = BytesIO()
    figure.savefig(content, format="png", dpi=DOTS_PER_INCH)
    return content.getvalue()


def draw_plain(axes: Axes) -> None:
    """Draw a faint grid, and no frame above and to the right."""
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def add_legend(figure: Figure, most_columns: int) -> None:
    """Put one legend below all panels, with each name once."""
    handles = {
        name: handle
        for axes in figure.axes
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=max(1, min(len(handles), most_columns)),
        fontsize=8,
        frameon=False,
    )


def _finish(axes: Axes, title: str) -> None:
    _entitle(axes, title)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8, frameon=False)


def _entitle(axes: Axes, title: str) -> None:
    """Set a title that is nothing but text, whatever the name of a folder looks like."""
    axes.set_title(one_line(title, TITLE_CHARS), fontsize=10, parse_math=False)


LABEL_CHARS = 60
FRONT, OTHERS = COLOURS["compute alone"], COLOURS["fills"]
OBJECTIVES = 2


def front_figure(
    scoring: Scoring, history: History, front: Sequence[FrontMember], title: str
) -> Figure:
    """Every measured trial by its two objectives, with those on the front joined and named.

    Raises StudyError where there are not two objectives, or nothing was measured.
    """
    if len(scoring.objectives) != OBJECTIVES:
        raise StudyError(
            f"a front is drawn over two objectives, and there are {len(scoring.objectives)}; "
            "give two with --objective A --objective B"
        )
    if not front:
        raise StudyError("no trial is on the front; nothing to draw")
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    _draw_others(axes, scoring, history)
    _draw_front(axes, front)
    axes.set_xlabel(_axis_words(scoring, front[0].reached[0]), parse_math=False)
    axes.set_ylabel(_axis_words(scoring.more[0], front[0].reached[1]), parse_math=False)
    _finish(axes, title)
    return figure


def _draw_others(axes: Axes, scoring: Scoring, history: History) -> None:
    others = [each for each in history.measured if each.ordinal not in history.front]
    for label, broken, mark in (("measured", False, "o"), ("breaks a limit", True, "x")):
        points = [
            values
            for trial in others
            if trial.score
            and bool(trial.score.broken) is broken
            and (values := own_values(trial, scoring)) is not None
        ]
        if points:
            x, y = zip(*points, strict=True)
            axes.scatter(x, y, marker=mark, s=26, color=OTHERS, label=label)


def _draw_front(axes: Axes, front: Sequence[FrontMember]) -> None:
    """With the intervals of repeated launches."""
    x, y = ([member.reached[place].value for member in front] for place in range(OBJECTIVES))
    centres = [value.centre for value in x], [value.centre for value in y]
    axes.errorbar(
        *centres,
        xerr=_arms(x),
        yerr=_arms(y),
        color=FRONT,
        marker="o",
        markersize=5,
        linewidth=1,
        drawstyle="steps-post",  # between two members only the worse of both is known
        capsize=3,
        label="front",
    )
    for member, place in zip(front, zip(*centres, strict=True), strict=True):
        axes.annotate(
            str(member.ordinal), place, textcoords="offset points", xytext=(5, 5), fontsize=8
        )


def _arms(values: Sequence[Spread]) -> tuple[list[float], list[float]]:
    """How far each interval reaches to both sides; no arm without an interval."""
    below = [0.0 if v.low is None else v.centre - v.low for v in values]
    above = [0.0 if v.high is None else v.high - v.centre for v in values]
    return below, above


def _axis_words(scoring: Scoring, reached: ObjectiveValue) -> str:
    unit = f", {reached.unit}" if reached.unit else ""
    better = "lower" if scoring.lower_is_better else "higher"
    return f"{one_line(reached.objective, LABEL_CHARS)}{unit} ({better} is better)"
