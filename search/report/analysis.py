"""Report sections that analyse the trials: parameter importance, step time, cost, all trials."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Final

from evaluator.objective import scoring_of
from policies.space import Space
from records.errors import StudyError
from records.store.rows import StudyRow
from records.store.store import Store
from records.study import Study
from records.trial import Breakdown, History, Measured, MetricValue, Outcome, Trial
from search.loop.budget import HOUR_S
from search.loop.leader import study_leader
from search.loop.learned import dead_knobs
from search.loop.study_result import leader_of
from search.report.data import ReportData, known_space
from search.report.explored import TIP_CHARS
from search.strategies.surrogate import LEAST_CONFIGS, KnobEffect, importance
from search.traces.whatif import saved_table
from search.views.charts import Row, rows_chart, stacked
from search.views.document import (
    Block,
    Chart,
    Facts,
    Paragraph,
    Section,
    Table,
    TableRow,
    number,
)
from search.views.format import (
    format_breakdown,
    format_count,
    format_difference,
    format_elapsed,
    format_flags,
    format_number,
    format_percent,
    format_whole_percent,
    one_line,
)
from search.views.study import node_hours_words, use_words
from search.views.svg import ChartAxis, LegendEntry
from search.views.trial import NUMBERS, ListedTrial, trial_table

POOR = 0.25
"""Share of the explained variation below which no chart of the model is shown."""


MOST_ANALYSED: Final = 5000
"""Trials of a study whose page analyses them; a report has no limit."""


def study_analysis(row: StudyRow, store: Store, links: str) -> tuple[Section, ...]:
    """Return the sections of a study's page that compare its trials; bars lead to `links`."""
    count = store.counts(row.id).trials
    if count > MOST_ANALYSED:
        lead = f"{count} trials are too many for this page; `cclsearch report {row.id}` has it."
        return (Section(name="importance", heading="Parameter importance", lead=lead),)
    history, sign = study_leader(row, store).history, scoring_of(row.study).sign
    best = leader_of(row, store)
    sections = (
        importance_section(known_space(row.study), history, sign),
        time_section(history, best, links=links, most=FEW_BARS),
        faster_section(best, row.id),
    )
    return tuple(each for each in sections if each is not None)


def importance_section(space: Space | None, history: History, sign: int) -> Section | None:
    """Which knobs matter, or that too little was measured to say; None without a space.

    `sign` is 1 where lower values are better, else -1.
    """
    if space is None or not history.measured:
        return None
    found = importance(space, history, sign)
    blocks = _dead(space, history)
    if found is None or not found.effects:
        lead = (
            f"Too few trials to estimate importance: it needs {LEAST_CONFIGS} configurations with "
            "a positive result, and knobs that differ between them."
        )
    else:
        explained = format_whole_percent(max(0.0, found.explained))
        lead = (
            f"The {found.config_count} measured configurations do not show which knobs matter: in "
            f"leave-one-out validation a model explains only {explained} of the variation."
        )
        if found.explained >= POOR:
            lead = (
                "How much worse the worst choice of a knob is than its best, all else equal: the "
                f"mean over a Gaussian process fitted to the {found.config_count} measured "
                f"configurations. In leave-one-out validation it explains {explained} of the "
                "variation. This is an estimate, not a measurement."
            )
            blocks = [_bars(found.effects), _table(found.effects), *blocks]
    return Section(
        name="importance", heading="Parameter importance", lead=lead, blocks=tuple(blocks)
    )


def _dead(space: Space, history: History) -> list[Block]:
    lines = tuple(
        (
            "no measurable effect",
            f"{knob.name}: {knob.pair_count} pairs of trials differ in it alone, by at most "
            f"{format_percent(knob.largest_share)}",
        )
        for knob in dead_knobs(space, history)
    )
    return [Facts(lines=lines)] if lines else []


def _bars(effects: Sequence[KnobEffect]) -> Chart:
    rows = [
        Row(
            name=effect.name,
            stretches=stacked([100 * (effect.ratio - 1)], ["part0"]),
            words=_worse(effect),
            tip=f"{effect.name}: {effect.best} is best, {effect.worst} {_worse(effect)} worse",
        )
        for effect in effects
    ]
    label = "how much worse the worst choice is than the best, in %"
    axis = ChartAxis(label=label, kind="zero")
    return Chart(
        drawn=rows_chart(rows, axis, (), title="Parameter importance"),
        about="How much worse the worst choice of a knob is",
    )


def _table(effects: Sequence[KnobEffect]) -> Table:
    rows = (
        TableRow.of(
            each.name,
            number(each.ratio - 1, _worse(each)),
            str(each.best),
            str(each.worst),
            number(each.config_count),
        )
        for each in effects
    )
    return Table(
        about="Parameter importance with the best and the worst choice",
        headings=("knob", "effect", "best choice", "worst choice", "configurations"),
        rows=tuple(rows),
    )


def _worse(effect: KnobEffect) -> str:
    return f"{100 * (effect.ratio - 1):.3g} %"


