"""Import of CCL-Search: run folders, runs in workload cards, and searches in JSON lines."""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Final

from records.errors import StudyError, shown
from records.files import open_regular
from records.study import Environment, Origin, Study, Value
from records.workload import Workload
from search.study.card_reader import Card, CardReader, is_number
from search.transfer.foreign_studies import (
    MAX_LINE_CHARS,
    MAX_ROWS,
    Aim,
    BadRows,
    Imported,
    RecordedMachine,
    Row,
    SearchRow,
    SimulatedRow,
    author_of,
    content_digest,
    grouped_rows,
    imported_study,
    json_row,
    lines_of,
    positive,
    published_of,
    rank_count,
    rules_of,
    study_of,
    text_of,
    workload_of,
)

RESULTS: Final = "results.csv"
COLUMNS: Final = ("iteration", "version", "config", "metrics", "score", "status", "error_msg")
MAX_POLICY_BYTES: Final = 256 << 10
STEP_TIME: Final = "avg_step_time"
COMPOSITE: Final = "gpu_step_score"
"""A score of CCL-Search that is better where it is higher."""
UNKNOWN_WORK: Final = Workload(name="not recorded", global_batch=1, sequence_length=1)
NO_CARD: Final = (
    "What every step had to do is not in the folder, so batch and length are 1 here; "
    "import it again with --card to tell."
)
DECLARED: Final = "What a step did is what the card declares; no launch told it."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCard:
    """What a workload card says of a run next to it."""

    workload: Workload
    environment: Environment
    framework: str | None = None
    inferences: tuple[str, ...] = ()
    name: str = ""
    digest: str = ""


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
        rows = tuple(_rows(table, lines, card, bad))
        if not rows:
            raise StudyError(f"{table}: holds no trial")
        name = table.parent.resolve().name if table.name == RESULTS else table.stem
        bests = [number(line.get("best_score", "")) for _, line in lines]
        aim = aim_of(rows, bests[-1])
        digests = {table.name: content_digest(table)}
        if card is not None:
            digests[card.name] = card.digest
        ranks = max(row.ranks or 1 for row in rows)
        known = card or RunCard(
            workload=UNKNOWN_WORK, environment=RecordedMachine().environment(ranks)
        )
        notes = (NO_CARD if card is None else DECLARED, *bad.taken())
        study = _study(name, f"{name}/{table.name}", aim, known, digests, notes)
        yield imported_study(study, rows)


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
    name: str,
    source: str,
    aim: Aim,
    card: RunCard,
    digests: Mapping[str, str],
    notes: tuple[str, ...],
) -> Study:
    origin = Origin(
        kind="ccl-search", source=source, digests=digests, framework=card.framework, notes=notes
    )
    return study_of(
        name=name,
        aim=aim,
        workload=card.workload,
        environment=card.environment,
        inferences=card.inferences,
        origin=origin,
        rules=rules_of(fixed_batch=False),
    )


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


def _rows(
    path: Path, lines: Sequence[tuple[int, Mapping[str, str]]], card: RunCard | None, bad: BadRows
) -> Iterator[Row]:
    ordinal = 0
    for line, row in lines:
        try:
            yield _run_row(
                ordinal,
                card,
                text=json.dumps(dict(row), sort_keys=True),
                config=json_row(row.get("config") or "{}", Mapping[str, Value]),  # type: ignore[type-abstract]  # pydantic takes it
                metrics=json_row(row.get("metrics") or "{}", Mapping[str, float | None]),  # type: ignore[type-abstract]  # the same
                score=number(row.get("score", "")),
                status=row.get("status"),
                error=row.get("error_msg", ""),
                program=_program(path, row),
            )
        except StudyError as error:
            bad.refuse(f"{path}:{line}: {error}")
            continue
        ordinal += 1


