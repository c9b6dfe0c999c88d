"""A report of a study: its sections in their order, and those about the outcome.

These are the best trial, history, Pareto front and failures.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from records.store.rows import StudyRow
from records.store.store import Store
from records.trial import Failed, FailureKind, Trial
from search.loop.leader import FrontMember
from search.report.analysis import (
    cost_section,
    faster_section,
    importance_section,
    time_section,
    trials_section,
)
from search.report.data import ReportData
from search.report.explored import (
    FrontPoint,
    StudyFront,
    draw_fronts,
    draw_history,
)
from search.report.question import (
    knobs_section,
    outcome_words,
    policy_section,
    reproduce_section,
    study_section,
)
from search.study.spaces import parts
from search.traces.view import trial_timeline
from search.views.document import (
    Block,
    Cell,
    Chart,
    Code,
    Document,
    Facts,
    Paragraph,
    Section,
    Table,
    TableRow,
    code,
    left_out_words,
    number,
)
from search.views.format import format_flags, one_line, ordinals_words, reached_words
from search.views.study import arguments_text, objective_words, results_in_contexts
from search.views.trial import (
    NUMBERS,
    fact_lines,
    metrics_table,
    settings_table,
    time_blocks,
)

TITLE_CHARS = 160
EVIDENCE = (
    *("undecided", "baseline", "caveat", "against the seed", "tied", "not ruled out", "inert"),
    *("unreliable", "noise", "compared", "disturbed", "left out", "limits"),
)
METRICS_SHOWN = 40
NO_BEST = "No trial qualifies as the best; see the failures below."


def study_report(row: StudyRow, store: Store, store_flag: str) -> Document:
    """The report of a stored study; `store_flag` is what commands need to find it."""
    data = ReportData.of(row, store, store_flag)
    timeline = [] if data.best is None else trial_timeline(row, data.best, store)
    sections = (
        study_section(data),
        best_section(data),
        history_section(data),
        front_section(data),
        knobs_section(data),
        importance_section(data.space, data.history, data.scoring.sign),
        time_section(data.history, data.best, timeline),
        faster_section(data.best, row.id),
        trials_section(data),
        failures_section(data),
        cost_section(data),
        policy_section(data),
        reproduce_section(data),
    )
    return Document(
        title=one_line(f"{row.study.name}: the best by {objective_words(row.study)}", TITLE_CHARS),
        lead=outcome_words(data),
        sections=tuple(section for section in sections if section is not None),
    )


def best_section(data: ReportData) -> Section:
    """Configuration, value, evidence, and what it changes of the seed."""
    best = data.best
    if best is None:
        lead = NO_BEST if len(data.history) else "No trial has ended yet."
        return Section(name="best", heading="The best", lead=lead, blocks=_evidence(data))
    blocks: list[Block] = [*_settings(data, best), *_evidence(data), *time_blocks(best)]
    metrics = {"best": data.metrics.get(best.ordinal, ())[:METRICS_SHOWN]}
    if data.seed is not None and data.seed.ordinal != best.ordinal:
        sides = {"seed": data.seed.config, "best": best.config}
        about = "Settings that differ from the seed"
        table = settings_table(about, sides, differing=True)
        same = Paragraph(text="The settings are those of the seed.")
        blocks.append(table if table.rows else same)
        metrics["seed"] = data.metrics.get(data.seed.ordinal, ())
    blocks.append(metrics_table("Metrics, each from one launch", metrics))
    undecided = "undecided" in data.summary and data.is_finished
    return Section(
        name="best",
        heading="Undecided" if undecided else "The best" if data.is_finished else "The best so far",
        lead="The configuration to use and its evidence; intervals are over launches, not steps.",
        blocks=tuple(blocks),
    )


def _settings(data: ReportData, best: Trial) -> Iterator[Block]:
    if best.config is None:
        yield Paragraph(text=f"Trial {best.ordinal} has no recorded configuration.")
        return
    for part in parts(data.study, best.config):
        inside = f" in {part.name}" if data.study.contexts else ""
        yield Paragraph(text=f"Trial {best.ordinal} sets{inside}:")
        yield Code(text=arguments_text(part.study, part.config))


def _evidence(data: ReportData) -> tuple[Facts, ...]:
    objective = data.study.objective.expression
    contexts = [label for label in data.summary if label.startswith("against the seed in ")]
    lines = data.lines(objective, *EVIDENCE, *contexts)
    best = data.best
    own = results_in_contexts(best, data.history, data.study) if best is not None else ()
    inside = [(f"in context {found.name}", found.words) for found in own]
    numbers = [] if best is None else fact_lines(NUMBERS, best)
    found = (*lines, *numbers, *inside)
    return (Facts(lines=found),) if found else ()


def history_section(data: ReportData) -> Section | None:
    """Every trial in order; None where nothing was measured."""
    found = data.explored
    drawn = draw_history(found, links="#trial-")
    if not drawn:
        return None
    better = "lower" if found.axis.lower_is_better else "higher"
    return Section(
        name="history",
        heading="Optimization history",
        lead=f"One mark per trial in launch order; {better} is better. A failed trial is a tick on "
        "the axis; the best trial shows the interval over its launches."
        f"{left_out_words(found.shown, found.total)}",
        blocks=(Chart(drawn=drawn, about=f"{found.axis.label} of each trial"),),
    )


def front_section(data: ReportData) -> Section | None:
    """The front of several objectives, or of the objective against what trials take."""
    found = data.front
    front = [point for point in found.points if point.on_front]
    if not front:
        return None
    charts = (Chart(drawn=drawn, about=about) for about, drawn in draw_fronts(found, "#trial-"))
    if found.is_multi_objective:
        heading = "Pareto front"
        lead = (
            f"No trial is better than these {len(front)} in every objective; choosing between "
            "them is a trade-off."
        )
        table = _front_table(data, data.finding.front)
    else:
        name = found.axes[1].name
        heading = f"Trade-offs with {name}"
        lead = f"No trial is better than the named ones in both {name} and the objective."
        table = _trade_table(found, front)
    return Section(
        name="front",
        heading=heading,
        lead=lead + left_out_words(found.shown, found.total),
        blocks=(*charts, table),
    )


def _trade_table(found: StudyFront, front: Sequence[FrontPoint]) -> Table:
    objective, taken = (axis.shown.label for axis in found.axes)
    rows = sorted(
        (cost.shown(found.axes[1]).centre, value.shown(found.axes[0]).centre, ordinal)
        for ordinal, (value, cost) in ((point.ordinal, point.values) for point in front)
    )
    return Table(
        about=f"Best {objective} for each {found.axes[1].name}",
        headings=("trial", taken, objective),
        rows=tuple(
            TableRow.of(f"trial {ordinal}", number(cost), number(value))
            for cost, value, ordinal in rows
        ),
    )


def _front_table(data: ReportData, members: Sequence[FrontMember]) -> Table:
    rows: list[TableRow] = []
    for member in members:
        trial = data.history.find(member.ordinal)
        config = "" if trial is None or trial.config is None else format_flags(trial.config)
        values = [each.value for each in member.reached]
        cells = (Cell(text=reached_words(each), value=each.centre) for each in values)
        rows.append(TableRow.of(f"trial {member.ordinal}", *cells, code(config)))
    names = (axis.label for axis in data.front.axes)
    about = "The Pareto front, best in the main objective first"
    return Table(about=about, headings=("trial", *names, "sets"), rows=tuple(rows))


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
        blocks.append(Table(about="Failures by kind and cause", headings=headings, rows=rows))
    lines: list[tuple[str, str]] = []
    for one in failed_repeats:
        cause = one_line(str(one.outcome), CAUSE_CHARS)
        lines.append(("repeat launch failed", f"trial {one.ordinal}, {cause}"))
    for learned in data.learned:
        rule = learned.constraint
        lines.append(("learned constraint", f"{rule.expression}, because it {rule.reason}"))
    lines += [("revoked", name) for name in data.study.revoked]
    if lines:
        blocks.append(Facts(lines=tuple(lines)))
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
