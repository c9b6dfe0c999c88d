"""Report sections about the outcome: best trial, history, Pareto front, failures, warnings."""

import math
from collections import defaultdict
from collections.abc import Sequence

from evaluator.objective import Scoring
from records.trial import Failed, FailureKind, History, Trial
from search.loop.leader import FrontMember, own_values, unbeaten
from search.report.data import ReportData
from search.report.summary import spread_words
from search.strategies.lessons import ordinals_words
from search.study.spaces import parts
from search.transfer.audit import CHECKS
from search.views.charts import (
    BestInterval,
    Ended,
    ErrorBar,
    FrontMark,
    TrialMark,
    front_chart,
    history_chart,
)
from search.views.diagnosis import diagnosis_lines, diagnosis_of
from search.views.document import (
    Block,
    Cell,
    Chart,
    Code,
    Facts,
    Paragraph,
    Section,
    Table,
    TableRow,
    code,
    left_out_words,
    metric_cell,
    number,
    thin,
)
from search.views.format import (
    differing_knobs,
    format_flags,
    format_number,
    one_line,
    reached_words,
)
from search.views.study import results_in_contexts
from search.views.terminal import result_words

EVIDENCE = (
    *("baseline", "caveat", "where time goes", "against the seed", "tied", "unreliable"),
    *("noise", "compared", "disturbed", "left out", "limits"),
)
METRICS_SHOWN = 40
NO_BEST = "No trial qualifies as the best; see the failures below."


def best_section(data: ReportData) -> Section:
    """Configuration, value, evidence, and what it changes of the seed."""
    best = data.best
    if best is None:
        lead = NO_BEST if len(data.history) else "No trial has ended yet."
        return Section(name="best", heading="The best", lead=lead, blocks=_evidence(data))
    found = diagnosis_of(best.outcome)
    blocks: list[Block] = [*_settings(data, best), *_evidence(data)]
    if found is not None:
        lines = tuple(("from traces", line) for line in diagnosis_lines(found))
        blocks.append(Facts(lines=lines))
    if data.seed is not None and data.seed.ordinal != best.ordinal:
        blocks += [*_changed(data.seed, best), _metrics(data, data.seed, best)]
    else:
        blocks.append(_metrics(data, None, best))
    return Section(
        name="best",
        heading="The best" if data.is_finished else "The best so far",
        lead="The configuration to use and its evidence; intervals are over launches, not steps.",
        blocks=tuple(blocks),
    )


def _settings(data: ReportData, best: Trial) -> list[Block]:
    if best.config is None:
        return [Paragraph(text=f"Trial {best.ordinal} has no recorded configuration.")]
    if not data.study.contexts:
        return [Paragraph(text=f"Trial {best.ordinal} sets:"), Code(text=format_flags(best.config))]
    blocks: list[Block] = []
    for part in parts(data.study, best.config):
        blocks += [
            Paragraph(text=f"Trial {best.ordinal} sets in {part.name}:"),
            Code(text=format_flags(part.config)),
        ]
    return blocks


def _evidence(data: ReportData) -> tuple[Facts, ...]:
    objective = data.study.objective.expression
    contexts = [label for label in data.summary if label.startswith("against the seed in ")]
    lines = data.lines(objective, *EVIDENCE, *contexts)
    best = data.best
    own = results_in_contexts(best, data.history, data.study) if best is not None else ()
    inside = tuple((f"in context {found.name}", found.words) for found in own)
    return (Facts(lines=lines + inside),) if lines or inside else ()


def _changed(seed: Trial, best: Trial) -> list[Block]:
    if seed.config is None or best.config is None:
        return []
    before, after = seed.config.values, best.config.values
    rows = tuple(
        TableRow.of(
            code(knob), str(before.get(knob, "no effect")), str(after.get(knob, "no effect"))
        )
        for knob in differing_knobs(seed.config, best.config)
    )
    if not rows:
        return [Paragraph(text="The settings are those of the seed.")]
    about = "Settings that differ from the seed"
    return [Table(about=about, headings=("knob", "seed", "best"), rows=rows)]


