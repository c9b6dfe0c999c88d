"""Import CCL-Search run folders: a table of trials, their policies and a workload card."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from evaluator.metrics.base import PUBLISHED_SCORE
from records.errors import StudyError
from records.files import open_regular
from records.study import Constraint, Environment, Objective, Origin, Value
from records.workload import Workload
from search.study.card_reader import Card, CardReader, is_number
from search.transfer.foreign_studies import (
    MAX_LINE_CHARS,
    MAX_ROWS,
    BadRows,
    Imported,
    Row,
    checked_value,
    content_digest,
    elsewhere,
    imported_study,
    json_value,
    rank_count,
    read_rows,
    study_of,
    text_of,
)

RESULTS: Final = "results.csv"
COLUMNS: Final = ("iteration", "version", "config", "metrics", "score", "status", "error_msg")
MAX_POLICY_BYTES: Final = 256 << 10
STEP_TIME: Final = "avg_step_time"
COMPOSITE: Final = "gpu_step_score"
"""A score of CCL-Search that is better where it is higher."""
NO_CARD: Final = (
    "The work of a step is not in the folder, so batch and length are 1 here; "
    "import it again with --card to state it."
)
DECLARED: Final = "The work of a step is what the card declares; no launch confirmed it."
UNKNOWN_WORK: Final = Workload(name="not recorded", global_batch=1, sequence_length=1)
RULES: Final = (
    Constraint(name="ranks", expression="tp * dp * pp <= world_size"),
    Constraint(name="experts", expression="dp % ep == 0"),
)
"""What every launch of its scripts has to keep to, whatever the search knew of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCard:
    """What a workload card says of a run next to it."""

    workload: Workload
    environment: Environment
    framework: str | None = None
    inferences: tuple[str, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A trial as the tool writes it in a table; a setting that is null was not set."""

    __pydantic_config__ = ConfigDict(extra="ignore", allow_inf_nan=False)

    config: Mapping[str, Value | None] | None
    metrics: Mapping[str, object] | None
    score: Annotated[float, Field(allow_inf_nan=True)] | None
    status: str = ""
    error_msg: str = ""


def tables_in(path: Path) -> tuple[Path, ...]:
    """The tables of runs: a path itself, that in a folder, or those in its folders, by name."""
    if path.is_file():
        return (path,) if path.suffix == ".csv" and _has_columns(path) else ()
    own = path / RESULTS
    if own.is_file():
        return (own,)
    return tuple(sorted(each for each in path.glob(f"*/{RESULTS}") if _has_columns(each)))


def read_run_folder(path: Path, card: RunCard | None, bad: BadRows) -> Iterator[Imported]:
    """Every run of a path; `card` tells what they had to do."""
    for table in tables_in(path):
        lines = tuple(_table(table))
        places = ((f"{table}:{number}", line) for number, line in lines)
        rows = read_rows(places, partial(_row, table, card), bad)
        best = number(lines[-1][1].get("best_score", "")) if lines else None
        name = table.parent.resolve().name if table.name == RESULTS else table.stem
        known = card or RunCard(
            workload=UNKNOWN_WORK,
            environment=elsewhere("cuda", max((row.ranks or 1 for row in rows), default=1)),
        )
        study = study_of(
            name=name,
            objective=objective_of(rows, best),
            workload=known.workload,
            environment=known.environment,
            inferences=known.inferences,
            origin=Origin(
                kind="ccl-search",
                source=f"{name}/{table.name}",
                digests={table.name: content_digest(table), **known.digests},
                framework=known.framework,
                notes=(NO_CARD if card is None else DECLARED, *bad.taken()),
            ),
            rules=RULES,
        )
        yield imported_study(study, rows)


def run_card(path: Path) -> RunCard:
    """Return what a card says of the runs next to it."""
    card = Card(path)
    reader = CardReader(card)
    if len(reader.batch_sizes()) > 1:
        raise StudyError(f"{path}: lists several batch sizes; leave in it the one that was run")
    return RunCard(
        workload=reader.workload(),
        environment=reader.stated_environment() or elsewhere("cuda", 1),
        framework=card.text("Model-executor.framework.name"),
        inferences=tuple(reader.inferences),
        digests={path.name: content_digest(path)},
    )


def objective_of(rows: Sequence[Row], best: float | None) -> Objective:
    """What was to be reached, by what was scored and what was called the best in the end."""
    scored = {n: row.score for n, row in enumerate(rows) if row.succeeded and row.score is not None}
    scores = [*scored.values()]
    if scores and scores == [rows[n].step_s for n in scored]:
        return Objective(expression="step_time", direction="minimize")
    rising = bool(scores) and best == max(scores) and best != min(scores)
    composite = any(COMPOSITE in row.text for row in rows)
    direction: Literal["maximize", "minimize"] = "maximize" if rising or composite else "minimize"
    return Objective(expression=PUBLISHED_SCORE, direction=direction)


def _has_columns(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            head = file.readline(MAX_LINE_CHARS).decode("utf-8-sig")
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


def _row(table: Path, card: RunCard | None, line: Mapping[str, str]) -> Row:
    """A line of a table, whose cells hold JSON."""
    cells = {name: json_value(line.get(name) or "{}") for name in ("config", "metrics")}
    run = checked_value({**line, **cells, "score": number(line.get("score", ""))}, RecordedRun)
    config = {knob: value for knob, value in (run.config or {}).items() if value is not None}
    numbers = {name: float(v) for name, v in (run.metrics or {}).items() if is_number(v)}
    return Row(
        text=json.dumps(line, sort_keys=True),
        config=config,
        succeeded=run.status == "success",
        score=run.score,
        step_s=numbers.get(STEP_TIME),
        ranks=rank_count(config),
        tokens=None if card is None else card.workload.tokens_per_step,
        tokens_declared=card is not None,
        metrics=numbers,
        error=run.error_msg,
        program=line.get("policy") or _program(table, line.get("version", "")),
    )


def number(text: str) -> float | None:
    """The float that a cell holds, finite or not; None for an empty cell."""
    if not text.strip():
        return None
    try:
        return float(text)
    except ValueError as error:
        raise StudyError(f"{text[:40]!r} is not a number") from error


def _program(table: Path, version: str) -> str | None:
    """The text of a policy in the file of its version, next to the table."""
    if not version.isascii() or not version.isdecimal():
        return None
    stamp = table.stem.removeprefix("results_")
    folder = "policies" if table.name == RESULTS else f"generate_config_{stamp}"
    path = table.parent / folder / f"generate_config_v{int(version)}.py"
    # A link may lead to any file of the reader's, and its text would become part of the record.
    if path.is_symlink() or path.parent.is_symlink() or not path.is_file():
        return None
    return text_of(path, MAX_POLICY_BYTES)
