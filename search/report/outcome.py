"""Report sections about the outcome: best trial, history, Pareto front, failures, warnings."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from evaluator.objective import Scoring
from evaluator.timing.decision import Spread
from records.trial import Failed, FailureKind, History, Repeat, Trial
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
    left_out_words,
    metric_words,
    spread_cell,
    thinned,
    words_row,
)
from search.views.format import format_flags, format_number, one_line
from search.views.study import results_in_contexts
from search.views.terminal import result_words

EVIDENCE = (
    *("baseline", "caveat", "where time goes", "against the seed", "tied", "unreliable"),
    *("noise", "raced", "disturbed", "left out", "limits"),
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
        TableRow(
            cells=(
                Cell(text=knob, is_code=True),
                Cell(text=str(before.get(knob, "no effect"))),
                Cell(text=str(after.get(knob, "no effect"))),
            )
        )
        for knob in sorted({*before, *after})
        if before.get(knob) != after.get(knob)
    )
    if not rows:
        return [Paragraph(text="The settings are those of the seed.")]
    about = "Settings that differ from the seed"
    return [Table(about=about, headings=("knob", "seed", "best"), rows=rows)]


def _metrics(data: ReportData, seed: Trial | None, best: Trial) -> Table:
    rows = []
    for metric in data.metrics.get(best.ordinal, ())[:METRICS_SHOWN]:
        before = None if seed is None else data.metric(seed, metric.name)
        told = [metric.name, metric_words(metric)]
        if seed is not None:
            told.append("" if before is None else metric_words(before))
        rows.append(words_row(*told, f"{metric.better} is better"))
    return Table(
        about="Metrics, each from one launch",
        headings=("metric", "best", *(() if seed is None else ("seed",)), ""),
        rows=tuple(rows),
        numeric=frozenset({1} if seed is None else {1, 2}),
        is_long=False,
    )


TIP_CHARS = 300
LABEL_CHARS = 60
BAR_CHARS = 30
LETTER_ROWS = 60


def history_section(data: ReportData) -> Section | None:
    """Every trial in order; None where nothing was measured."""
    points = [_point(trial, data) for trial in data.history]
    if not any(point.value is not None for point in points):
        return None
    count, led = len(points), _led(points, data.scoring.sign)
    points = thinned(points, lambda point: point.ordinal in led)
    chart = history_chart(
        points,
        _again(data),
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
        blocks=(
            Chart(
                drawn=chart,
                about=f"{objective_label(data.scoring)} of each trial",
                letters="\n".join(_letters(data)),
            ),
        ),
    )


def _led(points: Sequence[TrialMark], sign: int) -> set[int]:
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


def _point(trial: Trial, data: ReportData) -> TrialMark:
    ended: Ended = "failed"
    if trial.score is not None:
        ended = "breaks a limit" if trial.score.broken else "measured"
    reached = data.reached(trial)
    value = None if reached is None else reached.centre
    return TrialMark(
        ordinal=trial.ordinal, value=value, ended=ended, tip=trial_tip(trial, data.history)
    )


def _again(data: ReportData) -> BestInterval | None:
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


def _letters(data: ReportData) -> Iterator[str]:
    """The same as a line for each trial; the first and the last where there are many."""
    trials = data.history.trials
    values = [abs(found.centre) for trial in trials if (found := data.reached(trial)) is not None]
    most = max(values, default=0.0)
    half = LETTER_ROWS // 2
    left_out = len(trials) - LETTER_ROWS
    for place, trial in enumerate(trials):
        if left_out > 0 and half <= place < len(trials) - half:
            if place == half:
                yield f"    ({left_out} more trials)"
            continue
        reached = data.reached(trial)
        if reached is None:
            told = f"failed: {_kind(trial)}"
        else:
            bar = "#" * round(BAR_CHARS * (abs(reached.centre) / most if most else 0))
            told = f"{bar.ljust(BAR_CHARS)} {result_words(trial, data.history)}"
        yield f"{trial.ordinal:>4} {told}{'  best' if trial is data.best else ''}"


def _kind(trial: Trial) -> str:
    return trial.outcome.kind if isinstance(trial.outcome, Failed) else ""


def objective_label(scoring: Scoring) -> str:
    """An objective as an axis names it."""
    unit = f" ({scoring.unit})" if scoring.unit else ""
    return f"{one_line(scoring.expression.text, LABEL_CHARS)}{unit}"


LEAST_POINTS = 3
OTHER_AXES = ("peak_memory", "rank_count")
"""What a trial takes, against which its objective is drawn where there is only one."""


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
    told = [(trial, own_values(trial, data.scoring)) for trial in data.history.measured]
    measured = [(trial, values) for trial, values in told if values is not None]
    if not members or not measured:
        return None
    shown = thinned(measured, lambda one: one[0].ordinal in members)
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
    ends = [ErrorBar(centre=x), ErrorBar(centre=y)]
    if member is not None:
        ends = [_reach(member.reached[0].value), _reach(member.reached[place].value)]
    return FrontMark(
        name=str(trial.ordinal),
        x=ends[0],
        y=ends[1],
        on_front=member is not None,
        is_limited=trial.score is not None and bool(trial.score.broken),
        tip=trial_tip(trial, data.history),
    )


def _reach(value: Spread) -> ErrorBar:
    return ErrorBar(centre=value.centre, low=value.low, high=value.high)


def _front_table(data: ReportData, members: Sequence[FrontMember]) -> Table:
    rows: list[TableRow] = []
    for member in members:
        trial = data.history.find(member.ordinal)
        config = "" if trial is None or trial.config is None else format_flags(trial.config)
        reached = (spread_cell(each.value) for each in member.reached)
        name = Cell(text=f"trial {member.ordinal}")
        rows.append(TableRow(cells=(name, *reached, Cell(text=config, is_code=True))))
    names = map(objective_label, data.scoring.objectives)
    about = "The Pareto front, best in the main objective first"
    return Table(about=about, headings=("trial", *names, "sets"), rows=tuple(rows))


def _traded(data: ReportData, name: str) -> Section | None:
    """The objective against a metric; None where the best takes least of it, or all the same."""
    if data.study.objective.expression == name:
        return None
    pairs, label = _taken(data, name)
    kept = [pair for pair in pairs if pair.on_front]
    if len(pairs) < LEAST_POINTS or len(kept) < 2:
        return None
    rows = tuple(
        words_row(f"trial {pair.name}", format_number(pair.x.centre), format_number(pair.y.centre))
        for pair in sorted(kept, key=lambda pair: pair.x.centre)
    )
    objective = objective_label(data.scoring)
    shown = thinned(pairs, lambda pair: pair.on_front)
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
                numeric=frozenset({1, 2}),
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
    kept = set(unbeaten(costs))
    unit = found[0][3].unit if found else ""
    size, told = (2**20, "MiB") if unit == "bytes" else (1, unit)
    label = f"{name} ({told})" if told else name
    pairs = [
        FrontMark(
            name=str(trial.ordinal),
            x=ErrorBar(centre=metric.value / size),
            y=ErrorBar(centre=value),
            on_front=trial.ordinal in kept,
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
    again = [repeat for repeat in data.repeats if isinstance(repeat.outcome, Failed)]
    if not by_kind and not again:
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
        blocks.append(Table(about=about, headings=headings, rows=rows, numeric=frozenset({1})))
    lines = (*map(_failures_again, again), *_learned(data))
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
    texts = (str(kind), str(len(found)), which, stages, cause)
    return TableRow(cells=tuple(Cell(text=text) for text in texts))


def _failures_again(repeat: Repeat) -> tuple[str, str]:
    told = one_line(str(repeat.outcome), CAUSE_CHARS)
    return "repeat launch failed", f"trial {repeat.ordinal}, {told}"


def _learned(data: ReportData) -> list[tuple[str, str]]:
    found = [
        ("learned constraint", f"{each.constraint.expression}, because it {each.constraint.reason}")
        for each in data.learned
    ]
    return [*found, *(("revoked", name) for name in data.study.revoked)]


def warnings_section(data: ReportData) -> Section | None:
    """Every fault of the history, or what was looked for; None while there is no trial."""
    if not len(data.history):
        return None
    checks = ", ".join(_spelled(name) for name in CHECKS)
    if not data.faults:
        lead = f"No problems found. Checked: {checks}."
        return Section(name="warnings", heading="Warnings", lead=lead)
    rows = tuple(
        TableRow(
            cells=(
                Cell(text=_spelled(fault.name)),
                Cell(text=fault.words),
                Cell(text=ordinals_words(fault.ordinals)),
            )
        )
        for fault in data.faults
    )
    table = Table(
        about="Problems in the recorded study, the gravest first",
        headings=("problem", "evidence", "trials"),
        rows=rows,
    )
    lead = "Consider these problems before using the result, or measure again."
    return Section(name="warnings", heading="Warnings", lead=lead, blocks=(table,))


def _spelled(name: str) -> str:
    return name.replace("_", " ")
