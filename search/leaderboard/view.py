"""The leaderboard as an HTML page, as table cells and as JSON."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from string import ascii_lowercase
from typing import Final

from evaluator.metrics.base import PUBLISHED_PREFIX
from records.expression import format_bytes
from search.leaderboard.entries import Mark, Reading, Submission
from search.leaderboard.ranking import BYTES, Column, Group, Leaderboard, Ranked
from search.views.document import Cell, Document, Facts, Paragraph, Section, Table, TableRow
from search.views.format import format_number
from search.views.html import render_html

DOUBTED: Final = "?"
PUBLISHED: Final = "°"
RULE: Final = (
    "a rank is one more than how many are shown to be better: whose intervals overlap share it; "
    "– has no interval, so nothing ranks it"
)
UNRANKED: Final = "–"


def short_heading(column: Column) -> str:
    """Name, unit and direction in few letters: those of published metrics have a sign instead."""
    name = column.name.removeprefix(PUBLISHED_PREFIX)
    sign = PUBLISHED if name != column.name else ""
    unit = f" {column.unit}" if column.unit and column.unit != BYTES else ""
    return f"{name}{sign}{unit} {column.arrow}"


def value_words(reading: Reading | None) -> str:
    """A value as a table shows it: marked where something speaks against it, empty where absent."""
    if reading is None or reading.value is None:
        return ""
    return f"{_amount(reading.value, reading.unit)}{DOUBTED if reading.doubt is not None else ''}"


def rank_words(each: Ranked, group: Group) -> str:
    """Its rank, a dash where its value has no interval, nothing where it has no value."""
    if each.rank is not None:
        return str(each.rank)
    return UNRANKED if group.by is not None and group.by.value(each.submission) is not None else ""


def _amount(value: float, unit: str) -> str:
    return format_bytes(value) if unit == BYTES else format_number(value)


def interval_words(reading: Reading | None) -> str:
    """The ends of its interval, or that one launch has none; empty where nobody says."""
    if reading is None or reading.value is None:
        return ""
    if reading.low is None or reading.high is None:
        return "one launch" if reading.launch_count == 1 else ""
    return f"{_amount(reading.low, reading.unit)} to {_amount(reading.high, reading.unit)}"


def launches_words(submission: Submission) -> str:
    """How often it was launched; empty where nobody says."""
    return "" if submission.launch_count is None else str(submission.launch_count)


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
    """Each kind of mark, how many submissions have it, and what it says of the first of them."""
    found: dict[str, list[tuple[Submission, Mark]]] = {}
    for submission in submissions_of(board):
        for name, mark in {mark.name: mark for mark in reversed(submission.marks)}.items():
            found.setdefault(name, []).append((submission, mark))
    return {
        name: f"{len(told)}, as {told[0][0].name}: {told[0][1].words}"
        for name, told in sorted(found.items())
    }


def submissions_of(board: Leaderboard) -> Iterator[Submission]:
    """Every submission, group by group."""
    for group in board.groups:
        yield from (each.submission for each in group.ranked)


def defects(columns: Iterable[Column]) -> Iterator[tuple[str, str]]:
    """The columns whose definition has a defect, and which."""
    yield from ((each.name, each.defect) for each in columns if each.defect)


def columns_in(group: Group, columns: Sequence[Column]) -> list[Column]:
    """The columns in which any submission of a group has a value, what ranks it first."""
    told = [
        column
        for column in columns
        if any(
            (reading := column.of(each.submission)) is not None and reading.value is not None
            for each in group.ranked
        )
    ]
    return sorted(told, key=lambda column: column != group.by)


def ranked_words(group: Group) -> str:
    """By what a group is ranked, in words."""
    if group.by is None:
        return "not ranked: no submission has what it would be ranked by"
    return f"ranked by {group.by.heading}"


HEADINGS = ("submission", "rank", "interval", "launches", "ties with", "marks")
ABOUT = ("devices", "machine", "software", "settings", "from")
ALL = ("submission", "work", "rank", "by", "value", "launches", "marks", "machine")


def leaderboard_page(board: Leaderboard) -> str:
    """The whole file."""
    count = sum(len(group.ranked) for group in board.groups)
    sections = [_section(place, group, board) for place, group in enumerate(board.groups)]
    return render_html(
        Document(
            title="Leaderboard",
            lead=f"{count} submissions of {len(board.groups)} kinds of work. Only what did the "
            f"same work is ranked together; {RULE}.",
            sections=(_everything(board), *sections, *_about(board)),
        )
    )


def _everything(board: Leaderboard) -> Section:
    """One table of all submissions, to be searched."""
    rows = [_brief(each, group) for group in board.groups for each in group.ranked]
    table = Table(
        about="Every submission with what it is ranked by",
        headings=ALL,
        rows=tuple(rows),
        numeric=frozenset({2, 4, 5}),
        is_long=True,
    )
    lead = "Ranks are those within the same work."
    return Section(name="all", heading="All submissions", lead=lead, blocks=(table,))


def _brief(each: Ranked, group: Group) -> TableRow:
    submission = each.submission
    reading = None if group.by is None else group.by.of(submission)
    return TableRow(
        cells=(
            Cell(text=submission.name),
            Cell(text=group.work.title),
            Cell(text=rank_words(each, group), value=each.rank),
            Cell(text="" if group.by is None else group.by.heading),
            _value(reading),
            _number(submission.launch_count),
            Cell(text=mark_names(submission)),
            Cell(text=submission.machine),
        )
    )


def _section(place: int, group: Group, board: Leaderboard) -> Section:
    columns = columns_in(group, board.columns)
    first = len(HEADINGS)
    table = Table(
        about=ranked_words(group),
        headings=(*HEADINGS, *(column.heading for column in columns), *ABOUT),
        rows=tuple(_row(each, group, columns) for each in group.ranked),
        numeric=frozenset({1, 3, *range(first, first + len(columns) + 1)}),
        is_long=True,
    )
    marks = tuple(
        (each.submission.name, f"{mark.title}: {mark.words}")
        for each in group.ranked
        for mark in each.submission.marks
    )
    facts = (Facts(lines=lines) for lines in (marks, tuple(_absences(group, columns))) if lines)
    return Section(
        name=f"work-{place}",
        heading=group.work.title,
        lead=ranked_words(group),
        blocks=(table, *facts),
    )


def _row(each: Ranked, group: Group, columns: list[Column]) -> TableRow:
    submission = each.submission
    by = group.by.of(submission) if group.by is not None else None
    return TableRow(
        cells=(
            Cell(text=submission.name),
            Cell(text=rank_words(each, group), value=each.rank),
            Cell(text=interval_words(by)),
            _number(submission.launch_count),
            Cell(text=", ".join(submission.ties)),
            Cell(text=mark_names(submission)),
            *(_value(column.of(submission)) for column in columns),
            _number(submission.rank_count),
            Cell(text=submission.machine),
            Cell(text=submission.software),
            Cell(text=submission.settings, is_code=True),
            Cell(text=submission.source),
        ),
        tone="best" if each.rank == 1 else "",
    )


def _value(reading: Reading | None) -> Cell:
    return Cell(text=value_words(reading), value=None if reading is None else reading.value)


def _number(count: int | None) -> Cell:
    return Cell(text="" if count is None else str(count), value=count)


def _absences(group: Group, columns: list[Column]) -> list[tuple[str, str]]:
    """Why cells of a group are empty: a line for each column and reason."""
    lines: list[tuple[str, str]] = []
    for column in columns:
        reasons: dict[str, int] = {}
        for each in group.ranked:
            reading = each.submission.readings.get(column.name)
            if reading is not None and reading.absent is not None:
                reasons[reading.absent] = reasons.get(reading.absent, 0) + 1
        lines += [(f"no {column.name}", f"{why} ({count})") for why, count in reasons.items()]
    return lines


def _about(board: Leaderboard) -> list[Section]:
    """What marks mean, what is wrong with columns, and what was left out."""
    marks, wrong = tuple(legend(board).items()), tuple(defects(board.columns))
    found: list[Section] = []
    if marks:
        lead = "What to know of a submission before it is believed; how many have each mark."
        found.append(
            Section(name="marks", heading="Marks", lead=lead, blocks=(Facts(lines=marks),))
        )
    if wrong:
        lead = "What is wrong with how published metrics are computed; ours are other columns."
        found.append(
            Section(name="columns", heading="Columns", lead=lead, blocks=(Facts(lines=wrong),))
        )
    if board.notes:
        blocks = tuple(Paragraph(text=note) for note in board.notes)
        found.append(
            Section(name="left-out", heading="Left out", lead="What is not here.", blocks=blocks)
        )
    return found


def leaderboard_facts(board: Leaderboard) -> dict[str, object]:
    """All groups with their submissions, the columns, and what marks mean."""
    return {"groups": [group_facts(group, board) for group in board.groups], **legend_facts(board)}


def legend_facts(board: Leaderboard) -> dict[str, object]:
    """What it takes to read a group: the columns, the rule, and what marks mean."""
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
