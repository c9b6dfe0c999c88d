"""Sections: winner, history, front, failures, warnings.

The best trial: what it sets, what that brought, and how sure it is.

How the search went: every trial in its order.

Which trials no other beats, in several objectives or in what they take.

What failed, why, and what was learned from it.

What is wrong with the record, as far as it shows it itself.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from evaluator.objective import Scoring
from evaluator.timing.decision import Spread
from records.trial import Failed, FailureKind, History, Repeat, Trial
from search.loop.leader import FrontMember, own_values, unbeaten
from search.report.data import Seen
from search.report.summary import spread_words
from search.strategies.lessons import ordinals_words
from search.study.spaces import parts
from search.transfer.audit import CHECKS
from search.views.charts import Ended, Interval, Pair, Point, Reach, front_chart, history_chart
from search.views.diagnosis import diagnosis_lines, diagnosis_of
from search.views.document import (
    Block,
    Cell,
    Chart,
    Code,
    Facts,
    Row,
    Section,
    Table,
    Words,
    left_out_words,
    metric_words,
    spread_cell,
    thinned,
    words_row,
)
from search.views.format import flags, number, one_line
from search.views.study import results_in_contexts
from search.views.terminal import result_words

EVIDENCE = (
    *("baseline", "caveat", "where time goes", "against the seed", "tied", "unreliable"),
    *("noise", "raced", "disturbed", "left out", "limits"),
)
METRICS_SHOWN = 40
NO_BEST = "No trial may be called the best; the failures below say why."


def winner(seen: Seen) -> Section:
    """Configuration, value, evidence, and what it changes of the seed."""
    best = seen.best
    if best is None:
        lead = NO_BEST if len(seen.history) else "No trial has ended yet."
        return Section(name="best", heading="The best", lead=lead, blocks=_evidence(seen))
    found = diagnosis_of(best.outcome)
    blocks: list[Block] = [*_settings(seen, best), *_evidence(seen)]
    if found is not None:
        lines = tuple(("traces say", line) for line in diagnosis_lines(found))
        blocks.append(Facts(lines=lines))
    if seen.seed is not None and seen.seed.ordinal != best.ordinal:
        blocks += [*_changed(seen.seed, best), _metrics(seen, seen.seed, best)]
    else:
        blocks.append(_metrics(seen, None, best))
    return Section(
        name="best",
        heading="The best" if seen.is_finished else "The best so far",
        lead="What to set, and how sure it is; an interval is of fresh launches, not of steps.",
        blocks=tuple(blocks),
    )


def _settings(seen: Seen, best: Trial) -> list[Block]:
    if best.config is None:
        return [Words(text=f"Trial {best.ordinal} has no configuration on record.")]
    if not seen.study.contexts:
        return [Words(text=f"Trial {best.ordinal} sets:"), Code(text=flags(best.config))]
    blocks: list[Block] = []
    for part in parts(seen.study, best.config):
        blocks += [
            Words(text=f"Trial {best.ordinal} sets in {part.name}:"),
            Code(text=flags(part.config)),
        ]
    return blocks


def _evidence(seen: Seen) -> tuple[Facts, ...]:
    objective = seen.study.objective.expression
    contexts = [label for label in seen.said if label.startswith("against the seed in ")]
    lines = seen.lines(objective, *EVIDENCE, *contexts)
    best = seen.best
    own = results_in_contexts(best, seen.history, seen.study) if best is not None else ()
    inside = tuple((f"in context {found.name}", found.words) for found in own)
    return (Facts(lines=lines + inside),) if lines or inside else ()


def _changed(seed: Trial, best: Trial) -> list[Block]:
    if seed.config is None or best.config is None:
        return []
    before, after = seed.config.values, best.config.values
    rows = tuple(
        Row(
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
        return [Words(text="It sets the same as the seed.")]
    about = "What it sets otherwise than the seed"
    return [Table(about=about, headings=("knob", "seed", "best"), rows=rows)]


def _metrics(seen: Seen, seed: Trial | None, best: Trial) -> Table:
    rows = []
    for metric in seen.metrics.get(best.ordinal, ())[:METRICS_SHOWN]:
        before = None if seed is None else seen.metric(seed, metric.name)
        told = [metric.name, metric_words(metric)]
        if seed is not None:
            told.append("" if before is None else metric_words(before))
        rows.append(words_row(*told, f"{metric.better} is better"))
    return Table(
        about="Metrics of one launch each",
        headings=("metric", "best", *(() if seed is None else ("seed",)), ""),
        rows=tuple(rows),
        numeric=frozenset({1} if seed is None else {1, 2}),
        is_long=False,
    )


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


LEAST_POINTS = 3
OTHER_AXES = ("peak_memory", "rank_count")
"""What a trial takes, against which its objective is drawn where there is only one."""


def front(seen: Seen) -> Section | None:
    """The front of several objectives, or of the objective against what trials take."""
    if seen.scoring.more:
        return _asked_front(seen)
    for name in OTHER_AXES:
        section = _traded(seen, name)
        if section is not None:
            return section
    return None


def _asked_front(seen: Seen) -> Section | None:
    members = {member.ordinal: member for member in seen.finding.front}
    told = [(trial, own_values(trial, seen.scoring)) for trial in seen.history.measured]
    measured = [(trial, values) for trial, values in told if values is not None]
    if not members or not measured:
        return None
    shown = thinned(measured, lambda one: one[0].ordinal in members)
    main, *others = seen.scoring.objectives
    charts = [
        Chart(
            drawn=front_chart(
                [
                    _pair(seen, trial, values, members.get(trial.ordinal), place)
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
        lead=f"No trial beats these {len(members)} in all objectives at once: which of them to "
        f"take is a choice, not a measurement.{left_out_words(len(shown), len(measured))}",
        blocks=(*charts, _front_table(seen, seen.finding.front)),
    )


def _pair(
    seen: Seen, trial: Trial, values: Sequence[float], member: FrontMember | None, place: int
) -> Pair:
    reached = seen.reached(trial)
    x, y = values[0] if reached is None else reached.centre, values[place]
    ends = [Reach(centre=x), Reach(centre=y)]
    if member is not None:
        ends = [_reach(member.reached[0].value), _reach(member.reached[place].value)]
    return Pair(
        name=str(trial.ordinal),
        x=ends[0],
        y=ends[1],
        on_front=member is not None,
        is_limited=trial.score is not None and bool(trial.score.broken),
        tip=trial_tip(trial, seen.history),
    )


def _reach(value: Spread) -> Reach:
    return Reach(centre=value.centre, low=value.low, high=value.high)


def _front_table(seen: Seen, members: Sequence[FrontMember]) -> Table:
    rows: list[Row] = []
    for member in members:
        trial = seen.history.find(member.ordinal)
        config = "" if trial is None or trial.config is None else flags(trial.config)
        reached = (spread_cell(each.value) for each in member.reached)
        name = Cell(text=f"trial {member.ordinal}")
        rows.append(Row(cells=(name, *reached, Cell(text=config, is_code=True))))
    names = map(objective_label, seen.scoring.objectives)
    about = "The front, best in the main objective first"
    return Table(about=about, headings=("trial", *names, "sets"), rows=tuple(rows))


def _traded(seen: Seen, name: str) -> Section | None:
    """The objective against a metric; None where the best takes least of it, or all the same."""
    if seen.study.objective.expression == name:
        return None
    pairs, label = _taken(seen, name)
    kept = [pair for pair in pairs if pair.on_front]
    if len(pairs) < LEAST_POINTS or len(kept) < 2:
        return None
    rows = tuple(
        words_row(f"trial {pair.name}", number(pair.x.centre), number(pair.y.centre))
        for pair in sorted(kept, key=lambda pair: pair.x.centre)
    )
    objective = objective_label(seen.scoring)
    shown = thinned(pairs, lambda pair: pair.on_front)
    chart = front_chart(shown, x_label=f"{label}, lower is better", y_label=_axis(seen.scoring))
    return Section(
        name="front",
        heading=f"What {name} buys",
        lead=f"No other beats the named ones in {name} and the "
        "objective at once, so one of them may do where less is at hand."
        + left_out_words(len(shown), len(pairs)),
        blocks=(
            Chart(drawn=chart, about=f"{objective} against {name}"),
            Table(
                about=f"What is reached with how much {name}",
                headings=("trial", label, objective),
                rows=rows,
                numeric=frozenset({1, 2}),
            ),
        ),
    )


def _taken(seen: Seen, name: str) -> tuple[list[Pair], str]:
    """Every trial by a metric and the objective, and what the metric is called with its unit."""
    found = [
        (trial, trial.score, reached.centre, metric)
        for trial in seen.history.measured
        if trial.score is not None
        and (reached := seen.reached(trial)) is not None
        and (metric := seen.metric(trial, name)) is not None
    ]
    sign = seen.scoring.sign
    costs = {trial.ordinal: (sign * value, metric.value) for trial, _, value, metric in found}
    kept = set(unbeaten(costs))
    unit = found[0][3].unit if found else ""
    size, told = (2**20, "MiB") if unit == "bytes" else (1, unit)
    label = f"{name} ({told})" if told else name
    pairs = [
        Pair(
            name=str(trial.ordinal),
            x=Reach(centre=metric.value / size),
            y=Reach(centre=value),
            on_front=trial.ordinal in kept,
            is_limited=bool(score.broken),
            tip=f"{trial_tip(trial, seen.history)}; {label} {number(metric.value / size)}",
        )
        for trial, score, value, metric in found
    ]
    return pairs, label


def _axis(scoring: Scoring) -> str:
    better = "lower" if scoring.lower_is_better else "higher"
    return f"{objective_label(scoring)}, {better} is better"


CAUSE_CHARS = 500
CAUSES_SHOWN = 5


def failures(seen: Seen) -> Section | None:
    """Failures by kind with their causes; None where nothing failed."""
    by_kind: dict[FailureKind, list[tuple[int, Failed]]] = defaultdict(list)
    for trial in seen.history:
        if isinstance(trial.outcome, Failed):
            by_kind[trial.outcome.kind].append((trial.ordinal, trial.outcome))
    again = [repeat for repeat in seen.repeats if isinstance(repeat.outcome, Failed)]
    if not by_kind and not again:
        return None
    rows = tuple(
        row
        for kind, found in sorted(by_kind.items(), key=lambda item: -len(item[1]))
        for row in _rows(kind, found)
    )
    blocks: list[Block] = []
    if rows:
        headings = ("kind", "trials", "which", "ended at", "first cause")
        about = "Failures by kind and cause"
        blocks.append(Table(about=about, headings=headings, rows=rows, numeric=frozenset({1})))
    lines = (*map(_failures_again, again), *_learned(seen))
    if lines:
        blocks.append(Facts(lines=lines))
    total = sum(map(len, by_kind.values()))
    lead = (
        f"{total} of {len(seen.history)} trials failed: a failure is never a score, and one of the "
        "infrastructure is not the configuration's fault."
    )
    return Section(name="failures", heading="Failures", lead=lead, blocks=tuple(blocks))


def _rows(kind: FailureKind, found: list[tuple[int, Failed]]) -> list[Row]:
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


def _row(kind: FailureKind, found: list[tuple[int, Failed]], cause: str) -> Row:
    stages = ", ".join(sorted({str(failed.stage) for _, failed in found}))
    which = ordinals_words(sorted(ordinal for ordinal, _ in found))
    texts = (str(kind), str(len(found)), which, stages, cause)
    return Row(cells=tuple(Cell(text=text) for text in texts))


def _failures_again(repeat: Repeat) -> tuple[str, str]:
    told = one_line(str(repeat.outcome), CAUSE_CHARS)
    return "failed when launched again", f"trial {repeat.ordinal}, {told}"


def _learned(seen: Seen) -> list[tuple[str, str]]:
    found = [
        ("learned", f"{each.constraint.expression}, as it {each.constraint.reason}")
        for each in seen.learned
    ]
    return [*found, *(("taken back", name) for name in seen.study.revoked)]


def doubts(seen: Seen) -> Section | None:
    """Every fault of the history, or what was looked for; None while there is no trial."""
    if not len(seen.history):
        return None
    checks = ", ".join(_spelled(name) for name in CHECKS)
    if not seen.faults:
        lead = f"Nothing was found; looked for were: {checks}."
        return Section(name="doubts", heading="What speaks against it", lead=lead)
    rows = tuple(
        Row(
            cells=(
                Cell(text=_spelled(fault.name)),
                Cell(text=fault.words),
                Cell(text=ordinals_words(fault.ordinals)),
            )
        )
        for fault in seen.faults
    )
    table = Table(
        about="Faults that the record itself shows, the gravest first",
        headings=("fault", "what the record shows", "trials"),
        rows=rows,
    )
    lead = "Read the result with these in mind, or launch again what matters."
    return Section(name="doubts", heading="What speaks against it", lead=lead, blocks=(table,))


def _spelled(name: str) -> str:
    return name.replace("_", " ")
