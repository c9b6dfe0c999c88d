"""`report` and `leaderboard`: one study as a page, and the best of many in a table."""

import csv
import io
import json
import os
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, assert_never

import typer

from records.errors import StoreError, StudyError
from search.cli.options import (
    JsonOption,
    StoreOption,
    StudyArgument,
    examples,
    store_flag,
    takes_options,
)
from search.leaderboard.ranking import (
    Column,
    Group,
    Leaderboard,
    gather_submissions,
    leaderboard,
)
from search.leaderboard.view import (
    AFTER,
    BEFORE,
    RULE,
    ShownCell,
    board_table,
    columns_in,
    leaderboard_facts,
    leaderboard_page,
    legend,
    letter_of,
    mark_letters,
    metric_columns,
    rank_cell,
    ranked_by,
    ranked_words,
)
from search.settings import open_store
from search.transfer.tables import defused
from search.views.console import Terminal, on_terminal
from search.views.document import Table, number
from search.views.html import render_html
from search.views.markdown import render_markdown
from search.views.terminal import echo_wrapped, page_cells, table_lines, table_width

app = typer.Typer(rich_markup_mode=None)

Form: TypeAlias = Literal["html", "markdown"]
ENDINGS: dict[Form, str] = {"html": ".html", "markdown": ".md"}
LeaderboardFormat: TypeAlias = Literal["table", "csv", "json", "html"]
SUFFIXES: dict[str, LeaderboardFormat] = {
    ".csv": "csv",
    ".json": "json",
    ".html": "html",
    ".htm": "html",
}
TEXT_METRICS = 3
PIPE_CELLS = 1000
"""Output into a pipe is never truncated."""


@app.command(
    epilog=examples(
        "cclsearch report",
        "cclsearch report 20260131-120000-ab12 -o report.html --open",
        "cclsearch report -o report.md",
    )
)
def report(
    study_id: StudyArgument = "",
    to: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Output file or folder. [default: STUDY.html or STUDY.md]",
        ),
    ] = None,
    form: Annotated[
        Literal["html", "markdown"] | None,
        typer.Option("--format", help="Output format. [default: by the file's suffix, else html]"),
    ] = None,
    opened: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file given by -o.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a report of a study as one page (HTML or Markdown).

    The page shows the setup, the best configuration with its evidence, every trial and the cost,
    with charts and policies. It is self-contained and works for any recorded study, also while its
    search is running.
    """
    from search.report.report import study_report

    if form is None:
        form = "markdown" if to is not None and to.suffix == ENDINGS["markdown"] else "html"
    with open_store(store) as records:
        row = records.find(study_id)
        page = study_report(row, records, store_flag(records.root))
    path = to or Path()
    if not path.is_dir() and os.path.lexists(path) and not force:
        raise StudyError(f"{path} exists; overwrite it with --force, or give another file with -o")
    if path.is_dir():
        path /= f"{row.id}{ENDINGS[form]}"
    _write(path, render_html(page) if form == "html" else render_markdown(page))
    if as_json:
        sections = [section.name for section in page.sections]
        facts = {"study_id": row.id, "path": str(path), "format": form, "sections": sections}
        typer.echo(json.dumps(facts))
    else:
        typer.echo(f"written: {path}")
    if opened and not webbrowser.open(path.absolute().as_uri()):
        typer.echo(f"no browser could be started; open {path} yourself", err=True)


def _write(path: Path, text: str) -> None:
    """Write the file completely or not at all."""
    draft = path.with_name(f".{path.name}.part")
    try:
        try:
            draft.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; give another with -o") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderboardOptions:
    """What to rank, and how to write it; no studies means all."""

    studies: Annotated[
        list[str],
        typer.Argument(
            metavar="[STUDY]...",
            help="Study ids or prefixes. [default: all studies]",
            show_default=False,
        ),
    ] = field(default_factory=list)
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="METRIC",
            help="Rank by this metric. [default: step time]",
        ),
    ] = None
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Only this workload: the name of a model, or part of it."
        ),
    ] = None
    metric: Annotated[
        list[str],
        typer.Option(
            "--metric",
            metavar="NAME",
            help="Show this metric. Repeatable. [default: all; a table shows the few that fit]",
        ),
    ] = field(default_factory=list)
    form: Annotated[
        LeaderboardFormat | None,
        typer.Option("--format", help="Output format. [default: by the file's suffix, else table]"),
    ] = None
    to: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Output file. [default: print]"),
    ] = None


@app.command(
    "leaderboard",
    epilog=examples(
        "cclsearch leaderboard",
        "cclsearch leaderboard --workload llama-3",
        "cclsearch leaderboard --by tokens_per_s --metric mfu --metric peak_memory",
        "cclsearch leaderboard -o leaderboard.html",
    ),
)
@takes_options
def leaderboard_command(
    *,
    wanted: LeaderboardOptions,
    store: StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Rank the best of each study.

    Only equal workloads are ranked together: same model, phase, batch, sequence length, precision
    and tokens per step. Studies without a significant difference share a rank.
    """
    with open_store(store) as records, Terminal(stderr=True).status("reading studies") as status:
        submissions, notes = gather_submissions(
            records,
            wanted.studies,
            wanted.workload,
            lambda count: status.update(f"studies read: {count}"),
        )
        flag = store_flag(records.root)
    if not submissions:
        of = "" if wanted.workload is None else f" of workload {wanted.workload!r}"
        why = f" ({'; '.join(notes)})" if notes else ""
        raise StudyError(f"no submission{of}{why}; see `cclsearch list`")
    board = leaderboard(submissions, wanted.by, wanted.metric, notes)
    by_suffix = SUFFIXES.get(wanted.to.suffix if wanted.to else "", "table")
    form = "json" if as_json else wanted.form or by_suffix
    if form == "table" and wanted.to is None:
        _print_text(board, wanted, flag)
        return
    text = _written(board, form, wanted)
    if wanted.to is None:
        typer.echo(text, nl=False)
        return
    _write(wanted.to, text)
    typer.echo(f"{wanted.to}: {len(submissions)} submissions in {len(board.groups)} groups")


