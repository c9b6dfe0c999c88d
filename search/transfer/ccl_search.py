"""Import of CCL-Search: run folders, runs in workload cards, and searches in JSON lines."""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Final

from evaluator.metrics.base import PUBLISHED_SCORE
from records.errors import StudyError
from records.files import open_regular
from records.study import Environment, Origin, Value
from records.workload import Workload
from search.study.card_reader import Card, CardReader, is_number
from search.transfer.foreign_studies import (
    BATCH_RULE,
    LOOSE,
    MAX_LINE_CHARS,
    MAX_ROWS,
    RULES,
    Aim,
    Anything,
    BadRows,
    Imported,
    RecordedMachine,
    Row,
    SearchRow,
    SimulatedRow,
    checked_value,
    content_digest,
    grouped_rows,
    imported_study,
    json_value,
    lines_of,
    rank_count,
    read_rows,
    study_of,
    text_of,
    workload_of,
)

RESULTS: Final = "results.csv"
COLUMNS: Final = ("iteration", "version", "config", "metrics", "score", "status", "error_msg")
RUNS: Final = "runs"
SUFFIXES: Final = (".yaml", ".yml")
MAX_POLICY_BYTES: Final = 256 << 10
STEP_TIME: Final = "avg_step_time"
COMPOSITE: Final = "gpu_step_score"
"""A score of CCL-Search that is better where it is higher."""
NO_CARD: Final = (
    "The work of a step is not in the folder, so batch and length are 1 here; "
    "import it again with --card to state it."
)
DECLARED: Final = "The work of a step is what the card declares; no launch confirmed it."
SEVERAL: Final = "Runs of several launches of the tool may stand together in a card."
UNKNOWN_WORK: Final = Workload(name="not recorded", global_batch=1, sequence_length=1)


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
    """A trial as the tool writes it in a table or a card; a setting that is null was not set."""

    __pydantic_config__ = LOOSE

    config: Mapping[str, Value | None] | None = None
    metrics: Mapping[str, object] | None = None
    score: Anything | None = None
    status: str = ""
    error_msg: str | None = None
    policy: str | None = None


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
        rows = read_rows(places, partial(_line_row, table, card), bad)
        best = number(lines[-1][1].get("best_score", "")) if lines else None
        name = table.parent.resolve().name if table.name == RESULTS else table.stem
        note = NO_CARD if card is None else DECLARED
        known = card or RunCard(
            workload=UNKNOWN_WORK,
            environment=RecordedMachine().environment(max((r.ranks or 1 for r in rows), default=1)),
        )
        known = replace(known, digests={table.name: content_digest(table), **known.digests})
        notes = (note, *bad.taken())
        yield _imported(name, f"{name}/{table.name}", rows, aim_of(rows, best), known, notes)


def read_cards(path: Path, bad: BadRows) -> Iterator[Imported]:
    """The runs of a card as one study."""
    card = Card(path)
    if card.get(RUNS) is None:
        raise StudyError(f"{path}: lists no runs; give the run folder, with --card {path.name}")
    said = run_card(path)
    places = ((f"{path}: {RUNS}[{n}]", item) for n, item in enumerate(card.items(RUNS)))
    rows = read_rows(places, lambda item: _row(str(item), item, said), bad)
    notes = (DECLARED, SEVERAL, *bad.taken())
    yield _imported(path.stem, path.name, rows, aim_of(rows, None), said, notes)


def run_card(path: Path) -> RunCard:
    """Return what a card says of the runs next to it."""
    card = Card(path)
    reader = CardReader(card)
    if len(reader.batch_sizes()) > 1:
        raise StudyError(f"{path}: lists several batch sizes; leave in it the one that was run")
    return RunCard(
        workload=reader.workload(),
        environment=reader.stated_environment() or RecordedMachine().environment(1),
        framework=card.text("Model-executor.framework.name"),
        inferences=tuple(reader.inferences),
        digests={path.name: content_digest(path)},
    )


def aim_of(rows: Sequence[Row], best: float | None) -> Aim:
    """What was to be reached, by what was scored and what was called the best in the end."""
    scored = {n: row.score for n, row in enumerate(rows) if row.succeeded and row.score is not None}
    scores = [*scored.values()]
    if scores and scores == [rows[n].step_s for n in scored]:
        return Aim(name=STEP_TIME, direction="minimize", formula=STEP_TIME)
    rising = bool(scores) and best == max(scores) and best != min(scores)
    composite = any(COMPOSITE in row.text for row in rows)
    direction = "maximize" if rising or composite else "minimize"
    return Aim(name="score", direction=direction, formula="score")


