"""Run folders of CCL-Search: `results.csv` in its older and newer layout, and the policies."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Final

from records.errors import StudyError
from records.origin import Origin
from records.study import Environment, Study, Value
from records.workload import Workload
from search.importing.files import (
    MAX_LINE_CHARS,
    MAX_ROWS,
    BadRows,
    content_digest,
    json_row,
    text_of,
)
from search.importing.history import imported
from search.importing.imported import Imported
from search.importing.row import Row
from search.importing.search_rows import Aim
from search.importing.studies import (
    author_of,
    direction_of,
    positive,
    published_of,
    rank_count,
    rules_of,
    study_of,
)

RESULTS: Final = "results.csv"
COLUMNS: Final = ("iteration", "version", "config", "metrics", "score", "status", "error_msg")
MAX_POLICY_BYTES: Final = 256 << 10
STEP_TIME: Final = "avg_step_time"
COMPOSITE: Final = "gpu_step_score"
"""A score of CCL-Search that is better where it is higher."""
UNKNOWN_WORK: Final = Workload(name="not on record", global_batch=1, sequence_length=1)
NO_CARD: Final = (
    "What every step had to do is not in the folder, so batch and length are 1 here; "
    "import it again with --card to tell."
)
DECLARED: Final = "What a step did is what the card declares; no launch told it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a workload card says of a run that stands beside it."""

    name: str
    digest: str
    workload: Workload
    environment: Environment
    framework: str | None
    inferences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    config: Mapping[str, Value]
    metrics: Mapping[str, float | None]
    score: float | None
    row: Mapping[str, str]


def is_run_folder(path: Path) -> bool:
    """Whether this is such a folder, a folder of such folders, or such a table by itself."""
    return bool(tables_in(path))


def tables_in(path: Path) -> tuple[Path, ...]:
    """The tables of a path, in alphabetical order."""
    if path.is_file():
        return (path,) if path.suffix == ".csv" and _has_columns(path) else ()
    own = path / RESULTS
    if own.is_file():
        return (own,)
    return tuple(sorted(each for each in path.glob(f"*/{RESULTS}") if _has_columns(each)))


def read(path: Path, card: Card | None, bad: BadRows) -> Iterator[Imported]:
    """Every run of a path; `card` tells what they had to do."""
    for table in tables_in(path):
        lines = tuple(_table(table))
        rows = tuple(_rows(table, lines, card, bad))
        if not rows:
            raise StudyError(f"{table}: holds no trial")
        name = table.parent.resolve().name if table.name == RESULTS else table.stem
        bests = [number(line.get("best_score", "")) for _, line in lines]
        aim = aim_of(rows, bests[-1])
        yield imported(_study(table, name, aim, rows, card, bad), rows)


def aim_of(rows: Sequence[Row], best: float | None) -> Aim:
    """What was to be reached, by what was scored and what was called the best in the end."""
    scores = [row.score for row in rows if row.succeeded and row.score is not None]
    timed = [row.step_s for row in rows if row.succeeded and row.score is not None]
    if scores and scores == timed:
        return Aim(name=STEP_TIME, direction="minimize", formula=STEP_TIME)
    rising = bool(scores) and best == max(scores) and best != min(scores)
    composite = any(COMPOSITE in row.text for row in rows)
    direction = "maximize" if rising or composite else "minimize"
    return Aim(name="score", direction=direction, formula="score")


def _study(
    table: Path, name: str, aim: Aim, rows: Sequence[Row], card: Card | None, bad: BadRows
) -> Study:
    ranks = max((row.ranks or 1 for row in rows), default=1)
    digests = {table.name: content_digest(table)}
    return study_of(
        name=name,
        aim=aim,
        workload=UNKNOWN_WORK if card is None else card.workload,
        environment=environment_of(ranks) if card is None else card.environment,
        inferences=() if card is None else card.inferences,
        origin=Origin(
            kind="ccl-search",
            source=f"{name}/{table.name}",
            digests=digests if card is None else {**digests, card.name: card.digest},
            framework=None if card is None else card.framework,
            direction=direction_of(aim),
            notes=(NO_CARD if card is None else DECLARED, *bad.taken()),
        ),
        rules=rules_of(fixed_batch=False),
    )


def environment_of(ranks: int) -> Environment:
    """A machine of which only is known that a job of so many ranks found room on it."""
    return Environment(
        name="elsewhere",
        device="cuda",
        accelerator="not on record",
        world_size=ranks,
        ranks_per_node=ranks,
    )


def _has_columns(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            head = file.readline(MAX_LINE_CHARS)
    except (OSError, UnicodeDecodeError):
        return False
    return set(COLUMNS) <= {name.strip() for name in head.strip().split(",")}


def _table(path: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    reader = csv.DictReader(StringIO(text_of(path), newline=""), strict=True)
    try:
        for number, row in enumerate(reader, start=1):
            if number > MAX_ROWS:
                raise StudyError(f"{path}: over {MAX_ROWS} rows; split it into several files")
            yield reader.line_num, {k: v or "" for k, v in row.items() if isinstance(v, str)}
    except csv.Error as error:
        raise StudyError(f"{path}:{reader.line_num}: not CSV: {error}") from error


def _rows(
    path: Path, lines: Sequence[tuple[int, Mapping[str, str]]], card: Card | None, bad: BadRows
) -> Iterator[Row]:
    ordinal = 0
    for line, row in lines:
        try:
            yield _row(ordinal, _line(row), _program(path, row), card)
        except StudyError as error:
            bad.refuse(f"{path}:{line}: {error}")
            continue
        ordinal += 1


def _line(row: Mapping[str, str]) -> _Line:
    return _Line(
        config=json_row(row.get("config") or "{}", Mapping[str, Value]),  # type: ignore[type-abstract]  # pydantic takes it
        metrics=json_row(row.get("metrics") or "{}", Mapping[str, float | None]),  # type: ignore[type-abstract]  # the same
        score=number(row.get("score", "")),
        row=row,
    )


def _row(ordinal: int, line: _Line, program: str | None, card: Card | None) -> Row:
    ranks = rank_count(line.config)
    work = None if card is None else card.workload
    return Row(
        text=json.dumps(dict(line.row), sort_keys=True),
        config=line.config,
        succeeded=line.row.get("status") == "success",
        score=line.score,
        least_score=0,
        step_s=positive(line.metrics.get(STEP_TIME)),
        ranks=ranks,
        tokens=None if work is None else work.tokens_per_step,
        tokens_declared=work is not None,
        published=published_of(line.metrics),
        error=line.row.get("error_msg", ""),
        program=program,
        author=author_of(ordinal),
    )


def number(text: str) -> float | None:
    """The float that a cell holds, finite or not; None for an empty cell."""
    if not text.strip():
        return None
    try:
        return float(text)
    except ValueError as error:
        raise StudyError(f"{text[:40]!r} is no number") from error


def _program(table: Path, row: Mapping[str, str]) -> str | None:
    """The text of a row's policy: in the row itself, or in the file of its version."""
    if row.get("policy"):
        return row["policy"]
    version = row.get("version", "")
    if not version.isascii() or not version.isdecimal():
        return None
    stamp = table.stem.removeprefix("results_")
    folder = "policies" if table.name == RESULTS else f"generate_config_{stamp}"
    path = table.parent / folder / f"generate_config_v{int(version)}.py"
    # A link may lead to any file of the reader's, and its text would become part of the record.
    if path.is_symlink() or path.parent.is_symlink() or not path.is_file():
        return None
    return text_of(path, MAX_POLICY_BYTES)
