"""Sections: knob importance, time, cost, trials.

Which knobs matter, as far as so few trials can tell.

Where the steps of each trial went.

What the search took: launches, time, ranks, money and tokens.

All trials in one table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from evaluator.timing.decision import Spread
from records.trial import Breakdown, Failed, Measured, Outcome, Trial
from search.loop.learned import dead_knobs
from search.report.data import Seen
from search.report.outcome import TIP_CHARS
from search.strategies.surrogate import LEAST_CONFIGS, Importance, KnobEffect, importance
from search.transfer.trust import is_foreign
from search.views.charts import Bar, bar_chart
from search.views.document import (
    Block,
    Cell,
    Chart,
    Facts,
    Row,
    Section,
    Table,
    Words,
    metric_words,
    words_row,
)
from search.views.format import (
    author,
    centre_words,
    difference,
    flags,
    number,
    one_line,
    remarks,
    shares,
    support_words,
)
from search.views.study import use_words
from search.views.svg import Key

BAR_CHARS = 30
POOR = 0.25
"""Share of the variation below which the model's word is not worth a chart."""


def matters(seen: Seen) -> Section | None:
    """Which knobs matter, or that too little was measured to say; None without a space."""
    if seen.space is None or not seen.history.measured:
        return None
    found = importance(seen.space, seen.history, seen.scoring.sign)
    blocks: list[Block] = list(_dead(seen))
    if found is None or not found.effects:
        lead = (
            f"Too few trials to tell which knobs matter: it takes {LEAST_CONFIGS} configurations "
            "with a result above zero, and knobs that differ between them."
        )
    elif found.explained < POOR:
        lead = (
            f"The {found.config_count} measured configurations do not tell which knobs matter: of "
            f"one that is left out, a model of the others foretells {_percent(found)} of the "
            "variation."
        )
    else:
        lead = (
            "How much worse the worst choice of a knob is than its best, all else equal, by a "
            f"Gaussian process over the {found.config_count} measured configurations, averaged "
            f"over them; of one that is left out it foretells {_percent(found)} of the variation. "
            "It is a guide to what to look at, not a measurement."
        )
        blocks = [_bars(found.effects), _table(found.effects), *blocks]
    return Section(name="importance", heading="Which knobs matter", lead=lead, blocks=tuple(blocks))


def _percent(found: Importance) -> str:
    return f"{max(0.0, found.explained):.0%}"


def _dead(seen: Seen) -> list[Block]:
    if seen.space is None:
        return []
    found = dead_knobs(seen.space, seen.history)
    lines = tuple(
        (
            "no difference seen",
            f"{knob.name}: {knob.pair_count} pairs of trials differ in it alone, by at most "
            f"{knob.largest_share:.1%}",
        )
        for knob in found
    )
    return [Facts(lines=lines)] if lines else []


def _bars(effects: Sequence[KnobEffect]) -> Chart:
    most = max((effect.ratio - 1 for effect in effects), default=0.0)
    bars = [
        Bar(
            name=effect.name,
            parts=(100 * (effect.ratio - 1),),
            words=_worse(effect),
            tip=f"{effect.name}: {effect.best} is best, {effect.worst} {_worse(effect)} worse",
        )
        for effect in effects
    ]
    letters = (
        f"{effect.name:<24.24} "
        + ("#" * round(BAR_CHARS * ((effect.ratio - 1) / most if most else 0))).ljust(BAR_CHARS)
        + f" {_worse(effect)}"
        for effect in effects
    )
    label = "how much worse the worst choice is than the best, in %"
    key = Key(name="", kind="part0", shape="box")
    return Chart(
        drawn=bar_chart(bars, [key], title="Which knobs matter", label=label),
        about="How much worse the worst choice of a knob is",
        letters="\n".join(letters),
    )


def _table(effects: Sequence[KnobEffect]) -> Table:
    rows = (
        words_row(each.name, _worse(each), str(each.best), str(each.worst), str(each.config_count))
        for each in effects
    )
    return Table(
        about="The same as a table, with the choices it is about",
        headings=("knob", "effect", "best choice", "worst choice", "configurations"),
        rows=tuple(rows),
        numeric=frozenset({1, 4}),
    )


def _worse(effect: KnobEffect) -> str:
    return f"{100 * (effect.ratio - 1):.3g} %"


