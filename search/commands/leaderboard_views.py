"""Prints or writes a leaderboard as a table, CSV, JSON or HTML."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, assert_never

import typer

from evaluator.metrics.published import PREFIX
from records.errors import StoreError, StudyError
from search.commands.options import store_flag
from search.leaderboard.facts import leaderboard_facts
from search.leaderboard.gathering import gathered
from search.leaderboard.ranking import Column, Group, Leaderboard, Ranked, leaderboard
from search.leaderboard.words import (
    PUBLISHED,
    RULE,
    columns_in,
    defects,
    interval_words,
    launches_words,
    legend,
    letter_of,
    mark_letters,
    rank_words,
    ranked_words,
    short_heading,
    submissions_of,
    value_words,
)
from search.reading import has_records, recorded
from search.tables import Column as TextColumn
from search.tables import numbers, page_cells, print_words, table_lines
from search.terminal import Terminal, on_terminal

Form: TypeAlias = Literal["table", "csv", "json", "html"]
SUFFIXES: dict[str, Form] = {".csv": "csv", ".json": "json", ".html": "html", ".htm": "html"}
TEXT_METRICS = 3
PIPE_CELLS = 1000
"""A pipe has no width: nothing is cut for it."""
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to rank, and how to write it; everything on record where no study is named."""

    studies: Sequence[str]
    entries: Sequence[Path]
    by: str | None
    workload: str | None
    metrics: Sequence[str]
    form: Form | None
    to: Path | None
    absent: bool


def print_leaderboard(wanted: Wanted, store: Path | None) -> None:
    """Gather, rank, and print or write; raises `StudyError` where there is nothing to rank."""
    with ExitStack() as opened:
        # Entries of others need no store; studies that are named do.
        needed = wanted.studies or not wanted.entries or has_records(store)
        records = opened.enter_context(recorded(store)) if needed else None
        status = opened.enter_context(Terminal(stderr=True).status("reading studies"))
        submissions, notes = gathered(
            records,
            wanted.studies,
            wanted.entries,
            wanted.workload,
            lambda count: status.update(f"studies read: {count}"),
        )
        flag = "" if records is None else store_flag(records.root)
    if not submissions:
        of = "" if wanted.workload is None else f" of workload {wanted.workload!r}"
        told = f" ({'; '.join(notes)})" if notes else ""
        raise StudyError(f"no submission{of}{told}; see `cclsearch list`")
    board = leaderboard(submissions, wanted.by, wanted.metrics, notes)
    form = wanted.form or SUFFIXES.get(wanted.to.suffix if wanted.to else "", "table")
    if form == "table" and wanted.to is None:
        _print_text(board, wanted, flag)
        return
    text = _written(board, form, wanted)
    if wanted.to is None:
        typer.echo(text, nl=False)
        return
    try:
        wanted.to.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
    except OSError as error:
        raise StoreError(f"cannot write {wanted.to}: {error.strerror}") from error
    typer.echo(f"{wanted.to}: {len(submissions)} submissions in {len(board.groups)} groups")


def _written(board: Leaderboard, form: Form, wanted: Wanted) -> str:
    match form:
        case "csv":
            return _csv(board)
        case "json":
            return json.dumps(leaderboard_facts(board), allow_nan=False) + "\n"
        case "html":
            # Imported here: it is a page's worth of code that text does without.
            from search.leaderboard.page import leaderboard_page

            return leaderboard_page(board)
        case "table":
            raise StudyError(
                f"{wanted.to}: a table is for reading here; name a .csv, .json or .html file, or "
                "say which with --format"
            )
        case _:
            assert_never(form)


def _print_text(board: Leaderboard, wanted: Wanted, flag: str) -> None:
    shown: dict[str, Column] = {}
    marks = legend(board)
    for group in board.groups:
        columns = columns_in(group, board.columns)
        if not wanted.metrics:
            columns = columns[:TEXT_METRICS]
        shown |= {column.name: column for column in columns}
        typer.echo(f"{group.work.title}; {ranked_words(group)}")
        _print_group(group, columns, list(marks))
        if wanted.absent:
            for line in _absent_lines(group, columns):
                typer.echo(line)
        typer.echo("")
    for place, (name, words) in enumerate(marks.items()):
        print_words(f"{letter_of(place)}: {name.replace('_', ' ')}: {words}")
    for name, words in defects(shown.values()):
        print_words(f"{name}: {words}")
    if any(name.startswith(PREFIX) for name in shown):
        print_words(
            f"{PUBLISHED}: published_..., as it was published, by other definitions than ours"
        )
    if any(reading.doubt for each in submissions_of(board) for reading in each.readings.values()):
        typer.echo("?: cannot be what it is called; not ranked by it")
    for note in board.notes:
        print_words(note)
    print_words(f"ranks: {RULE}")
    typer.echo(f"next: cclsearch leaderboard -o leaderboard.html{flag}")


def _print_group(group: Group, columns: Sequence[Column], marks: Sequence[str]) -> None:
    """The table of a group; columns in which nothing is told are left out."""
    told = group.ranked
    by = [None if group.by is None else group.by.of(each.submission) for each in told]
    some = [
        TextColumn(heading="interval", cells=[interval_words(each) for each in by]),
        numbers("launches", [launches_words(each.submission) for each in told]),
        TextColumn(heading="marks", cells=[mark_letters(e.submission, marks) for e in told]),
    ]
    columns_told = [
        numbers("#", [rank_words(each, group) for each in told]),
        TextColumn(
            heading="submission", cells=[each.submission.name for each in told], yielding=True
        ),
        *(
            numbers(short_heading(column), [value_words(column.of(e.submission)) for e in told])
            for column in columns
        ),
        *(column for column in some if any(column.cells)),
    ]
    for line in table_lines(columns_told, page_cells() if on_terminal() else PIPE_CELLS):
        typer.echo(line)


def _absent_lines(group: Group, columns: Sequence[Column]) -> Iterator[str]:
    for each in group.ranked:
        for column in columns:
            reading = each.submission.readings.get(column.name)
            if reading is not None and reading.absent is not None:
                yield f"no {column.name} of {each.submission.name}: {reading.absent}"


def _csv(board: Leaderboard) -> str:
    """A row for each submission; a text that a spreadsheet would run begins with an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads = ("work", "ranked_by", "rank", "submission", "source", "low", "high", "launches", "ties")
    names = [f"{column.name} [{column.unit}]" for column in board.columns]
    about = ("machine", "devices", "software", "settings", "marks")
    writer.writerow([*heads, *(_defused(name) for name in names), *about])
    for group in board.groups:
        for each in group.ranked:
            writer.writerow(_csv_row(each, group, board.columns))
    return out.getvalue()


def _csv_row(each: Ranked, group: Group, columns: Sequence[Column]) -> list[object]:
    submission, by = each.submission, group.by
    reading = None if by is None else by.of(submission)
    readings = [column.of(submission) for column in columns]
    marks = "; ".join(f"{mark.name}: {mark.words}" for mark in submission.marks)
    cells: list[object] = [
        group.work.title,
        "" if by is None else by.name,
        each.rank,
        submission.name,
        submission.source,
        None if reading is None else reading.low,
        None if reading is None else reading.high,
        submission.launch_count,
        ", ".join(submission.ties),
        *(None if told is None else told.value for told in readings),
        submission.machine,
        submission.rank_count,
        submission.software,
        submission.settings,
        marks,
    ]
    return [_defused(cell) if isinstance(cell, str) else cell for cell in cells]


def _defused(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text
