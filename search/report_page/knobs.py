"""What was tried, knob by knob."""

from collections.abc import Mapping, Sequence

from records.choices import choices_of
from records.errors import StudyError
from records.study import Study, Value
from records.trial import Config, Trial
from search.charts.parallel import Knob, Tried, parallel_chart
from search.charts.scale import scale_of
from search.report_page.blocks import Chart, Section
from search.report_page.course import trial_tip
from search.report_page.seen import Seen
from search.report_page.thinning import left_out_words, thinned

MOST_AXES = 11
MOST_LINES = 300


def parallel(seen: Seen) -> Section | None:
    """Every configuration as a line; None where nothing was varied."""
    trials = [trial for trial in seen.history if trial.config is not None and trial.launched]
    knobs = varied(seen.study, [trial.config for trial in trials if trial.config is not None])
    if len(knobs) < 2 or len(trials) < 2:
        return None
    ranked = {trial.ordinal: place for place, trial in enumerate(seen.history.ranked)}
    shown = _thinned(trials, ranked)
    values = [found.centre for trial in shown if (found := seen.reached(trial)) is not None]
    last = scale_of(values, 0.0, 1.0)
    axes = [Knob(name=name, choices=tuple(map(str, choices))) for name, choices in knobs]
    lines = [_tried(seen, trial, knobs, ranked) for trial in shown]
    return Section(
        name="knobs",
        heading="What was tried",
        lead="One line for each configuration that was launched, through what it sets, to its "
        "result; lines that fail are dashed, and one that ends below an axis has no such knob."
        + left_out_words(len(shown), len(trials)),
        blocks=(
            Chart(
                drawn=parallel_chart(axes, lines, last, seen.scoring.expression.text),
                about="Parallel coordinates; the table of all trials has the same in words",
            ),
        ),
    )


def varied(study: Study, configs: Sequence[Config]) -> list[tuple[str, tuple[Value, ...]]]:
    """Knobs of which several values were tried, with these in their order."""
    found: list[tuple[str, tuple[Value, ...]]] = []
    for dimension in study.space.dimensions:
        name = dimension.name
        tried = {config.values.get(name) for config in configs}
        if len(tried) < 2:
            continue
        try:
            known = choices_of(dimension)
        except StudyError:
            known = ()
        others = sorted((v for v in tried if v is not None and v not in known), key=str)
        values = (*(choice for choice in known if choice in tried), *others)
        found.append((name, values))
    return found[:MOST_AXES]


def _thinned(trials: Sequence[Trial], ranked: Mapping[int, int]) -> Sequence[Trial]:
    """All of them where they are few; else the best, and some of the others."""
    if len(trials) <= MOST_LINES:
        return trials
    half = MOST_LINES // 2
    return thinned(trials, lambda trial: ranked.get(trial.ordinal, half) < half, half)


def _tried(
    seen: Seen,
    trial: Trial,
    knobs: Sequence[tuple[str, tuple[Value, ...]]],
    ranked: Mapping[int, int],
) -> Tried:
    config = {} if trial.config is None else trial.config.values
    last = max(1, len(ranked) - 1)
    rank = None if trial.score is None else ranked.get(trial.ordinal, last) / last
    reached = seen.reached(trial)
    return Tried(
        places=tuple(
            values.index(config[name]) if name in config else None for name, values in knobs
        ),
        value=None if reached is None else reached.centre,
        rank=rank,
        is_best=trial is seen.best,
        tip=trial_tip(trial, seen.history),
    )