MOST_BARS, FEW_BARS = 40, 12
KEYS = (
    LegendEntry(name="compute", kind="part0"),
    LegendEntry(name="exposed communication", kind="part1"),
    LegendEntry(name="other", kind="part2"),
    LegendEntry(name="idle", kind="part3"),
)
HIDDEN = LegendEntry(name="hidden communication", kind="part0", shape="hatched box")
HEADINGS = ("trial", *(f"{key.name}, ms" for key in KEYS), "hidden communication, ms")


def time_section(
    history: History,
    best: Trial | None,
    timeline: Sequence[Block] = (),
    *,
    links: str = "#trial-",
    most: int = MOST_BARS,
) -> Section | None:
    """The profiled steps of trials, part by part, `most` of them; None where none was profiled.

    The `timeline` of one step of the best trial follows. Bars lead to `links` with their trial.
    """
    split = [
        (trial, trial.outcome.breakdown)
        for trial in history
        if isinstance(trial.outcome, Measured) and trial.outcome.breakdown is not None
    ]
    if not split:
        return None
    shown, more = split, ""
    if len(split) > most:  # the best, with the seed, in the order of trials
        profiled = {trial.ordinal for trial, _ in split}
        ranked = [trial.ordinal for trial in history.ranked if trial.ordinal in profiled]
        shown = [one for one in split if one[0].ordinal in {0, *ranked[:most]}]
        more = f" The best {len(shown)} of {len(split)} trials are shown."
    leader = None if best is None else best.ordinal
    return Section(
        name="time",
        heading="Step time breakdown",
        lead="One profiled step per trial, mean over ranks. Hidden communication (hatched) "
        "overlaps with compute and costs no time." + more,
        blocks=(
            Chart(
                drawn=time_chart(shown, leader, links),
                about="Parts of a profiled step; profiling itself makes the step longer",
            ),
            Table(
                about="The same in milliseconds",
                headings=HEADINGS,
                rows=tuple(
                    TableRow.of(
                        number(trial.ordinal),
                        *map(number, _parts_ms(parts)),
                        tone="best" if trial.ordinal == leader else "",
                    )
                    for trial, parts in shown
                ),
                is_long=True,
            ),
            *timeline,
        ),
    )


def faster_section(best: Trial | None, study_id: str) -> Section | None:
    """What other hardware would bring the best trial; None where no trace of it can be replayed."""
    outcome = None if best is None else best.outcome
    table = saved_table(outcome) if isinstance(outcome, Measured) else None
    if best is None or table is None:
        return None
    return Section(
        name="faster",
        heading="What faster hardware would bring",
        lead="Predicted by replaying the traces of the best trial with one change at a time; "
        "nothing of it was measured. "
        f"`cclsearch trace whatif trial:{study_id}:{best.ordinal}` has the bounds and other "
        "changes.",
        blocks=(table,),
    )


def _parts_ms(parts: Breakdown) -> tuple[float, ...]:
    seconds = (
        parts.compute_s,
        parts.exposed_communication_s,
        parts.other_s,
        parts.idle_s,
        parts.hidden_communication_s,
    )
    return tuple(max(0.0, each) * 1e3 for each in seconds)


def time_chart(split: Sequence[tuple[Trial, Breakdown]], best: int | None, links: str) -> str:
    """A bar for each trial, made of the parts of its profiled step; `best` is marked.

    Bars lead to `links` followed by their trial.
    """
    rows = []
    for trial, parts in split:
        *own, hidden = _parts_ms(parts)
        is_best = trial.ordinal == best
        tip = f"trial {trial.ordinal}: {trial.config}; {format_breakdown(parts)}"
        row = Row(
            name=f"trial {trial.ordinal}{', best' if is_best else ''}",
            stretches=stacked(own, [key.kind for key in KEYS], min(hidden, own[0])),
            words=f"{format_number(sum(own))} ms",
            tip=one_line(tip, TIP_CHARS),
            link=f"{links}{trial.ordinal}",
            is_best=is_best,
        )
        rows.append(row)
    return rows_chart(
        rows,
        ChartAxis(label="ms per profiled step", kind="zero"),
        (*KEYS, HIDDEN),
        title="Where the step of each trial went",
    )


def cost_section(data: ReportData) -> Section:
    """All recorded costs."""
    return Section(
        name="cost",
        heading="Cost",
        lead="All launches of the search, including repeats, with their time and price.",
        blocks=(Facts(lines=tuple(_lines(data))),),
    )


