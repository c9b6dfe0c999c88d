"""Draws the front of two objectives."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evaluator.objective import Scoring
from evaluator.timing.spread import Spread
from records.errors import StudyError
from records.history import History
from search.front import Member, Reached, own_values
from search.traces.plots import COLOURS
from search.words.trial import one_line

LABEL_CHARS, TITLE_CHARS = 60, 100
FRONT, OTHERS = COLOURS["compute alone"], COLOURS["fills"]
OBJECTIVES = 2


def front_figure(scoring: Scoring, history: History, front: Sequence[Member], title: str) -> Figure:
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
    axes.set_title(one_line(title, TITLE_CHARS), fontsize=10, parse_math=False)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8, frameon=False)
    return figure


def _draw_others(axes: Axes, scoring: Scoring, history: History) -> None:
    told = [(trial, own_values(trial, scoring)) for trial in history.measured]
    others = [(trial, values) for trial, values in told if trial.ordinal not in history.front]
    for label, broken, mark in (("measured", False, "o"), ("breaks a limit", True, "x")):
        points = [
            values
            for trial, values in others
            if values is not None and trial.score and bool(trial.score.broken) is broken
        ]
        if points:
            x, y = zip(*points, strict=True)
            axes.scatter(x, y, marker=mark, s=26, color=OTHERS, label=label)


def _draw_front(axes: Axes, front: Sequence[Member]) -> None:
    """With the intervals of those that were launched again."""
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


def _axis_words(scoring: Scoring, reached: Reached) -> str:
    unit = f", {reached.unit}" if reached.unit else ""
    better = "lower" if scoring.lower_is_better else "higher"
    return f"{one_line(reached.objective, LABEL_CHARS)}{unit} ({better} is better)"
