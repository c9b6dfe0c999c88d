"""All trials in one table."""

from collections.abc import Sequence

from evaluator.timing.spread import Spread
from records.trial import Failed, Trial
from search.report_page.blocks import Cell, Row, Section, Table, Words
from search.report_page.cells import metric_words
from search.report_page.seen import Seen
from search.words.config import difference, flags
from search.words.trial import author, centre_words, one_line, remarks, support_words

MOST_ROWS = 2000
MOST_METRICS = 5
CAUSE_CHARS = 300
SHOWN_FIRST = ("step_time", "tokens_per_s", "peak_memory", "rank_count", "mfu")


def trials(seen: Seen) -> Section:
    """A row for each trial: what it sets, what it reached or why it failed."""
    shown = _shown(seen)
    left_out = len(seen.history) - len(shown)
    about = "Every trial; settings as differences to the best"
    if left_out:
        about = f"The best {len(shown)} trials and failures; {left_out} more are on record"
    metrics = _metrics(seen)
    table = Table(
        about=about,
        headings=(
            *("trial", "by", "sets", _objective(seen), "launches"),
            *metrics,
            "remarks or first cause",
        ),
        rows=tuple(_row(trial, metrics, seen) for trial in shown),
        numeric=frozenset({0, *range(3, 5 + len(metrics))}),
        is_long=True,
    ).dense
    lead = (
        "Each over the launches that count: those of the last final that it was in, or all that "
        "were made again to race it, or else its only one."
    )
    blocks = (table,) if len(shown) else (Words(text="No trial has ended yet."),)
    return Section(name="trials", heading="All trials", lead=lead, blocks=blocks)


def _shown(seen: Seen) -> Sequence[Trial]:
    trials = seen.history.trials
    if len(trials) <= MOST_ROWS:
        return trials
    ranked = seen.history.ranked[:MOST_ROWS]
    rest = [trial for trial in trials if trial.score is None][: MOST_ROWS - len(ranked)]
    return sorted((*ranked, *rest), key=lambda trial: trial.ordinal)


def _objective(seen: Seen) -> str:
    unit = f", {seen.scoring.unit}" if seen.scoring.unit else ""
    return f"{one_line(seen.scoring.expression.text, 60)}{unit}"


def _metrics(seen: Seen) -> list[str]:
    """What the objectives and limits are made of, then what people ask for first."""
    present = {value.name for values in seen.metrics.values() for value in values}
    told = seen.scoring.told_metrics
    names = [*sorted(told), *SHOWN_FIRST]
    own = seen.scoring.expression.text
    wanted = [name for name in dict.fromkeys(names) if name in present and name != own]
    return [name for name in wanted if name in told or _differs(name, seen)][:MOST_METRICS]


def _differs(name: str, seen: Seen) -> bool:
    found = (seen.metric(trial, name) for trial in seen.history.measured)
    return len({metric.value for metric in found if metric is not None}) > 1


def _row(trial: Trial, metrics: Sequence[str], seen: Seen) -> Row:
    is_best = trial is seen.best
    failed = isinstance(trial.outcome, Failed)
    reached = seen.reached(trial)
    return Row(
        cells=(
            Cell(text=str(trial.ordinal), value=trial.ordinal),
            Cell(text=author(trial)),
            Cell(text=_settings(trial, seen), is_code=True),
            *_value(reached),
            *(_metric(seen, trial, name) for name in metrics),
            Cell(text=_told(trial)),
        ),
        tone="best" if is_best else "failed" if failed else "",
        anchor=f"trial-{trial.ordinal}",
    )


def _settings(trial: Trial, seen: Seen) -> str:
    if trial.config is None:
        return ""
    best = seen.best
    if best is None or best.config is None or trial is best:
        return flags(trial.config)
    return difference(trial.config, best.config)


def _value(reached: Spread | None) -> tuple[Cell, Cell]:
    """The number of a trial, and what supports it."""
    if reached is None:
        return Cell(text=""), Cell(text="")
    return (
        Cell(text=centre_words(reached), value=reached.centre),
        Cell(text=support_words(reached), value=reached.launch_count),
    )


def _metric(seen: Seen, trial: Trial, name: str) -> Cell:
    metric = seen.metric(trial, name)
    if metric is None:
        return Cell(text="")
    return Cell(text=metric_words(metric), value=metric.value)


def _told(trial: Trial) -> str:
    if isinstance(trial.outcome, Failed):
        return one_line(f"{trial.outcome.kind}: {trial.outcome.message}", CAUSE_CHARS)
    return one_line("; ".join(remarks(trial)), CAUSE_CHARS)
