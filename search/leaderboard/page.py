"""A leaderboard as one HTML file that can be sorted and filtered, and read without scripts too."""

from search.leaderboard.ranking import Column, Group, Leaderboard, Ranked
from search.leaderboard.submission import Reading
from search.leaderboard.words import (
    RULE,
    columns_in,
    defects,
    interval_words,
    legend,
    mark_names,
    rank_words,
    ranked_words,
    value_words,
)
from search.report_page.blocks import Cell, Facts, Page, Row, Section, Table, Words
from search.report_page.html_page import html_page

HEADINGS = ("submission", "rank", "interval", "launches", "ties with", "marks")
ABOUT = ("devices", "machine", "software", "settings", "from")
ALL = ("submission", "work", "rank", "by", "value", "launches", "marks", "machine")


def leaderboard_page(board: Leaderboard) -> str:
    """The whole file."""
    count = sum(len(group.ranked) for group in board.groups)
    sections = [_section(place, group, board) for place, group in enumerate(board.groups)]
    return html_page(
        Page(
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


def _brief(each: Ranked, group: Group) -> Row:
    submission = each.submission
    reading = None if group.by is None else group.by.of(submission)
    return Row(
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


def _row(each: Ranked, group: Group, columns: list[Column]) -> Row:
    submission = each.submission
    by = group.by.of(submission) if group.by is not None else None
    return Row(
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
        blocks = tuple(Words(text=note) for note in board.notes)
        found.append(
            Section(name="left-out", heading="Left out", lead="What is not here.", blocks=blocks)
        )
    return found