def _metrics(data: ReportData, seed: Trial | None, best: Trial) -> Table:
    rows = []
    for metric in data.metrics.get(best.ordinal, ())[:METRICS_SHOWN]:
        before = [] if seed is None else [metric_cell(data.metric(seed, metric.name))]
        better = f"{metric.better} is better"
        rows.append(TableRow.of(metric.name, metric_cell(metric), *before, better))
    return Table(
        about="Metrics, each from one launch",
        headings=("metric", "best", *(() if seed is None else ("seed",)), ""),
        rows=tuple(rows),
    )


TIP_CHARS = 300
LABEL_CHARS = 60


def history_section(data: ReportData) -> Section | None:
    """Every trial in order; None where nothing was measured."""
    points = [_point(trial, data) for trial in data.history]
    if not any(point.value is not None for point in points):
        return None
    count, leaders = len(points), _leaders(points, data.scoring.sign)
    points = thin(points, lambda point: point.ordinal in leaders)
    chart = history_chart(
        points,
        _best_interval(data),
        label=objective_label(data.scoring),
        lower_is_better=data.scoring.lower_is_better,
    )
    better = "lower" if data.scoring.lower_is_better else "higher"
    return Section(
        name="history",
        heading="Optimization history",
        lead=f"One mark per trial in launch order; {better} is better. A failed trial is a tick on "
        "the axis; the best trial shows the interval over its launches."
        f"{left_out_words(len(points), count)}",
        blocks=(Chart(drawn=chart, about=f"{objective_label(data.scoring)} of each trial"),),
    )


def _leaders(points: Sequence[TrialMark], sign: int) -> set[int]:
    """Trials that were the best so far when they ended."""
    leaders: set[int] = set()
    least = math.inf
    for point in points:
        if point.value is not None and point.ended == "measured" and sign * point.value < least:
            least = sign * point.value
            leaders.add(point.ordinal)
    return leaders


def trial_tip(trial: Trial, history: History) -> str:
    """A trial in a line: the tooltip of its mark."""
    config = "" if trial.config is None else f": {trial.config}"
    if isinstance(trial.outcome, Failed):
        return one_line(f"trial {trial.ordinal} failed, {trial.outcome}{config}", TIP_CHARS)
    words = result_words(trial, history)
    score = f", {words}" if words else ""
    return one_line(f"trial {trial.ordinal}{score}{config}", TIP_CHARS)


def _point(trial: Trial, data: ReportData) -> TrialMark:
    ended: Ended = "failed"
    if trial.score is not None:
        ended = "breaks a limit" if trial.score.broken else "measured"
    reached = data.reached(trial)
    value = None if reached is None else reached.centre
    return TrialMark(
        ordinal=trial.ordinal, value=value, ended=ended, tip=trial_tip(trial, data.history)
    )


def _best_interval(data: ReportData) -> BestInterval | None:
    best, result = data.best, data.finding.result
    if best is None or result is None or result.launch_count < 2:
        return None
    words = spread_words(result, data.scoring.unit)
    return BestInterval(
        ordinal=best.ordinal,
        centre=result.centre,
        low=result.low,
        high=result.high,
        tip=f"trial {best.ordinal} repeated: {words}",
    )


def objective_label(scoring: Scoring) -> str:
    """An objective as an axis names it."""
    unit = f" ({scoring.unit})" if scoring.unit else ""
    return f"{one_line(scoring.expression.text, LABEL_CHARS)}{unit}"


LEAST_POINTS = 3
OTHER_AXES = ("peak_memory", "rank_count")
"""Resources of a trial against which its objective is drawn where there is only one."""


def front_section(data: ReportData) -> Section | None:
    """The front of several objectives, or of the objective against what trials take."""
    if data.scoring.more:
        return _asked_front(data)
    for name in OTHER_AXES:
        section = _traded(data, name)
        if section is not None:
            return section
    return None


