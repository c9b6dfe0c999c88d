"""What one program changed of another, as rows of two columns or as one list of lines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal, TypeAlias

from search.service.pages.visible import visible

MOST_LINES = 3000
CONTEXT = 4
CUT = "[... the rest is on record ...]"

Kind: TypeAlias = Literal["same", "changed", "added", "removed", "gap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Lines beside each other with their numbers; None where a side has none.

    A `gap` stands for equal lines that are left out; `before` says how many.
    """

    kind: Kind
    before_number: int | None = None
    before: str | None = None
    after_number: int | None = None
    after: str | None = None


def lines_of(source: str) -> tuple[str, ...]:
    """The lines of a program, as they are shown."""
    lines = tuple(visible(source).splitlines())
    return lines if len(lines) <= MOST_LINES else (*lines[:MOST_LINES], CUT)


def side_by_side(before: str, after: str) -> tuple[Row, ...]:
    """Both programs beside each other, long equal parts left out; nothing where they are equal."""
    old, new = lines_of(before), lines_of(after)
    return () if old == new else tuple(_rows(old, new))


def one_below_the_other(rows: Sequence[Row]) -> Iterator[Row]:
    """The same in one list: what is gone, then what came in its place."""
    taken: list[Row] = []
    for row in rows:
        match row.kind:
            case "same" | "gap":
                yield from taken
                taken = []
                yield row
            case "added":
                taken.append(row)
            case "removed":
                yield row
            case "changed":
                yield Row(kind="removed", before_number=row.before_number, before=row.before)
                taken.append(Row(kind="added", after_number=row.after_number, after=row.after))
    yield from taken


def _rows(before: Sequence[str], after: Sequence[str]) -> Iterator[Row]:
    groups = SequenceMatcher(None, before, after).get_grouped_opcodes(CONTEXT)
    shown = 0
    for group in groups:
        if group[0][1] > shown:
            yield _gap(group[0][1] - shown)
        for tag, *ends in group:
            yield from _block(before, after, *ends, equal=tag == "equal")
        shown = group[-1][2]
    if len(before) > shown:
        yield _gap(len(before) - shown)


def _gap(count: int) -> Row:
    return Row(kind="gap", before=f"{count} equal line{'s'[: count - 1]}")


def _block(
    before: Sequence[str],
    after: Sequence[str],
    i: int,
    i_end: int,
    j: int,
    j_end: int,
    *,
    equal: bool,
) -> Iterator[Row]:
    for place in range(max(i_end - i, j_end - j)):
        old = i + place if i + place < i_end else None
        new = j + place if j + place < j_end else None
        kind: Kind = "same" if equal else "changed"
        if old is None or new is None:
            kind = "added" if old is None else "removed"
        yield Row(
            kind=kind,
            before_number=None if old is None else old + 1,
            before=None if old is None else before[old],
            after_number=None if new is None else new + 1,
            after=None if new is None else after[new],
        )