def _run_row(
    ordinal: int,
    card: RunCard | None,
    *,
    text: str,
    config: Mapping[str, Value],
    metrics: Mapping[str, float | None],
    score: float | None,
    status: object,
    error: str,
    program: str | None,
) -> Row:
    """A trial as a table or a card has it; `text` is all of it."""
    return Row(
        text=text,
        config=config,
        succeeded=status == "success",
        score=score,
        least_score=0,
        step_s=positive(metrics.get(STEP_TIME)),
        ranks=rank_count(config),
        tokens=None if card is None else card.workload.tokens_per_step,
        tokens_declared=card is not None,
        published=published_of(metrics),
        error=error,
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
        raise StudyError(f"{text[:40]!r} is not a number") from error


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


RUNS: Final = "runs"
SUFFIXES: Final = (".yaml", ".yml")
SEVERAL: Final = "Runs of several launches of the tool may stand together in a card."


def run_card(path: Path) -> RunCard:
    """Return what a card says of the runs next to it."""
    card = Card(path)
    reader = CardReader(card)
    if len(reader.batch_sizes()) > 1:
        raise StudyError(f"{path}: lists several batch sizes; leave in it the one that was run")
    return RunCard(
        name=path.name,
        digest=content_digest(path),
        workload=reader.workload(),
        environment=reader.stated_environment() or RecordedMachine().environment(1),
        inferences=tuple(reader.inferences),
        framework=card.text("Model-executor.framework.name"),
    )


def read_cards(path: Path, bad: BadRows) -> Iterator[Imported]:
    """The runs of a card as one study."""
    card = Card(path)
    if card.get(RUNS) is None:
        raise StudyError(f"{path}: lists no runs; give the run folder, with --card {path.name}")
    said = run_card(path)
    rows: list[Row] = []
    for n, item in enumerate(card.items(RUNS)):
        try:
            rows.append(_card_row(len(rows), item, said))
        except StudyError as error:
            bad.refuse(f"{path}: {RUNS}[{n}]: {error}")
    aim = aim_of(rows, None)
    notes = (DECLARED, SEVERAL, *bad.taken())
    digests = {path.name: said.digest}
    yield imported_study(_study(path.stem, path.name, aim, said, digests, notes), rows)


def _card_row(ordinal: int, item: Mapping[object, object], card: RunCard) -> Row:
    config, metrics = _plain(item.get("config")), _numbers(item.get("metrics"))
    score, error, program = item.get("score"), item.get("error_msg"), item.get("policy")
    return _run_row(
        ordinal,
        card,
        text=json.dumps([config, metrics, str(score), str(item.get("status")), str(error)]),
        config=config,
        metrics=metrics,
        score=score if isinstance(score, float) else float(score) if is_number(score) else None,
        status=item.get("status"),
        error=error if isinstance(error, str) else "",
        program=program if isinstance(program, str) else None,
    )


def _plain(table: object) -> dict[str, Value]:
    """The settings of a run; those that are null were not set."""
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise StudyError(f"config is {shown(table)}, no table")
    for knob, value in table.items():
        if not isinstance(knob, str) or not isinstance(value, bool | int | float | str | None):
            raise StudyError(f"config: {shown(knob)} is {shown(value)}, no plain value")
    return {knob: value for knob, value in table.items() if value is not None}


def _numbers(table: object) -> dict[str, float | None]:
    if not isinstance(table, dict):
        return {}
    return {k: float(v) for k, v in table.items() if isinstance(k, str) and is_number(v)}


CHECKPOINTING: Final = "activation_checkpointing"
FIXED_BATCH: Final = re.compile(r"fixed (\d+)")
SIMULATED: Final = "wall_time_cycles"
SIMULATOR: Final = RecordedMachine(accelerator="simulated", cluster="simulated")
CYCLES: Final = Aim(name="wall_time_cycles", direction="minimize", formula="wall_time_cycles")
SIMULATION_NOTES: Final = (
    "Scores are cycles of a simulated run.",
    "The search judged a policy by the mean over the workloads that did not fail, "
    "so a policy could gain by failing on the slowest.",
)


def is_history(path: Path) -> bool:
    """Whether a file begins like a recorded search in JSON lines."""
    try:
        with open_regular(path) as file:
            first = json.loads(file.readline(MAX_LINE_CHARS))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(first, dict) or not {"config", "status", "workload"} <= first.keys():
        return False
    return "search_id" in first or "card" in first


def read_history(path: Path, bad: BadRows) -> Iterator[Imported]:
    """Every search of a file of JSON lines."""
    is_simulated = SIMULATED in json.loads(lines_of(path)[0][1])
    origin = Origin(kind="jsonl", source=path.name, digests={path.name: content_digest(path)})
    yield from (_simulations if is_simulated else _searches)(path, origin, bad)


def _searches(path: Path, origin: Origin, bad: BadRows) -> Iterator[Imported]:
    found = grouped_rows(
        path, SearchRow, lambda line: (_name(line), line.objective), _search_row, bad
    )
    names = [name for name, _ in found]
    for (name, aim), lines in found.items():
        if not lines:
            continue
        first, rows = lines[0][1], [row for row, _ in lines]
        rule = first.workload.actual_global_batch_rule
        fixed_batch = FIXED_BATCH.search(rule or "") is not None
        varied = f"The global batch of a step was {rule or 'not recorded'}, whatever the card says."
        dead = all(not line.activation_checkpointing_effective for _, line in lines)
        study = study_of(
            name=f"{name} {aim.formula}" if aim is not None and names.count(name) > 1 else name,
            aim=aim,
            workload=workload_of(first.workload, first.workload.model or name),
            environment=first.hardware.environment(max(row.ranks or 1 for row in rows)),
            origin=replace(
                origin,
                framework=first.framework,
                dead_knobs=(CHECKPOINTING,) if dead else (),
                notes=(*(() if fixed_batch else (varied,)), *bad.taken()),
            ),
            rules=rules_of(fixed_batch=fixed_batch),
        )
        yield imported_study(study, rows)


def _simulations(path: Path, origin: Origin, bad: BadRows) -> Iterator[Imported]:
    """Each workload of a search by itself: a policy decided for all of them."""
    found = grouped_rows(
        path, SimulatedRow, lambda line: (line.search_id, line.workload.name), _simulated_row, bad
    )
    for (search, name), lines in found.items():
        if not lines:
            continue
        rows = [row for row, _ in lines]
        study = study_of(
            name=f"{search} {name}",
            aim=CYCLES,
            workload=workload_of(lines[0][1].workload, name),
            environment=SIMULATOR.environment(max(row.ranks or 1 for row in rows)),
            origin=replace(origin, framework="astra-sim", notes=(*SIMULATION_NOTES, *bad.taken())),
        )
        yield imported_study(study, rows)


def _name(line: SearchRow) -> str:
    return line.search_id or Path(line.card).stem or "search"


def _search_row(ordinal: int, text: str, line: SearchRow) -> Row:
    guess = line.inferred_cause if line.inferred_cause != line.error_class else None
    return Row(
        text=text,
        config=line.config,
        succeeded=line.status == "success",
        score=line.score,
        least_score=0,
        step_s=positive(line.step_seconds),
        ranks=line.gpus_used if line.gpus_used is not None else rank_count(line.config),
        tokens=line.tokens_per_step,
        published=published_of(line.metrics),
        error=line.error_excerpt or "",
        error_class=line.error_class or "",
        guess="; ".join(filter(None, (guess, line.inferred_why))) if guess else "",
        from_cache=line.served_from_cache,
        author=author_of(ordinal),
    )


def _simulated_row(ordinal: int, text: str, line: SimulatedRow) -> Row:
    parts = {"gpu_time_cycles": line.gpu_time_cycles, "comm_time_cycles": line.comm_time_cycles}
    return Row(
        text=text,
        config=line.config,
        succeeded=line.status == "success",
        score=line.wall_time_cycles,
        least_score=0,
        ranks=rank_count(line.config),
        tokens=(line.workload.batch_size or 0) * line.workload.seq_len,
        published=published_of(parts),
        error_class=line.error_class or "",
        author=author_of(ordinal),
    )