def _asked_front(data: ReportData) -> Section | None:
    members = {member.ordinal: member for member in data.finding.front}
    measured = [
        (trial, values)
        for trial in data.history.measured
        if (values := own_values(trial, data.scoring)) is not None
    ]
    if not members or not measured:
        return None
    shown = thin(measured, lambda one: one[0].ordinal in members)
    main, *others = data.scoring.objectives
    charts = [
        Chart(
            drawn=front_chart(
                [
                    _pair(data, trial, values, members.get(trial.ordinal), place)
                    for trial, values in shown
                ],
                x_label=_axis(main),
                y_label=_axis(other),
                line=len(others) == 1,
            ),
            about=f"{objective_label(other)} against {objective_label(main)}",
        )
        for place, other in enumerate(others, start=1)
    ]
    return Section(
        name="front",
        heading="Pareto front",
        lead=f"No trial is better than these {len(members)} in every objective; choosing between "
        f"them is a trade-off.{left_out_words(len(shown), len(measured))}",
        blocks=(*charts, _front_table(data, data.finding.front)),
    )


def _pair(
    data: ReportData, trial: Trial, values: Sequence[float], member: FrontMember | None, place: int
) -> FrontMark:
    reached = data.reached(trial)
    x, y = values[0] if reached is None else reached.centre, values[place]
    bars = [ErrorBar(centre=x), ErrorBar(centre=y)]
    if member is not None:
        spreads = (member.reached[0].value, member.reached[place].value)
        bars = [ErrorBar(centre=each.centre, low=each.low, high=each.high) for each in spreads]
    return FrontMark(
        name=str(trial.ordinal),
        x=bars[0],
        y=bars[1],
        on_front=member is not None,
        is_limited=trial.score is not None and bool(trial.score.broken),
        tip=trial_tip(trial, data.history),
    )


def _front_table(data: ReportData, members: Sequence[FrontMember]) -> Table:
    rows: list[TableRow] = []
    for member in members:
        trial = data.history.find(member.ordinal)
        config = "" if trial is None or trial.config is None else format_flags(trial.config)
        values = [each.value for each in member.reached]
        cells = (Cell(text=reached_words(each), value=each.centre) for each in values)
        rows.append(TableRow.of(f"trial {member.ordinal}", *cells, code(config)))
    names = map(objective_label, data.scoring.objectives)
    about = "The Pareto front, best in the main objective first"
    return Table(about=about, headings=("trial", *names, "sets"), rows=tuple(rows))


def _traded(data: ReportData, name: str) -> Section | None:
    """The objective against a metric; None where there is no trade-off between them."""
    if data.study.objective.expression == name:
        return None
    pairs, label = _taken(data, name)
    front = [pair for pair in pairs if pair.on_front]
    if len(pairs) < LEAST_POINTS or len(front) < 2:
        return None
    rows = tuple(
        TableRow.of(f"trial {pair.name}", number(pair.x.centre), number(pair.y.centre))
        for pair in sorted(front, key=lambda pair: pair.x.centre)
    )
    objective = objective_label(data.scoring)
    shown = thin(pairs, lambda pair: pair.on_front)
    chart = front_chart(shown, x_label=f"{label}, lower is better", y_label=_axis(data.scoring))
    return Section(
        name="front",
        heading=f"Trade-offs with {name}",
        lead=f"No trial is better than the named ones in both {name} and the objective."
        + left_out_words(len(shown), len(pairs)),
        blocks=(
            Chart(drawn=chart, about=f"{objective} against {name}"),
            Table(
                about=f"Best {objective} for each {name}",
                headings=("trial", label, objective),
                rows=rows,
            ),
        ),
    )


def _taken(data: ReportData, name: str) -> tuple[list[FrontMark], str]:
    """Every trial by a metric and the objective, and what the metric is called with its unit."""
    found = [
        (trial, trial.score, reached.centre, metric)
        for trial in data.history.measured
        if trial.score is not None
        and (reached := data.reached(trial)) is not None
        and (metric := data.metric(trial, name)) is not None
    ]
    sign = data.scoring.sign
    costs = {trial.ordinal: (sign * value, metric.value) for trial, _, value, metric in found}
    front = set(unbeaten(costs))
    unit = found[0][3].unit if found else ""
    size, shown_unit = (2**20, "MiB") if unit == "bytes" else (1, unit)
    label = f"{name} ({shown_unit})" if shown_unit else name
    pairs = [
        FrontMark(
            name=str(trial.ordinal),
            x=ErrorBar(centre=metric.value / size),
            y=ErrorBar(centre=value),
            on_front=trial.ordinal in front,
            is_limited=bool(score.broken),
            tip=f"{trial_tip(trial, data.history)}; {label} {format_number(metric.value / size)}",
        )
        for trial, score, value, metric in found
    ]
    return pairs, label


