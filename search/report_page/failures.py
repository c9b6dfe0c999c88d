"""What failed, why, and what was learnt from it."""

from collections import defaultdict

from records.trial import Failed, FailureKind, Repeat
from search.known_words import ordinals_words
from search.report_page.blocks import Block, Cell, Facts, Row, Section, Table
from search.report_page.seen import Seen
from search.words.trial import one_line

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
    lines = (*map(_again, again), *_learnt(seen))
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


def _again(repeat: Repeat) -> tuple[str, str]:
    told = one_line(str(repeat.outcome), CAUSE_CHARS)
    return "failed when launched again", f"trial {repeat.ordinal}, {told}"


def _learnt(seen: Seen) -> list[tuple[str, str]]:
    found = [
        ("learnt", f"{each.constraint.expression}, as it {each.constraint.reason}")
        for each in seen.learnt
    ]
    return [*found, *(("taken back", name) for name in seen.study.revoked)]
