"""The document model: sections of paragraphs, facts, tables, charts and code.

Every text in a document is untrusted; the renderer escapes it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeAlias, TypeVar

from evaluator.timing.decision import Spread
from records.expression import format_bytes
from records.trial import MetricValue
from search.views.format import format_number, reached_words

Tone: TypeAlias = Literal["", "best", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Labels and what they say; a label may come several times."""

    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a table says in one place; rows are sorted by `value` where it has one."""

    text: str
    value: float | None = None
    is_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A line of a table, which begins with what it is about."""

    cells: tuple[Cell, ...]
    tone: Tone = ""
    anchor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under headings; `about` says what they hold, `numeric` which columns are numbers."""

    about: str
    headings: tuple[str, ...]
    rows: tuple[TableRow, ...]
    numeric: frozenset[int] = frozenset()
    is_long: bool = False
    """Whether it may be sorted, filtered and shown by and by."""

    @property
    def dense(self) -> Self:
        """The same without columns in which no row says anything."""
        kept = [
            place
            for place in range(len(self.headings))
            if place == 0 or any(row.cells[place].text for row in self.rows)
        ]
        return replace(
            self,
            headings=tuple(self.headings[place] for place in kept),
            rows=tuple(
                replace(row, cells=tuple(row.cells[place] for place in kept)) for row in self.rows
            ),
            numeric=frozenset(new for new, old in enumerate(kept) if old in self.numeric),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing as SVG, which is trusted, and the same in letters; None where that says nothing."""

    drawn: str
    about: str
    letters: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A program, command or setting to copy."""

    text: str
    language: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """What one text has changed of another, as the lines of a unified difference."""

    lines: tuple[str, ...]


Block: TypeAlias = Paragraph | Facts | Table | Chart | Code | Diff


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, a sentence that says what to see, and what there is to see."""

    name: str
    heading: str
    lead: str
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A whole report."""

    title: str
    lead: str
    sections: tuple[Section, ...]


def words_row(*texts: str) -> TableRow:
    """A row of plain texts."""
    return TableRow(cells=tuple(Cell(text=text) for text in texts))


def spread_cell(found: Spread) -> Cell:
    """Launches of a trial by their centre, interval and number."""
    return Cell(text=reached_words(found), value=found.centre)


def metric_words(metric: MetricValue) -> str:
    """A value with its unit, bytes in the one that people read them in."""
    if metric.unit == "bytes":
        return format_bytes(metric.value)
    return f"{format_number(metric.value)} {metric.unit}".rstrip()


T = TypeVar("T")

MOST_MARKS = 2000


def thinned(items: Sequence[T], keeps: Callable[[T], bool], most: int = MOST_MARKS) -> list[T]:
    """The items in their order: those that it keeps, and `most` of the others, evenly spread."""
    others = [place for place, item in enumerate(items) if not keeps(item)]
    every = max(1, -(-len(others) // most))
    dropped = set(others) - set(others[::every])
    return [item for place, item in enumerate(items) if place not in dropped]


def left_out_words(shown: int, count: int) -> str:
    """How many are not shown, as a sentence to follow another; nothing where all are."""
    return f" {count - shown} of {count} are left out of the chart." if shown < count else ""
