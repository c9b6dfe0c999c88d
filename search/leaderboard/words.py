"""Cells of a leaderboard in words, for every form that it is written in."""

from collections.abc import Iterable, Iterator, Sequence
from string import ascii_lowercase
from typing import Final

from evaluator.metrics.published import PREFIX
from records.rule import size_words
from search.leaderboard.ranking import BYTES, Column, Group, Leaderboard, Ranked
from search.leaderboard.submission import Mark, Reading, Submission
from search.words.trial import number

DOUBTED: Final = "?"
PUBLISHED: Final = "°"
RULE: Final = (
    "a rank is one more than how many are shown to be better: whose intervals overlap share it; "
    "– has no interval, so nothing ranks it"
)
UNRANKED: Final = "–"


def short_heading(column: Column) -> str:
    """Name, unit and direction in few letters: those of published metrics have a sign instead."""
    name = column.name.removeprefix(PREFIX)
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
    return size_words(value) if unit == BYTES else number(value)


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