MOST_BARS = 40
KEYS = (
    Key(name="compute", kind="part0", shape="box"),
    Key(name="exposed communication", kind="part1", shape="box"),
    Key(name="other", kind="part2", shape="box"),
    Key(name="idle", kind="part3", shape="box"),
)
HEADINGS = ("trial", *(f"{key.name}, ms" for key in KEYS), "hidden communication, ms")


def where_time_went(seen: Seen) -> Section | None:
    """The profiled steps of the trials, part by part; None where none was profiled."""
    split = [
        (trial, trial.outcome.breakdown)
        for trial in seen.history
        if isinstance(trial.outcome, Measured) and trial.outcome.breakdown is not None
    ]
    if not split:
        return None
    shown = _shown(seen, split)
    left_out = len(split) - len(shown)
    more = f" The best {len(shown)} of {len(split)} trials are shown." if left_out else ""
    best = None if seen.best is None else seen.best.ordinal
    chart = time_chart(shown, best)
    return Section(
        name="time",
        heading="Where time went",
        lead="A profiled step of each trial, at the mean over ranks; communication that runs "
        "beside compute costs nothing and is hatched." + more,
        blocks=(
            Chart(
                drawn=chart,
                about="Parts of a profiled step, which the profiler itself makes longer",
                letters="\n".join(f"{trial.ordinal:>4} {shares(parts)}" for trial, parts in shown),
            ),
            Table(
                about="The same in milliseconds",
                headings=HEADINGS,
                rows=tuple(_row(trial, parts, seen) for trial, parts in shown),
                numeric=frozenset(range(1, len(HEADINGS))),
                is_long=True,
            ),
        ),
    )


def _shown(
    seen: Seen, split: Sequence[tuple[Trial, Breakdown]]
) -> Sequence[tuple[Trial, Breakdown]]:
    """The best, with the seed, in the order of trials."""
    if len(split) <= MOST_BARS:
        return split
    place = {trial.ordinal: place for place, trial in enumerate(seen.history.ranked)}
    ranked = sorted(split, key=lambda one: place.get(one[0].ordinal, len(split)))
    kept = {0} | {trial.ordinal for trial, _ in ranked[:MOST_BARS]}
    return [one for one in split if one[0].ordinal in kept]


def _parts_ms(parts: Breakdown) -> tuple[float, ...]:
    seconds = (
        parts.compute_s,
        parts.exposed_communication_s,
        parts.other_s,
        parts.idle_s,
        parts.hidden_communication_s,
    )
    return tuple(max(0.0, each) * 1e3 for each in seconds)


def time_chart(split: Sequence[tuple[Trial, Breakdown]], best: int | None) -> str:
    """A bar for each trial, made of the parts of its profiled step; `best` is marked."""
    return bar_chart(
        [_bar(trial, parts, best=trial.ordinal == best) for trial, parts in split],
        KEYS,
        title="Where the step of each trial went",
        label="ms per profiled step",
        hatched="hidden communication",
    )


def _bar(trial: Trial, parts: Breakdown, *, best: bool) -> Bar:
    *own, hidden = _parts_ms(parts)
    return Bar(
        name=f"trial {trial.ordinal}{', best' if best else ''}",
        parts=tuple(own),
        words=f"{number(sum(own))} ms",
        tip=one_line(f"trial {trial.ordinal}: {trial.config}; {shares(parts)}", TIP_CHARS),
        within=min(hidden, own[0]),
        is_best=best,
    )


def _row(trial: Trial, parts: Breakdown, seen: Seen) -> Row:
    cells = [Cell(text=number(each), value=each) for each in _parts_ms(parts)]
    name = Cell(text=str(trial.ordinal), value=trial.ordinal)
    return Row(cells=(name, *cells), tone="best" if trial is seen.best else "")


HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spent:
    """What the launches took that tell it; `silent_count` do not."""

    wall_s: float
    rank_s: float
    told_count: int
    silent_count: int


def cost(seen: Seen) -> Section:
    """Everything that was paid, as far as it is on record."""
    return Section(
        name="cost",
        heading="What it cost",
        lead="Launches that the search learned from, and those that it made to be sure.",
        blocks=(Facts(lines=tuple(_lines(seen))),),
    )