def _lines(data: ReportData) -> Iterator[tuple[str, str]]:
    yield from data.lines("trials", "lost launches")
    took = _took(data)
    if took is not None:
        elapsed = format_elapsed(took.total_seconds())
        yield "elapsed", f"{elapsed} from the first start to the last end"
    node_s = data.record.node_s
    if node_s is not None:
        yield "nodes", f"{node_hours_words(node_s, data.study)}, from their start to their release"
    outcomes = [trial.outcome for trial in data.history if trial.reached_launch]
    times = [_times(outcome) for outcome in (*outcomes, *(r.outcome for r in data.repeats))]
    known = [each for each in times if each is not None]
    if known:
        without = len(times) - len(known)
        missing = format_count(without, "launch without a recorded time", "launches without one")
        silent = f"; not included: {missing}" if without else ""
        wall = format_elapsed(sum(wall_s for wall_s, _ in known))
        yield "total launch time", f"{wall}, some of them in parallel{silent}"
        hours = sum(wall_s * ranks for wall_s, ranks in known) / HOUR_S
        yield "rank-hours", format_number(hours)
        price = data.study.environment.accelerator_usd_per_hour
        if price is not None and node_s is None:
            yield "price", f"{format_number(hours * price)} USD at {price:g} USD per rank-hour"
    for use in data.record.uses:
        yield "model", use_words(use, data.study.llm)
    if not data.record.uses and not data.study.searched_elsewhere:
        yield "model", "none used"


def _took(data: ReportData) -> timedelta | None:
    """From the first start to the last end of a trial; None where the record has no such times."""
    try:
        starts = [datetime.fromisoformat(trial.started_at) for trial in data.history]
        ends = [datetime.fromisoformat(trial.ended_at) for trial in data.history]
        took = max(ends) - min(starts)
    except (ValueError, TypeError):  # from elsewhere: no trial, no time, or some without a zone
        return None
    return took if took > timedelta(0) else None


def _times(outcome: Outcome) -> tuple[float, int] | None:
    """Seconds that a launch ran and ranks that it had; None where they are not recorded."""
    if isinstance(outcome, Measured):
        each = [(one.wall_s, len(one.step_times_s)) for one in outcome.measurements]
        walls = [(wall_s, ranks) for wall_s, ranks in each if wall_s is not None]
        if len(walls) < len(each):
            return None
        return sum(wall_s for wall_s, _ in walls), max(ranks for _, ranks in walls)
    launched = outcome.launched
    return None if launched is None else (launched.wall_s, max(1, len(launched.ranks)))


MOST_ROWS = 2000
MOST_METRICS = 5
SHOWN_FIRST = ("step_time", "tokens_per_s", "peak_memory", "rank_count", "mfu")


def trials_section(data: ReportData) -> Section:
    """A row for each trial: what it sets, what it reached or why it failed."""
    shown = _trials_shown(data)
    left_out = len(data.history) - len(shown)
    about = "All trials; settings that differ from the best"
    if left_out:
        about = f"The best {len(shown)} trials and failures; {left_out} more are stored"
    unit = f", {data.scoring.unit}" if data.scoring.unit else ""
    columns = {
        "ordinal": "trial",
        "author": "by",
        "settings": "sets",
        "score": f"{one_line(data.scoring.expression.text, 60)}{unit}",
        "launches": "launches",
        **{
            f"metric.{name}": name for name in shown_metrics(data.study, data.metrics, MOST_METRICS)
        },
        **{fact.key: fact.heading for fact in NUMBERS},
        "remarks": "remarks or cause of failure",
    }
    table = trial_table(about, columns, [_listed(trial, data) for trial in shown]).dense
    lead = (
        "Each value is over the trial's launches in its last confirmation, else over all its "
        "repeat launches, else from its only launch."
    )
    blocks = (table,) if len(shown) else (Paragraph(text="No trial has ended yet."),)
    return Section(name="trials", heading="Trials", lead=lead, blocks=blocks)


def _trials_shown(data: ReportData) -> Sequence[Trial]:
    trials = data.history.trials
    if len(trials) <= MOST_ROWS:
        return trials
    ranked = data.history.ranked[:MOST_ROWS]
    rest = [trial for trial in trials if trial.score is None][: MOST_ROWS - len(ranked)]
    return sorted((*ranked, *rest), key=lambda trial: trial.ordinal)


def shown_metrics(
    study: Study, metrics: Mapping[int, Sequence[MetricValue]], most: int
) -> list[str]:
    """Return metrics of the objectives and limits, then usual metrics in which trials differ."""
    found: dict[str, set[float]] = defaultdict(set)
    for value in chain.from_iterable(metrics.values()):
        found[value.name].add(value.value)
    try:
        needed: Sequence[str] = sorted(scoring_of(study).shown_metrics)
    except StudyError:
        needed = ()
    varied = [name for name in found if len(found[name]) > 1 or len(metrics) < 2]
    wanted = (name for name in dict.fromkeys((*needed, *SHOWN_FIRST)) if name in found)
    own = study.objective.expression
    return [name for name in wanted if name != own and (name in needed or name in varied)][:most]


def _listed(trial: Trial, data: ReportData) -> ListedTrial:
    """A trial by the settings that differ from the best, which has all."""
    config, best, settings = trial.config, data.best, ""
    if config is not None:
        base = None if best is None or best is trial else best.config
        settings = format_flags(config) if base is None else format_difference(config, base)
    return ListedTrial(
        trial=trial,
        reached=data.reached(trial),
        settings=settings,
        metrics={value.name: value for value in data.metrics.get(trial.ordinal, ())},
        is_best=trial is best,
    )