def _imported(
    name: str, source: str, rows: Sequence[Row], aim: Aim, card: RunCard, notes: tuple[str, ...]
) -> Imported:
    study = study_of(
        name=name,
        aim=aim,
        workload=card.workload,
        environment=card.environment,
        inferences=card.inferences,
        origin=Origin(
            kind="ccl-search",
            source=source,
            digests=card.digests,
            framework=card.framework,
            notes=notes,
        ),
        rules=RULES,
    )
    return imported_study(study, rows)


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


def _line_row(table: Path, card: RunCard | None, line: Mapping[str, str]) -> Row:
    """A line of a table, whose cells hold JSON."""
    run = {
        **line,
        "config": json_value(line.get("config") or "{}"),
        "metrics": json_value(line.get("metrics") or "{}"),
        "score": number(line.get("score", "")),
        "policy": line.get("policy") or _program(table, line.get("version", "")),
    }
    return _row(json.dumps(line, sort_keys=True), run, card)


def _row(
    text: str, document: Mapping[object, object] | Mapping[str, object], card: RunCard | None
) -> Row:
    run = checked_value(document, RecordedRun)
    config = {knob: value for knob, value in (run.config or {}).items() if value is not None}
    numbers = {name: float(v) for name, v in (run.metrics or {}).items() if is_number(v)}
    return Row(
        text=text,
        config=config,
        succeeded=run.status == "success",
        score=run.score,
        step_s=numbers.get(STEP_TIME),
        ranks=rank_count(config),
        tokens=None if card is None else card.workload.tokens_per_step,
        tokens_declared=card is not None,
        metrics=numbers,
        error=run.error_msg or "",
        program=run.policy,
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


CHECKPOINTING: Final = "activation_checkpointing"
FIXED_BATCH: Final = re.compile(r"fixed (\d+)")
SIMULATED: Final = "wall_time_cycles"
SIMULATOR: Final = RecordedMachine(accelerator="simulated", cluster="simulated")
NO_AIM: Final = Aim(name="", direction="minimize", formula=PUBLISHED_SCORE)
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
    names = Counter(name for name, _ in found)
    for (name, aim), lines in found.items():
        first, rows = lines[0][0], [row for _, row in lines]
        rule = first.workload.actual_global_batch_rule
        fixed_batch = FIXED_BATCH.search(rule or "") is not None
        varied = f"The global batch of a step was {rule or 'not recorded'}, whatever the card says."
        dead = all(not line.activation_checkpointing_effective for line, _ in lines)
        study = study_of(
            name=f"{name} {aim.formula}" if aim is not None and names[name] > 1 else name,
            aim=aim or NO_AIM,
            workload=workload_of(first.workload, first.workload.model or name),
            environment=first.hardware.environment(max(row.ranks or 1 for row in rows)),
            origin=replace(
                origin,
                framework=first.framework,
                dead_knobs=(CHECKPOINTING,) if dead else (),
                notes=(*(() if fixed_batch else (varied,)), *bad.taken()),
            ),
            rules=(*RULES, BATCH_RULE) if fixed_batch else RULES,
        )
        yield imported_study(study, rows)


def _simulations(path: Path, origin: Origin, bad: BadRows) -> Iterator[Imported]:
    """Each workload of a search by itself: a policy decided for all of them."""
    found = grouped_rows(
        path, SimulatedRow, lambda line: (line.search_id, line.workload.name), _simulated_row, bad
    )
    for (search, name), lines in found.items():
        rows = [row for _, row in lines]
        study = study_of(
            name=f"{search} {name}",
            aim=CYCLES,
            workload=workload_of(lines[0][0].workload, name),
            environment=SIMULATOR.environment(max(row.ranks or 1 for row in rows)),
            origin=replace(origin, framework="astra-sim", notes=(*SIMULATION_NOTES, *bad.taken())),
        )
        yield imported_study(study, rows)


def _name(line: SearchRow) -> str:
    return line.search_id or Path(line.card).stem or "search"


def _search_row(text: str, line: SearchRow) -> Row:
    guess = line.inferred_cause if line.inferred_cause != line.error_class else None
    return Row(
        text=text,
        config=line.config,
        succeeded=line.status == "success",
        score=line.score,
        step_s=line.step_seconds,
        ranks=line.gpus_used if line.gpus_used is not None else rank_count(line.config),
        tokens=line.tokens_per_step,
        metrics=line.metrics,
        error=line.error_excerpt or "",
        error_class=line.error_class or "",
        guess="; ".join(filter(None, (guess, line.inferred_why))) if guess else "",
        from_cache=line.served_from_cache,
    )


def _simulated_row(text: str, line: SimulatedRow) -> Row:
    return Row(
        text=text,
        config=line.config,
        succeeded=line.status == "success",
        score=line.wall_time_cycles,
        ranks=rank_count(line.config),
        tokens=(line.workload.batch_size or 0) * line.workload.seq_len,
        metrics={
            "gpu_time_cycles": line.gpu_time_cycles,
            "comm_time_cycles": line.comm_time_cycles,
        },
        error_class=line.error_class or "",
    )