def _axis(scoring: Scoring) -> str:
    better = "lower" if scoring.lower_is_better else "higher"
    return f"{objective_label(scoring)}, {better} is better"


CAUSE_CHARS = 500
CAUSES_SHOWN = 5


def failures_section(data: ReportData) -> Section | None:
    """Failures by kind with their causes; None where nothing failed."""
    by_kind: dict[FailureKind, list[tuple[int, Failed]]] = defaultdict(list)
    for trial in data.history:
        if isinstance(trial.outcome, Failed):
            by_kind[trial.outcome.kind].append((trial.ordinal, trial.outcome))
    failed_repeats = [repeat for repeat in data.repeats if isinstance(repeat.outcome, Failed)]
    if not by_kind and not failed_repeats:
        return None
    rows = tuple(
        row
        for kind, found in sorted(by_kind.items(), key=lambda item: -len(item[1]))
        for row in _rows(kind, found)
    )
    blocks: list[Block] = []
    if rows:
        headings = ("kind", "trials", "which", "stage", "cause")
        about = "Failures by kind and cause"
        blocks.append(Table(about=about, headings=headings, rows=rows))
    lines = (
        *(
            (
                "repeat launch failed",
                f"trial {one.ordinal}, {one_line(str(one.outcome), CAUSE_CHARS)}",
            )
            for one in failed_repeats
        ),
        *(
            (
                "learned constraint",
                f"{one.constraint.expression}, because it {one.constraint.reason}",
            )
            for one in data.learned
        ),
        *(("revoked", name) for name in data.study.revoked),
    )
    if lines:
        blocks.append(Facts(lines=lines))
    total = sum(map(len, by_kind.values()))
    lead = (
        f"{total} of {len(data.history)} trials failed. A failed trial has no score; an "
        "infrastructure failure is not the configuration's fault."
    )
    return Section(name="failures", heading="Failures", lead=lead, blocks=tuple(blocks))


def _rows(kind: FailureKind, found: list[tuple[int, Failed]]) -> list[TableRow]:
    """A row for each cause, the commonest first; the rest of them in one."""
    causes: dict[str, list[tuple[int, Failed]]] = defaultdict(list)
    for ordinal, failed in found:
        causes[one_line(failed.message, CAUSE_CHARS)].append((ordinal, failed))
    ranked = sorted(causes.items(), key=lambda item: -len(item[1]))
    rows = [_row(kind, each, cause) for cause, each in ranked[:CAUSES_SHOWN]]
    rest = [one for _, each in ranked[CAUSES_SHOWN:] for one in each]
    if rest:
        rows.append(_row(kind, rest, f"{len(ranked) - CAUSES_SHOWN} other causes"))
    return rows


def _row(kind: FailureKind, found: list[tuple[int, Failed]], cause: str) -> TableRow:
    stages = ", ".join(sorted({str(failed.stage) for _, failed in found}))
    which = ordinals_words(sorted(ordinal for ordinal, _ in found))
    return TableRow.of(kind, number(len(found)), which, stages, cause)


def warnings_section(data: ReportData) -> Section | None:
    """Every fault of the history, or what was checked; None while there is no trial."""
    if not len(data.history):
        return None
    checks = ", ".join(name.replace("_", " ") for name in CHECKS)
    if not data.faults:
        lead = f"No problems found. Checked: {checks}."
        return Section(name="warnings", heading="Warnings", lead=lead)
    rows = tuple(
        TableRow.of(fault.name.replace("_", " "), fault.words, ordinals_words(fault.ordinals))
        for fault in data.faults
    )
    table = Table(
        about="Problems in the recorded study, the gravest first",
        headings=("problem", "evidence", "trials"),
        rows=rows,
    )
    lead = "Consider these problems before using the result, or measure again."
    return Section(name="warnings", heading="Warnings", lead=lead, blocks=(table,))