def _written(board: Leaderboard, form: LeaderboardFormat, wanted: LeaderboardOptions) -> str:
    match form:
        case "csv":
            return _csv(board)
        case "json":
            return json.dumps(leaderboard_facts(board), allow_nan=False) + "\n"
        case "html":
            return leaderboard_page(board)
        case "table":
            raise StudyError(
                f"{wanted.to}: a table cannot be written to a file; use .csv, .json or .html, or "
                f"give --format"
            )
        case _:
            assert_never(form)


def _print_text(board: Leaderboard, wanted: LeaderboardOptions, flag: str) -> None:
    marks = legend(board)
    for group in board.groups:
        columns = columns_in(group, board.columns)
        if not wanted.metric:
            columns = columns[:TEXT_METRICS]
        typer.echo(f"{group.work.title}; {ranked_words(group)}")
        _print_group(group, columns, list(marks))
        typer.echo("")
    for place, (name, words) in enumerate(marks.items()):
        echo_wrapped(f"{letter_of(place)}: {name.replace('_', ' ')}: {words}")
    for note in board.notes:
        echo_wrapped(note)
    echo_wrapped(f"ranks: {RULE}")
    typer.echo(f"next: cclsearch leaderboard -o leaderboard.html{flag}")


def _print_group(group: Group, columns: Sequence[Column], marks: Sequence[str]) -> None:
    """Print the table of a group with the first columns that fit."""
    width = page_cells() if on_terminal() else PIPE_CELLS
    for count in range(max(1, len(columns)), 0, -1):
        table = _group_table(group, columns[:count], marks)
        if table_width(table) <= width:
            break
    for line in table_lines(table, width):
        typer.echo(line)
    left_out = ", ".join(column.name for column in columns[count:])
    if left_out:
        echo_wrapped(f"not shown for lack of width: {left_out}; cclsearch leaderboard | cat")


def _group_table(group: Group, columns: Sequence[Column], marks: Sequence[str]) -> Table:
    """Return the table of a group without empty columns; marks are letters."""
    shown = {
        "#": rank_cell,
        "submission": BEFORE["submission"],
        **metric_columns(columns),
        **{name: BEFORE[name] for name in ("interval", "launches")},
        "marks": lambda each, _: mark_letters(each.submission, marks),
    }
    return board_table("", shown, [group], yielding=1).dense


def _csv(board: Leaderboard) -> str:
    """Return one row per submission; an apostrophe disarms texts that a spreadsheet would run."""
    columns: dict[str, ShownCell] = {
        "work": lambda _, group: group.work.title,
        "ranked_by": lambda _, group: "" if group.by is None else group.by.name,
        "rank": rank_cell,
        "submission": BEFORE["submission"],
        "source": AFTER["from"],
        "low": lambda each, group: number(r.low if (r := ranked_by(each, group)) else None),
        "high": lambda each, group: number(r.high if (r := ranked_by(each, group)) else None),
        "launches": BEFORE["launches"],
        "ties": BEFORE["ties with"],
        **metric_columns(board.columns, lambda column: f"{column.name} [{column.unit}]"),
        **{name: AFTER[name] for name in ("machine", "devices", "software", "settings")},
        "marks": lambda each, _: "; ".join(f"{m.name}: {m.words}" for m in each.submission.marks),
    }
    table = board_table("", columns, board.groups)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(defused, table.headings))
    for row in table.rows:
        writer.writerow(c.value if c.is_number else defused(c.text) for c in row.cells)
    return out.getvalue()