def _lines(seen: Seen) -> Iterator[tuple[str, str]]:
    yield from seen.lines("trials")
    took = _took(seen)
    if took is not None:
        yield "trials took", f"{_clock(took)} from the first start to the last end"
    spent = _spent(seen)
    if spent.told_count:
        silent = f"; {spent.silent_count} launches do not tell" if spent.silent_count else ""
        wall = _clock(timedelta(seconds=spent.wall_s))
        yield "all launches ran for", f"{wall} in all, some of them side by side{silent}"
        hours = spent.rank_s / HOUR_S
        yield "rank-hours", f"{number(hours)}, every rank for as long as its launch ran"
        price = seen.study.environment.accelerator_usd_per_hour
        if price is not None:
            yield "money", f"{number(hours * price)} USD at {price:g} USD per rank and hour"
    for use in seen.record.uses:
        yield "model", use_words(use, seen.study.llm)
    is_ours = seen.study.origin is None or is_foreign(seen.study)
    if not seen.record.uses and is_ours:
        yield "model", "none was asked"


def _took(seen: Seen) -> timedelta | None:
    """From the first start to the last end of a trial; None where the record has no such times."""
    try:
        starts = [datetime.fromisoformat(trial.started_at) for trial in seen.history]
        ends = [datetime.fromisoformat(trial.ended_at) for trial in seen.history]
        took = max(ends) - min(starts)
    except (ValueError, TypeError):  # from elsewhere: no trial, no time, or some without a zone
        return None
    return took if took > timedelta(0) else None


def _spent(seen: Seen) -> _Spent:
    outcomes = [trial.outcome for trial in seen.history if trial.reached_launch]
    told = [_times(outcome) for outcome in (*outcomes, *(r.outcome for r in seen.repeats))]
    known = [times for times in told if times is not None]
    return _Spent(
        wall_s=sum(wall_s for wall_s, _ in known),
        rank_s=sum(wall_s * ranks for wall_s, ranks in known),
        told_count=len(known),
        silent_count=len(told) - len(known),
    )


def _times(outcome: Outcome) -> tuple[float, int] | None:
    """Seconds that a launch ran and ranks that it had; None where it does not tell."""
    if isinstance(outcome, Measured):
        each = [(one.wall_s, len(one.step_times_s)) for one in outcome.measurements]
        walls = [(wall_s, ranks) for wall_s, ranks in each if wall_s is not None]
        if len(walls) < len(each):
            return None
        return sum(wall_s for wall_s, _ in walls), max(ranks for _, ranks in walls)
    launched = outcome.launched
    return None if launched is None else (launched.wall_s, max(1, len(launched.ranks)))


def _clock(took: timedelta) -> str:
    """A time in hours, minutes and seconds."""
    seconds = round(took.total_seconds())
    minutes, hours = seconds // 60 % 60, seconds // 3600
    parts = [(hours, "h"), (minutes, "min"), (seconds % 60, "s")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "less than 1 s"


MOST_ROWS = 2000
MOST_METRICS = 5
CAUSE_CHARS = 300
SHOWN_FIRST = ("step_time", "tokens_per_s", "peak_memory", "rank_count", "mfu")


def trials(seen: Seen) -> Section:
    """A row for each trial: what it sets, what it reached or why it failed."""
    shown = _trials_shown(seen)
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
        rows=tuple(_trials_row(trial, metrics, seen) for trial in shown),
        numeric=frozenset({0, *range(3, 5 + len(metrics))}),
        is_long=True,
    ).dense
    lead = (
        "Each over the launches that count: those of the last final that it was in, or all that "
        "were made again to race it, or else its only one."
    )
    blocks = (table,) if len(shown) else (Words(text="No trial has ended yet."),)
    return Section(name="trials", heading="All trials", lead=lead, blocks=blocks)


def _trials_shown(seen: Seen) -> Sequence[Trial]:
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
    told = seen.scoring.shown_metrics
    names = [*sorted(told), *SHOWN_FIRST]
    own = seen.scoring.expression.text
    wanted = [name for name in dict.fromkeys(names) if name in present and name != own]
    return [name for name in wanted if name in told or _differs(name, seen)][:MOST_METRICS]


def _differs(name: str, seen: Seen) -> bool:
    found = (seen.metric(trial, name) for trial in seen.history.measured)
    return len({metric.value for metric in found if metric is not None}) > 1


def _trials_row(trial: Trial, metrics: Sequence[str], seen: Seen) -> Row:
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
