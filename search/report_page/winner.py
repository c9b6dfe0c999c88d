"""The best trial: what it sets, what that brought, and how sure it is."""

from records.trial import Trial
from search.contexts import parts
from search.report_page.blocks import (
    Block,
    Cell,
    Code,
    Facts,
    Row,
    Section,
    Table,
    Words,
    words_row,
)
from search.report_page.cells import metric_words
from search.report_page.seen import Seen
from search.words.config import flags
from search.words.context import results_in_contexts
from search.words.diagnosis import diagnosis_lines, diagnosis_of

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
