"""The leaderboard as an HTML page, as table cells and as JSON."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from string import ascii_lowercase
from typing import Final, TypeAlias

from records.expression import format_bytes
from search.leaderboard.ranking import BYTES, Column, Group, Leaderboard, Ranked
from search.leaderboard.submission import Mark, Reading, Submission
from search.views.document import (
    Cell,
    Document,
    Facts,
    Paragraph,
    Section,
    Table,
    TableRow,
    code,
    number,
)
from search.views.format import format_number
from search.views.html import render_html

RULE: Final = (
    "a rank is one more than the number of submissions shown to be better: those whose intervals "
    "overlap share it; – has no interval and no rank"
)
UNRANKED: Final = "–"


ShownCell: TypeAlias = Callable[[Ranked, Group], Cell | str]
"""What a column shows of a submission in its group."""


def value_words(reading: Reading | None) -> str:
    """A value as a table shows it; empty where absent."""
    return "" if reading is None or reading.value is None else _amount(reading.value, reading.unit)


def rank_cell(each: Ranked, group: Group) -> Cell:
    """Its rank, a dash where its value has no interval, nothing where it has no value."""
    is_valued = group.by is not None and group.by.value(each.submission) is not None
    text = str(each.rank) if each.rank is not None else UNRANKED if is_valued else ""
    return number(each.rank, text)


def _amount(value: float, unit: str) -> str:
    return format_bytes(value) if unit == BYTES else format_number(value)


def interval_words(reading: Reading | None) -> str:
    """The ends of its interval, or that one launch has none; empty where unknown."""
    if reading is None or reading.value is None:
        return ""
    if reading.low is None or reading.high is None:
        return "one launch" if reading.launch_count == 1 else ""
    return f"{_amount(reading.low, reading.unit)} to {_amount(reading.high, reading.unit)}"


def mark_names(submission: Submission) -> str:
    """The names of its marks as people read them, each once."""
    return ", ".join(dict.fromkeys(mark.title for mark in submission.marks))


def mark_letters(submission: Submission, names: Sequence[str]) -> str:
    """A letter for each kind of its marks, by the place of the kind among all names."""
    own = {mark.name for mark in submission.marks}
    return "".join(letter_of(place) for place, name in enumerate(names) if name in own)


def letter_of(place: int) -> str:
    """A letter for a kind of mark; those beyond the alphabet have a sign."""
    return ascii_lowercase[place] if place < len(ascii_lowercase) else "*"


def legend(board: Leaderboard) -> dict[str, str]:
    """Each kind of mark, how many submissions have it, and the words of the first of them."""
    found: dict[str, list[tuple[Submission, Mark]]] = {}
    for submission in submissions_of(board):
        for name, mark in {mark.name: mark for mark in reversed(submission.marks)}.items():
            found.setdefault(name, []).append((submission, mark))
    return {
        name: f"{len(marked)}, such as {marked[0][0].name}: {marked[0][1].words}"
        for name, marked in sorted(found.items())
    }


def submissions_of(board: Leaderboard) -> Iterator[Submission]:
    """Every submission, group by group."""
    for group in board.groups:
        yield from (each.submission for each in group.ranked)


def columns_in(group: Group, columns: Sequence[Column]) -> list[Column]:
    """The columns in which any submission of a group has a value, what ranks it first."""
    with_values = [
        column
        for column in columns
        if any(
            (reading := column.of(each.submission)) is not None and reading.value is not None
            for each in group.ranked
        )
    ]
    return sorted(with_values, key=lambda column: column != group.by)


def ranked_words(group: Group) -> str:
    """By what a group is ranked, as text."""
    if group.by is None:
        return "not ranked: no submission has what it would be ranked by"
    return f"ranked by {group.by.heading}"


BEFORE: Final[Mapping[str, ShownCell]] = {
    "submission": lambda each, _: each.submission.name,
    "rank": rank_cell,
    "interval": lambda each, group: interval_words(ranked_by(each, group)),
    "launches": lambda each, _: number(each.submission.launch_count),
    "ties with": lambda each, _: ", ".join(each.submission.ties),
    "marks": lambda each, _: mark_names(each.submission),
}
AFTER: Final[Mapping[str, ShownCell]] = {
    "devices": lambda each, _: number(each.submission.rank_count),
    "machine": lambda each, _: each.submission.machine,
    "software": lambda each, _: each.submission.software,
    "settings": lambda each, _: code(each.submission.settings),
    "from": lambda each, _: each.submission.source,
}
"""The columns that surround those of metrics."""


def ranked_by(each: Ranked, group: Group) -> Reading | None:
    """What a submission has in the column that ranks its group."""
    return None if group.by is None else group.by.of(each.submission)


def metric_columns(
    columns: Iterable[Column], heading: Callable[[Column], str] = lambda column: column.heading
) -> dict[str, ShownCell]:
    """A column of values for each metric, under its heading."""
    return {heading(column): partial(_metric_cell, column) for column in columns}


def _name_cell(links: str, each: Ranked, _: Group) -> Cell:
    name = each.submission.name
    return Cell(text=name, link=links and f"{links}{name}")


def _metric_cell(column: Column, each: Ranked, _: Group) -> Cell:
    reading = column.of(each.submission)
    return number(None if reading is None else reading.value, value_words(reading))


def board_table(
    about: str, columns: Mapping[str, ShownCell], groups: Iterable[Group], *, yielding: int = -1
) -> Table:
    """A row for each submission of these groups; the columns by their headings."""
    return Table(
        about=about,
        headings=tuple(columns),
        rows=tuple(
            TableRow.of(
                *(shown(each, group) for shown in columns.values()),
                tone="best" if each.rank == 1 else "",
            )
            for group in groups
            for each in group.ranked
        ),
        is_long=True,
        yielding=frozenset({yielding}),
    )


def leaderboard_page(board: Leaderboard) -> str:
    """The whole file."""
    count = sum(len(group.ranked) for group in board.groups)
    sections = [
        group_section(place, group, board.columns) for place, group in enumerate(board.groups)
    ]
    return render_html(
        Document(
            title="Leaderboard",
            lead=f"{count} submissions of {len(board.groups)} kinds of work. Only what did the "
            f"same work is ranked together; {RULE}.",
            sections=(*sections, *about_sections(board)),
        )
    )


def group_section(
    place: int, group: Group, columns: Sequence[Column], links: str = "", most: int | None = None
) -> Section:
    """A group with at most so many of its columns, its marks, and why values are absent.

    Names lead to `links` followed by them.
    """
    shown = columns_in(group, columns)[:most]
    headings: dict[str, ShownCell] = {
        "submission": partial(_name_cell, links),
        "rank": rank_cell,
        **metric_columns(shown),
        **{name: cell for name, cell in BEFORE.items() if name not in ("submission", "rank")},
        **AFTER,
    }
    marks = tuple(
        (each.submission.name, f"{mark.title}: {mark.words}")
        for each in group.ranked
        for mark in each.submission.marks
    )
    notes = (("Marks of these submissions", marks), ("Missing values", _absences(group, shown)))
    return Section(
        name=f"work-{place}",
        heading=group.work.title,
        lead=ranked_words(group),
        blocks=(
            board_table(ranked_words(group), headings, [group]).dense,
            *(Facts(lines=lines, summary=summary) for summary, lines in notes if lines),
        ),
    )


def _absences(group: Group, columns: Sequence[Column]) -> tuple[tuple[str, str], ...]:
    """Why cells of a group are empty: a line for each column and reason."""
    reasons = Counter(
        (column.name, reading.absent)
        for column in columns
        for each in group.ranked
        if (reading := each.submission.readings.get(column.name)) is not None and reading.absent
    )
    return tuple((f"no {name}", f"{why} ({count})") for (name, why), count in reasons.items())


def about_sections(board: Leaderboard) -> Iterator[Section]:
    """What marks mean, and what was left out."""
    marks = legend(board)
    if marks:
        yield Section(
            name="marks",
            heading="Marks",
            lead="Reservations about submissions; how many have each.",
            blocks=(Facts(lines=tuple(marks.items())),),
        )
    if board.notes:
        notes = tuple(Paragraph(text=note) for note in board.notes)
        lead = "What is not here."
        yield Section(name="left-out", heading="Left out", lead=lead, blocks=notes)


def leaderboard_facts(board: Leaderboard) -> dict[str, object]:
    """All groups with their submissions, the columns, and what marks mean."""
    return {"groups": [group_facts(group, board) for group in board.groups], **legend_facts(board)}


def legend_facts(board: Leaderboard) -> dict[str, object]:
    """What the groups share: the columns, the rule, and what marks mean."""
    return {
        "columns": [asdict(column) for column in board.columns],
        "rule": RULE,
        "marks": legend(board),
        "notes": board.notes,
    }


def group_facts(group: Group, board: Leaderboard) -> dict[str, object]:
    """Submissions that did the same work, best first."""
    names = {column.name for column in board.columns}
    return {
        "work": {**asdict(group.work), "title": group.work.title},
        "ranked_by": None if group.by is None else group.by.name,
        "submissions": [_ranked_facts(each, names) for each in group.ranked],
    }


def _ranked_facts(each: Ranked, names: Collection[str]) -> Mapping[str, object]:
    submission = each.submission
    return {
        "rank": each.rank,
        "name": submission.name,
        "source": submission.source,
        "machine": submission.machine,
        "devices": submission.rank_count,
        "software": submission.software,
        "settings": submission.settings,
        "launches": submission.launch_count,
        "ties": list(submission.ties),
        "marks": [asdict(mark) for mark in submission.marks],
        "metrics": {
            name: asdict(reading) for name, reading in submission.readings.items() if name in names
        },
    }
