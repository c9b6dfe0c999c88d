"""The document model: sections of paragraphs, facts, tables, charts and code.

Every text in a document is untrusted; the renderer escapes it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, Self, TypeAlias, TypeVar

from records.expression import format_bytes
from records.trial import MetricValue
from search.views.format import format_number

Tone: TypeAlias = Literal["", "best", "failed", "fast", "slow", "same", "open"]
DIFFERS: Final = "≠"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Labels with their texts; a label may occur several times.

    With a `summary` a page shows them on demand; of an aside a terminal prints only the summary.
    """

    lines: tuple[tuple[str, str], ...]
    summary: str = ""
    is_aside: bool = False
    tone: Tone = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One place of a table; rows are sorted by `value` where it has one.

    One that `differs` from the first of its row is marked; a page leads to `link`.
    """

    text: str
    value: float | None = None
    is_code: bool = False
    is_number: bool = False
    differs: bool = False
    link: str = ""

    @property
    def marked(self) -> str:
        """The text, after a mark where it differs."""
        return f"{DIFFERS} {self.text}" if self.differs else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A line of a table; its first cell names it."""

    cells: tuple[Cell, ...]
    tone: Tone = ""
    anchor: str | None = None

    @classmethod
    def of(cls, *cells: Cell | str, tone: Tone = "", anchor: str | None = None) -> Self:
        """Make a row of cells and plain texts."""
        made = tuple(Cell(text=each) if isinstance(each, str) else each for each in cells)
        return cls(cells=made, tone=tone, anchor=anchor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A heading and the cells below it; a narrow page cuts those that are `yielding`."""

    heading: str
    cells: Sequence[Cell | str]
    yielding: bool = False


def number_column(heading: str, texts: Sequence[str]) -> Column:
    """A column of numbers as texts, which end at one place."""
    return Column(heading=heading, cells=[Cell(text=text, is_number=True) for text in texts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under headings; `about` says what they hold.

    A narrow page cuts the cells of `yielding` columns, given by their places.
    """

    about: str
    headings: tuple[str, ...]
    rows: tuple[TableRow, ...]
    is_long: bool = False
    """Whether it can be sorted and filtered, and shows its first rows only."""
    yielding: frozenset[int] = frozenset()

    @classmethod
    def of(cls, *columns: Column, about: str = "", tones: Sequence[Tone] = ()) -> Self:
        """Make a table of columns of equal lengths, and the tones of its rows."""
        rows = list(zip(*(column.cells for column in columns), strict=True))
        plain: Sequence[Tone] = [""] * len(rows)
        return cls(
            about=about,
            headings=tuple(column.heading for column in columns),
            rows=tuple(
                TableRow.of(*cells, tone=tone)
                for cells, tone in zip(rows, tones or plain, strict=True)
            ),
            yielding=frozenset(n for n, column in enumerate(columns) if column.yielding),
        )

    @property
    def numeric(self) -> frozenset[int]:
        """The columns of numbers."""
        places = range(len(self.headings))
        return frozenset(n for n in places if any(row.cells[n].is_number for row in self.rows))

    @property
    def dense(self) -> Self:
        """The same without empty columns."""
        shown = [
            place
            for place in range(len(self.headings))
            if place == 0 or any(row.cells[place].text for row in self.rows)
        ]
        return replace(
            self,
            headings=tuple(self.headings[place] for place in shown),
            rows=tuple(
                replace(row, cells=tuple(row.cells[place] for place in shown)) for row in self.rows
            ),
            yielding=frozenset(n for n, place in enumerate(shown) if place in self.yielding),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing as trusted SVG, of data that a table of the document has as well."""

    drawn: str
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A program, command or setting to copy."""

    text: str
    language: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """The lines of a unified diff."""

    lines: tuple[str, ...]


Block: TypeAlias = Paragraph | Facts | Table | Chart | Code | Diff


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, a sentence that introduces the blocks, and the blocks."""

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


def code(text: str) -> Cell:
    """A setting or command."""
    return Cell(text=text, is_code=True)


def number(value: float | None, text: str | None = None) -> Cell:
    """A number as `text`, by default with four digits; empty where there is none."""
    if text is None:
        text = "" if value is None else format_number(value)
    return Cell(text=text, value=value, is_number=True)


def metric_words(metric: MetricValue) -> str:
    """A value with its unit, bytes in the one that people read them in."""
    if metric.unit == "bytes":
        return format_bytes(metric.value)
    return f"{format_number(metric.value)} {metric.unit}".rstrip()


def metric_cell(metric: MetricValue | None) -> Cell:
    """A metric with its unit; empty where there is none."""
    return number(None) if metric is None else number(metric.value, metric_words(metric))


T = TypeVar("T")

MOST_MARKS = 2000


def thin(items: Sequence[T], keeps: Callable[[T], bool], most: int = MOST_MARKS) -> list[T]:
    """The items in their order: those that it keeps, and `most` of the others, evenly spread."""
    others = [place for place, item in enumerate(items) if not keeps(item)]
    every = max(1, -(-len(others) // most))
    dropped = set(others) - set(others[::every])
    return [item for place, item in enumerate(items) if place not in dropped]


def left_out_words(shown: int, count: int) -> str:
    """How many are not shown, as a sentence to follow another; nothing where all are."""
    return f" {count - shown} of {count} are left out of the chart." if shown < count else ""
