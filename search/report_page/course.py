"""How the search went: every trial in its order."""

import math
from collections.abc import Iterator, Sequence

from evaluator.objective import Scoring
from records.history import History
from records.trial import Failed, Trial
from search.charts.history import Ended, Interval, Point, history_chart
from search.progress import result_words
from search.report import spread_words
from search.report_page.blocks import Chart, Section
from search.report_page.seen import Seen
from search.report_page.thinning import left_out_words, thinned
from search.words.trial import one_line

TIP_CHARS = 300
LABEL_CHARS = 60
BAR_CHARS = 30
LETTER_ROWS = 60


def course(seen: Seen) -> Section | None:
    """Every trial in order; None where nothing was measured."""
    points = [_point(trial, seen) for trial in seen.history]
    if not any(point.value is not None for point in points):
        return None
    count, led = len(points), _led(points, seen.scoring.sign)
    points = thinned(points, lambda point: point.ordinal in led)
    chart = history_chart(
        points,
        _again(seen),
        label=objective_label(seen.scoring),
        lower_is_better=seen.scoring.lower_is_better,
    )
    better = "lower" if seen.scoring.lower_is_better else "higher"
    return Section(
        name="history",
        heading="History",
        lead=f"One mark for each trial in the order of launches, {better} is better; a trial that "
        "failed is a tick on the axis, and the best has the interval of its "
        f"launches.{left_out_words(len(points), count)}",
        blocks=(
            Chart(
                drawn=chart,
                about=f"{objective_label(seen.scoring)} of each trial",
                letters="\n".join(_letters(seen)),
            ),
        ),
    )


def _led(points: Sequence[Point], sign: int) -> set[int]:
    """Trials that were the best so far when they ended."""
    led: set[int] = set()
    least = math.inf
    for point in points:
        if point.value is not None and point.ended == "measured" and sign * point.value < least:
            least = sign * point.value
            led.add(point.ordinal)
    return led


def trial_tip(trial: Trial, history: History) -> str:
    """A trial in a line, for whoever points at its mark."""
    config = "" if trial.config is None else f": {trial.config}"
    if isinstance(trial.outcome, Failed):
        return one_line(f"trial {trial.ordinal} failed, {trial.outcome}{config}", TIP_CHARS)
    words = result_words(trial, history)
    score = f", {words}" if words else ""
    return one_line(f"trial {trial.ordinal}{score}{config}", TIP_CHARS)


def _point(trial: Trial, seen: Seen) -> Point:
    ended: Ended = "failed"
    if trial.score is not None:
        ended = "breaks a limit" if trial.score.broken else "measured"
    reached = seen.reached(trial)
    value = None if reached is None else reached.centre
    return Point(
        ordinal=trial.ordinal, value=value, ended=ended, tip=trial_tip(trial, seen.history)
    )


def _again(seen: Seen) -> Interval | None:
    best, result = seen.best, seen.finding.result
    if best is None or result is None or result.launch_count < 2:
        return None
    words = spread_words(result, seen.scoring.unit)
    return Interval(
        ordinal=best.ordinal,
        centre=result.centre,
        low=result.low,
        high=result.high,
        tip=f"trial {best.ordinal} launched again: {words}",
    )


def _letters(seen: Seen) -> Iterator[str]:
    """The same as a line for each trial; the first and the last where there are many."""
    trials = seen.history.trials
    values = [abs(found.centre) for trial in trials if (found := seen.reached(trial)) is not None]
    most = max(values, default=0.0)
    half = LETTER_ROWS // 2
    left_out = len(trials) - LETTER_ROWS
    for place, trial in enumerate(trials):
        if left_out > 0 and half <= place < len(trials) - half:
            if place == half:
                yield f"    ({left_out} more trials)"
            continue
        reached = seen.reached(trial)
        if reached is None:
            told = f"failed: {_kind(trial)}"
        else:
            bar = "#" * round(BAR_CHARS * (abs(reached.centre) / most if most else 0))
            told = f"{bar.ljust(BAR_CHARS)} {result_words(trial, seen.history)}"
        yield f"{trial.ordinal:>4} {told}{'  best' if trial is seen.best else ''}"


def _kind(trial: Trial) -> str:
    return trial.outcome.kind if isinstance(trial.outcome, Failed) else ""


def objective_label(scoring: Scoring) -> str:
    """An objective as an axis names it."""
    unit = f" ({scoring.unit})" if scoring.unit else ""
    return f"{one_line(scoring.expression.text, LABEL_CHARS)}{unit}"
